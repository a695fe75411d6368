"""Interpreters that ddplaunch starts for itself import nothing from the working directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch import __version__
from ddplaunch.cli.parsing.command import COMMANDS
from ddplaunch.hosts.ssh import command
from ddplaunch.values.variable_names import own_command
from tests.hosts.launching import run_and_read

PROGRAM = str(Path(sys.executable).with_name("ddplaunch"))
# Names that the standard library and ddplaunch import early, in the child interpreters too.
NAMES = ("json", "signal", "runpy", "typing", "dataclasses", "logging", "types", "ddplaunch", "torch", "psutil", "yaml")
TRAP = "import os\nwith open(os.environ['TRAPPED'], 'a') as file:\n    file.write(__file__ + '\\n')\n"


def trapped(tmp_path: Path, words: list[str], **more: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run ``words`` where a file lies for each of NAMES; return also which of them were executed."""
    folder = tmp_path / "somebody's files"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(TRAP)
    log = tmp_path / "trapped"
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = run_and_read(words, folder, environment | {"TRAPPED": str(log)} | more)
    return done, log.read_text() if log.exists() else ""


def test_the_trap_works(tmp_path: Path) -> None:
    """A plain `-m`, as a start that this page is about would have, falls into it."""
    _, executed = trapped(tmp_path, [sys.executable, "-m", "ddplaunch", "--version"])
    assert "somebody's files/" in executed


ARGUMENTS = {
    "run": ["1", "--dry-run", "--", "true"],
    "submit": ["--dry-run", "--nodes", "1", "--", "train.py"],
    "plan": ["2", "--batch-size", "8"],
    "explain": ["-"],
    "top": ["--count", "1"],
    "clean": ["--dry-run"],
}
#: These have nothing to work on there: no run, no script.
REFUSED = ("convert", "fit", "init", "logs", "prove", "report", "scale", "submit")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_command_executes_a_file_of_the_working_directory(tmp_path: Path, name: str) -> None:
    words = [PROGRAM, name, *ARGUMENTS.get(name, [])]
    done, executed = trapped(tmp_path, words, WANDB_API_KEY="hunter2hunter2")
    assert executed == "", executed
    hint = f"where this is right, put `{name}` into REFUSED, or the words that it needs into ARGUMENTS\n"
    assert done.returncode == (2 if name in REFUSED else 0) or name == "doctor", hint + done.stderr
    if name == "env":  # what a bug report needs
        assert f"ddplaunch {__version__}" in done.stdout and "PyTorch version: " in done.stdout
        assert re.search("checks? passed", done.stdout) and "hunter2" not in done.stdout


@pytest.mark.slow
def test_a_run_executes_none_outside_of_its_ranks(tmp_path: Path) -> None:
    """torchrun, the guard and its children; the rank is a program that is no Python."""
    done, executed = trapped(tmp_path, [PROGRAM, "run", "2", "--device", "cpu", "--", "true"])
    assert executed == "" or sys.version_info < (3, 11), executed
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_both_ways_of_starting_a_module_keep_the_directory_out(tmp_path: Path, version: tuple[int, ...]) -> None:
    if version >= (3, 11) > sys.version_info:
        pytest.skip("this interpreter has no `-P`")
    done, executed = trapped(tmp_path, own_command(sys.executable, "ddplaunch", "--version", version=version))
    assert executed == "", executed
    assert done.stdout.startswith("ddplaunch "), done.stderr


def test_over_ssh_too(tmp_path: Path) -> None:
    """The last word is for the shell of the other side, in whatever directory its login ends up."""
    service = command("node-1", sys.executable)[-1]
    done, executed = trapped(tmp_path, ["sh", "-c", service])
    assert executed == "", executed
    assert done.stdout.startswith("\0ddplaunch-host-"), done.stderr
