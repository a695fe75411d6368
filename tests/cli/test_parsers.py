"""The quick parser says what Typer says, or nothing; a flag is one field of ``Options``, or one row of ``OWN``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ddplaunch
from ddplaunch.cli.parsing.command import COMMANDS, options_of, own_values
from ddplaunch.cli.parsing.removed import rows
from ddplaunch.cli.parsing.typed_words import (
    TypedLaunch,
    parse_quickly,
    said_on_command_line,
    whole_number,
    with_lists_taken_apart,
)
from ddplaunch.cli.parsing.typer_app import parse_words as parse_with_typer
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Source
from tests.cli.cli_calls import Call
from tests.golden import sections


def parse(command: str, words: list[str]) -> dict[str, Any] | None:
    values = parse_quickly(command, words)
    return None if values is None else with_lists_taken_apart(values)


VALUES = st.sampled_from(["4", "auto", "2x4", "-1", "1e-4", "a b", "", "=", "x=y", "--", "-", "é", "\udcff", "{lr}"])


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command and words that are right, nearly right, or neither."""
    command = draw(st.sampled_from(sorted(COMMANDS)))
    named = [flag.flag for flag in options_of(command) if flag.kind != "argument"]
    negations = ["--no-" + name[2:] for name in named]
    flags = st.sampled_from([*named, *named, *negations, "--lr-", "--ba", "-x", "--batch_size", "--DRY-RUN"])
    attached = st.builds(lambda flag, value: f"{flag}={value}", flags, VALUES)
    pairs = st.builds(lambda flag, value: [flag, value], flags, VALUES)
    alone = st.one_of(flags, attached, VALUES).map(lambda word: [word])
    return command, [word for part in draw(st.lists(st.one_of(pairs, alone), max_size=6)) for word in part]


@settings(max_examples=50)
@given(command_lines())
def test_quick_and_typer_agree(line: tuple[str, list[str]]) -> None:
    command, words = line
    if "--" in words:  # it is split off before either of them sees it
        words = words[: words.index("--")]
    values = parse(command, words)
    if values is None:
        return
    try:
        answer = parse_with_typer([command, *words])
    except UsageError as refused:
        raise AssertionError(f"Typer refuses {words}: {refused}") from refused
    assert answer == values


def test_quick_does_not_leave_everything_to_typer() -> None:
    words = ["4", "--batch-size", "8", "--env", "A=1", "--env=B=2", "--no-stacks", "--dry-run"]
    values = parse("run", words)
    assert values is not None and values["env"] == ["A=1", "B=2"] and values["stacks"] is False
    assert parse_with_typer(["run", *words]) == values
    for odd in (["--help"], ["--batch"], ["--batch-size"], ["4", "5"], ["--dry-run=1"]):
        assert parse("run", odd) is None
    assert parse("logs", ["-n=5"]) is None


def test_the_last_of_what_takes_one_value_counts() -> None:
    for line, batch_size, forward in (
        ("--dry-run --dry-run --forward --forward", None, True),
        ("--forward --no-forward", None, False),
        ("--batch-size 8 --batch-size=16 --env A=1 --env A=2", "16", None),
        ("--env --batch-size --batch_size 8", "8", None),
    ):
        values = parse_with_typer(["run", "2", *line.split()])
        assert values is not None and (values["batch_size"], values["forward"]) == (batch_size, forward)
        assert parse("run", ["2", *line.split()]) in (None, values)
    values = parse_with_typer(["run", "--ignore", "a,b", "--exclude", "gpu-a,gpu-b"])
    assert values is not None and (values["ignore"], values["exclude"]) == (["a", "b"], ["gpu-a", "gpu-b"])
    assert parse("logs", ["-f", "-n", "5", "-r", "0"]) == parse_with_typer(["logs", "-f", "-n", "5", "-r", "0"])


def test_a_launch_is_typed_again_as_it_was() -> None:
    options = ["--batch-size", "8", "--env", "A=1", "--env", "B=2", "--no-stacks", "--socket-ifname=-x", "--verbose"]
    values = parse("run", ["4", *options])
    assert values is not None
    typed = TypedLaunch(said_on_command_line(values), profile="big")
    assert typed.nproc == "4" and TypedLaunch({}).nproc is None
    assert typed.said["stacks"].source == Source("flag", "--no-stacks")
    assert parse("run", ["4", *typed.words()]) == {**values, "profile": "big"}
    without = typed.words(("env", "batch_size", "verbose"))
    assert without == ["--profile", "big", "--socket-ifname=-x", "--no-stacks"]
    assert TypedLaunch(typed.said).words() == typed.words()[2:]
    assert (parse("explain", ["a", "b"]) or {})["targets"] == ["a", "b"]


def test_values_of_a_commands_own_flags_are_numbers_and_seconds() -> None:
    def typed(command: str, words: list[str]) -> dict[str, Any]:
        values = parse(command, words)
        assert values is not None
        return own_values(command, values)

    assert typed("stop", ["--grace", "2m"])["grace"] == 120.0
    assert typed("run", ["--join-timeout=0"])["join_timeout"] == 0.0
    submitted = typed("submit", ["--nodes", "2", "--setup", "a"])
    assert (submitted["nodes"], submitted["setup"], submitted["mem"]) == (2, ["a"], None)
    for wrong in ("soon", "-1"):
        with pytest.raises(UsageError, match="is not a length of time"):
            typed("run", [f"--join-timeout={wrong}"])
    assert [whole_number("--keep", text, "runs", "", "") for text in ("0", "9" * 30)] == [0, int("9" * 30)]
    for text, least in (("٣", 0), ("x", 0), ("-1", 0), ("0", 1), ("9" * 31, 0)):
        with pytest.raises(UsageError, match="is not a number of runs"):
            whole_number("--keep", text, "runs", "", "", least)


@pytest.mark.parametrize(("line", "tip"), sections(Path(__file__).with_name("misspelt.txt")))
def test_what_is_misspelt_gets_a_tip(call: Call, line: str, tip: str) -> None:
    """In ``misspelt.txt`` there stands below each line what is said of it, and then the fix."""
    said = call(*line.split())
    text = " ".join(said.err.split())
    assert said.status == 2 and "error[usage]: " in text and all(part in text for part in tip.splitlines()), text


# What is gone is answered with what to use instead

REMOVED = rows()


@pytest.mark.parametrize("gone", REMOVED)
def test_each_is_answered_with_what_to_use_instead(gone: str, call: Call) -> None:
    said = call(*(["run", gone] if gone.startswith("-") else gone.split()))
    assert said.status == 2 and said.err.startswith(f"error[usage]: there is no `{gone}`\n"), said.err
    assert " ".join(REMOVED[gone]["instead"].split()) in " ".join(said.err.split())


@pytest.mark.parametrize("words", [["--trace", "t.svg"], ["--trace=t.svg"], ["2", "--record_metrics"]])
def test_with_a_value_and_with_underscores(words: list[str], call: Call) -> None:
    assert "error[usage]: there is no `--" in call("run", *words, "--", "train.py").err


def test_in_a_profile_and_from_python(call: Call, folder: Path) -> None:
    (folder / "ddplaunch.toml").write_text("record-metrics = true\n")
    said = call("plan", "2", "--", "train.py")
    assert said.status == 2 and "error[usage]: there is no `--record-metrics`" in said.err
    with pytest.raises(TypeError, match="no option `trace`: `ddplaunch report`"):
        ddplaunch.launch("train.py", trace="t.svg")
