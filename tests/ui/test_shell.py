from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddplaunch.planning.launch import Variable
from ddplaunch.ui.shell import dry_run_text
from ddplaunch.values.resolved import Source
from tests.conftest import Golden
from tests.planning.sample_launch import launch

WORDS = ["", "a b", "it's", 'say "x"', "$HOME `id` !", "new\nline", "\t", "\udcff\udcfe1", "ü × 😀", "\x1b[2J", "\\n"]
SHOW = """
import os, sys
words = [*sys.argv[1:], *map(os.environ.get, ("V", "WANDB_API_KEY"))]
sys.stdout.buffer.write(b"\\0".join(map(os.fsencode, words)))
"""
YOURS = Source("flag", "--env")


def test_text(golden: Golden) -> None:
    golden("dry-run", dry_run_text(launch()))


def test_the_text_runs_when_pasted(tmp_path: Path) -> None:
    variables = (
        Variable("V", "\n".join(WORDS), YOURS, "a reason\nof two lines; rm -rf '"),
        Variable("GONE", None, Source("default"), "not wanted"),
        Variable("WANDB_API_KEY", "hunter2hunter2", YOURS, "yours"),
    )
    assert "\nenv" not in dry_run_text(launch(environment=()))
    one = launch(argv=(sys.executable, "-c", SHOW, *WORDS, "--", *WORDS), environment=variables)
    script = tmp_path / "launch.sh"
    script.write_bytes(os.fsencode(dry_run_text(one)))
    assert b"hunter2" not in script.read_bytes()
    environment = {**os.environ, "WANDB_API_KEY": "k"}  # a secret is taken from the shell that it is pasted into
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, check=True)
    assert done.stdout == b"\0".join(map(os.fsencode, [*WORDS, "--", *WORDS, "\n".join(WORDS), "k"]))
    del environment["WANDB_API_KEY"]
    assert subprocess.run(["bash", str(script)], env=environment, capture_output=True).returncode != 0
