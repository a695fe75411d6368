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
SHOW = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, [*sys.argv[1:], os.environ['V']])))"
YOURS = Source("flag", "--env")


def test_text(golden: Golden) -> None:
    golden("dry-run", dry_run_text(launch()))


def test_the_text_runs_when_pasted(tmp_path: Path) -> None:
    variables = (
        Variable("V", "\n".join(WORDS), YOURS, "a reason\nof two lines; rm -rf '"),
        Variable("GONE", None, Source("default"), "not wanted"),
    )
    assert "\nenv" not in dry_run_text(launch(environment=()))
    one = launch(argv=(sys.executable, "-c", SHOW, *WORDS, "--", *WORDS), environment=variables)
    script = tmp_path / "launch.sh"
    script.write_bytes(os.fsencode(dry_run_text(one)))
    done = subprocess.run(["bash", str(script)], capture_output=True, check=True)
    assert done.stdout == b"\0".join(map(os.fsencode, [*WORDS, "--", *WORDS, "\n".join(WORDS)]))


def test_a_secret_is_taken_from_the_shell_that_the_text_is_pasted_into() -> None:
    one = launch(
        argv=(sys.executable, "-c", "import os; print(os.environ['WANDB_API_KEY'])"),
        environment=(Variable("WANDB_API_KEY", "hunter2hunter2", YOURS, "yours"),),
    )
    text = dry_run_text(one)
    assert "hunter2" not in text
    bare = {name: value for name, value in os.environ.items() if name != "WANDB_API_KEY"}
    done = subprocess.run(["bash", "-c", text], env={**bare, "WANDB_API_KEY": "k"}, capture_output=True, text=True)
    assert done.stdout == "k\n"
    assert subprocess.run(["bash", "-c", text], env=bare, capture_output=True).returncode != 0
