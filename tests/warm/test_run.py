"""`ddplaunch run --start warm` for real: a pasted command line, an import that is broken off, and what is left."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.agent.plugin_runs import DEADLINE_S, Run, of_folder
from tests.hosts.launching import clean_environment, ddplaunch

pytestmark = pytest.mark.slow

LOOK = 'import gc, sys; print(gc.get_freeze_count() > 1000, "colorsys" in sys.modules, __spec__ and __spec__.name)'


def test_the_pasted_dry_run_is_warm_and_imports_modules_once(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    words = ("run", "2", "--device", "cpu", "--no-checks", "--dry-run", "--preload", "colorsys,not_there")
    command, env = ddplaunch(*words, "--start", "warm", "--", "-m", "look"), clean_environment()
    text = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
    done = subprocess.run(["sh"], input=text, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (0, "True True look\n"), done.stderr
    assert "ddplaunch: `--preload not_there`: ModuleNotFoundError: No module named 'not_there'\n" in done.stderr


def test_a_long_import_can_be_broken_off(tmp_path: Path) -> None:
    (tmp_path / "never_ready.py").write_text(f"import time; open('importing', 'w'); time.sleep({2 * DEADLINE_S})")
    run = Run(tmp_path, "workers", "--start", "warm", "--no-checks", "--preload", "never_ready")
    run.wait_for("importing")
    run.process.send_signal(signal.SIGINT)
    assert run.end() == -signal.SIGINT and "Traceback" not in run.err
    assert of_folder(tmp_path) == []
