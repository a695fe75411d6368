"""The pages of `--help`: short enough to read, complete by group, with examples that are right."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from ddplaunch.cli.flags import HOSTS, LAUNCHING, flags_of, own_values, parse_quickly, said_on_command_line
from ddplaunch.cli.help.command_help import HELP
from ddplaunch.cli.help.pages import page
from ddplaunch.cli.target import parse_target, split_arguments
from ddplaunch.planning.convert.launch_words import plain
from ddplaunch.planning.convert.launcher_line import translate
from ddplaunch.planning.options import parse_options
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import UsageError
from tests.cli.cli_calls import Call, call, folder, spawn
from tests.conftest import Golden

__all__ = ["call", "folder"]
EXAMPLES = [(name, line) for name, row in HELP.items() for line, _ in row.examples]


@pytest.mark.parametrize("columns", [40, 80])
def test_pages(golden: Golden, columns: int) -> None:
    pages = {"run": ["run", "--help"], "first": [], "all": ["--help"], "ps": ["help", "ps"]}
    for name, words in pages.items():
        golden(f"cli-help-{name}-{columns}", page(words, Terminal(columns)).replace("0.2.0", "VERSION"))


def test_the_first_screen_fits_a_small_terminal() -> None:
    """Prompts before and behind it are seen too, and what to try has not scrolled away."""
    lines = page([], Terminal(80)).splitlines()
    assert len(lines) <= 22 and all(any(re.search(rf"\b{name}\b", line) for line in lines) for name in HELP)
    assert all(
        len(page([], Terminal(columns)).splitlines()) <= (13 if columns < 50 else 22) for columns in range(40, 81)
    )


@pytest.mark.parametrize("name", HELP)
@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_no_page_is_wider_than_the_terminal_and_no_word_is_cut(name: str, columns: int) -> None:
    for words in ([name, "--help"], [name, "--help-all"], ["help"]):
        lines = page(words, Terminal(columns)).splitlines()
        long = [line for line in lines if len(line) > min(columns, 100) and not line.startswith("    ddplaunch ")]
        assert [line for line in long if "`" not in line] == []  # what can be typed is not broken
        assert not any(line.endswith("...") for line in lines)


@pytest.mark.parametrize("name", HELP)
def test_a_row_of_help_is_short_and_names_options_that_exist(name: str) -> None:
    row, flags = HELP[name], {flag.name for flag in flags_of(name)}
    assert len(row.line) <= 62 and row.line.endswith(".")
    assert len(row.first) <= 10 and set(row.first) <= flags
    assert row.first or len(flags) <= 14, "name the options that people need first"
    first_screen = page(["--help"], Terminal())
    assert re.search(rf"^  {name} +{re.escape(row.line)}$", first_screen, re.M)


@pytest.mark.parametrize("name", HELP)
def test_all_options_are_found_by_group_and_by_name(name: str) -> None:
    short, everything = page([name, "--help"], Terminal()), page([name, "--help-all"], Terminal())
    for flag in flags_of(name):
        shown = flag.flag[2:] if flag.kind not in ("argument", "arguments") else flag.metavar
        assert shown in short and shown in everything
        if flag.panel:
            group = flag.panel.partition(" ")[0].rstrip(",").lower()
            assert flag.flag[2:] in page([name, "--help", group], Terminal())
            assert flag.flag[2:] in page(["help", name, flag.flag], Terminal())


def test_run_has_eight_groups_and_ten_options_first() -> None:
    shown = page(["run", "--help"], Terminal())
    assert len(re.findall(r"^  [a-z]+ +--", shown, re.M)) == 8
    assert len(re.findall(r"^  --", shown, re.M)) == 10
    assert {flag.panel for flag in HOSTS} == {"Hosts over ssh"}


def test_what_no_option_mentions_is_said() -> None:
    with pytest.raises(UsageError) as caught:
        page(["run", "--help", "quux"], Terminal())
    assert "no option of `run` mentions `quux`" in caught.value.findings[0].what
    assert "--lr-scaling" in page(["run", "--help=sqrt"], Terminal())
    assert "Usage" in page(["run", "4", "--help", "4"], Terminal())


def test_asking_for_help_beats_what_is_wrong(call: Call) -> None:
    assert call("run", "train.py", "--help").out.startswith("Usage: ddplaunch run")
    assert call("run", "--nonsense", "-h").status == 0
    assert call("help").status == 0
    assert call("help", "frob").status == 2
    assert "`frob` is not a command" in call("frob", "--help").err


def test_every_command_has_two_examples_of_itself() -> None:
    for name, row in HELP.items():
        assert [line.split()[:2] for line, _ in row.examples] == [["ddplaunch", name]] * 2
        text = page([name, "--help"], Terminal()).rstrip()
        assert text.endswith(row.examples[1][0]) and all(line in text for line, _ in row.examples)


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_examples_are_right(folder: Path, name: str, line: str) -> None:
    ours, script = split_arguments(shlex.split(line)[1:])
    values = parse_quickly(name, ours[1:])
    assert values is not None, "Typer has to look"
    own_values(name, values)
    if name in LAUNCHING:
        parse_options(said_on_command_line(values))
    if name == "convert":
        assert script is None or translate(plain(script)) is not None
    else:
        assert script is None or parse_target(script).name.endswith("train.py")


SOON_OVER = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--lr", type=float)
print(parser.parse_known_args())
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which one run was recorded."""
    from tests.cli.cli_calls import TRAIN

    place = tmp_path_factory.mktemp("trained")
    (place / "train.py").write_text(TRAIN)
    (place / "train.sh").write_text("torchrun --nproc_per_node=2 train.py\n")
    done = spawn(["run", "2", "--device", "cpu", "--", "train.py"], place)
    assert done.returncode == 0, done.stderr
    (place / "train.py").write_text(SOON_OVER)  # whose ranks need not load torch: 20 of them are started
    return place


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_examples_run(trained: Path, name: str, line: str) -> None:
    """0 or, of what looks for something that is wrong, 1; nothing is refused and nothing is misunderstood."""
    done = spawn(shlex.split(line)[1:], trained, {"COLUMNS": "80", "HOME": str(trained), "PATH": os.environ["PATH"]})
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode in ((0, 1) if name in ("doctor", "explain", "scale", "fit") else (0,)), said
    assert said.strip() and "error[" not in done.stderr.decode()
