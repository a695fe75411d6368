"""What `--help` shows: Typer's pages, complete, with examples that are right and that run."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.cli.parsing.command import COMMANDS, LAUNCHING, command_named, options_of, own_values
from ddplaunch.cli.parsing.typed_words import parse_quickly, said_on_command_line
from ddplaunch.cli.target import parse_target, split_arguments
from ddplaunch.planning.convert.launch_words import known_words
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.options import parse_options
from tests.cli.cli_calls import spawn
from tests.conftest import Golden

EXAMPLES = [(name, line) for name in COMMANDS for line, _ in command_named(name).examples]


PAGES = """
import sys
from ddplaunch.cli.main import main
for name in ("", "run", "logs"):
    try:
        main([*filter(None, [name]), "--help"])
    except SystemExit as end:
        assert end.code == 0
    print("\\f", flush=True)
"""


def test_pages(golden: Golden) -> None:
    """In a process of their own: Typer keeps the width of the terminal that it finds when it is imported."""
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    for name, shown in zip(("first", "run", "logs"), done.stdout.split("\f\n"), strict=False):
        golden(f"cli-help-{name}-80", "".join(f"{line.rstrip()}\n" for line in shown.splitlines()))


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_examples_are_right(folder: Path, name: str, line: str) -> None:
    assert line.split()[:2] == ["ddplaunch", name] and len(command_named(name).examples) == 1 + bool(options_of(name))
    ours, script = split_arguments(shlex.split(line)[1:])
    values = parse_quickly(name, ours[1:])
    assert values is not None, "Typer has to look"
    own_values(name, values)
    if name in LAUNCHING:
        parse_options(said_on_command_line(values))
    if name == "convert":
        assert script is None or translate(known_words(script)) is not None
    else:
        assert script is None or parse_target(script).name.endswith("train.py")


SCRIPT = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float)
print(parser.parse_known_args())
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the first example of all was run; its ranks need not load torch."""
    place = tmp_path_factory.mktemp("trained")
    (place / "train.py").write_text(SCRIPT)
    (place / "train.sh").write_text("torchrun --nproc_per_node=2 train.py\n")
    name, line = EXAMPLES[0]
    assert name == "run"
    runs_here(place, line, (0,))
    return place


def runs_here(place: Path, line: str, statuses: tuple[int, ...]) -> None:
    """Nothing is refused and nothing is misunderstood."""
    done = spawn(shlex.split(line)[1:], place, {"COLUMNS": "80", "HOME": str(place), "PATH": os.environ["PATH"]})
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode in statuses, said
    assert said.strip() and "error[" not in done.stderr.decode()


#: Their own tests run these, with a script that trains; test_own_interpreters.py runs the line.
ELSEWHERE = ("env", "fit", "prove", "scale", "ddplaunch doctor")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), [each for each in EXAMPLES[1:] if not {*each} & {*ELSEWHERE}])
def test_examples_run(trained: Path, name: str, line: str) -> None:
    """0 or, of what looks for something that is wrong, 1."""
    (trained / "ddplaunch.toml").unlink(missing_ok=True)  # of `init`, which replaces none
    runs_here(trained, line, (0, 1) if name in ("doctor", "explain") else (0,))
