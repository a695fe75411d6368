"""Words become the values of options, and what is not understood is answered with the line to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ddplaunch
from ddplaunch.cli.parsing.command import own_values
from ddplaunch.cli.parsing.removed import rows
from ddplaunch.cli.parsing.typed_words import Misread, TypedLaunch, parse, said_on_command_line, whole_number
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Source
from tests.cli.cli_calls import Call
from tests.golden import sections


def test_words_are_read_as_typed() -> None:
    words = ["4", "--batch-size", "8", "--env", "A=1", "--env=B=2", "--no-stacks", "--dry-run"]
    values = parse(["run", *words])
    assert (values["nproc"], values["env"], values["stacks"]) == ("4", ["A=1", "B=2"], False)
    for odd, kind in (("--batch", "option"), ("--batch-size", "value"), ("5", "argument"), ("--dry-run=1", "switch")):
        with pytest.raises(Misread, match=kind) as misread:
            parse(["run", "4", odd])
        assert misread.value.args == (2, kind)
    assert parse(["logs", "-n5"])["lines"] == "5" and parse(["explain", "-"])["targets"] == ["-"]


def test_the_last_of_what_takes_one_value_counts() -> None:
    for line, batch_size, forward in (
        ("--dry-run --dry-run --forward --forward", None, True),
        ("--forward --no-forward", None, False),
        ("--batch-size 8 --batch-size=16 --env A=1 --env A=2", "16", None),
        ("--env --batch-size --batch_size 8", "8", None),
    ):
        values = parse(["run", "2", *line.split()])
        assert (values["batch_size"], values["forward"]) == (batch_size, forward)
    values = parse(["run", "--ignore", "a,b", "--exclude", "gpu-a,gpu-b"])
    assert (values["ignore"], values["exclude"]) == (["a", "b"], ["gpu-a", "gpu-b"])
    assert parse(["logs", "-f", "-n", "5", "-r", "0"]) == parse(["logs", "--rank=0", "--lines=5", "--follow"])


def test_a_launch_is_typed_again_as_it_was() -> None:
    options = ["--batch-size", "8", "--env", "A=1", "--env", "B=2", "--no-stacks", "--socket-ifname=-x", "--verbose"]
    values = parse(["run", "4", *options])
    typed = TypedLaunch(said_on_command_line(values), profile="big")
    assert typed.nproc == "4" and TypedLaunch({}).nproc is None
    assert typed.said["stacks"].source == Source("flag", "--no-stacks")
    assert parse(["run", "4", *typed.words()]) == {**values, "profile": "big"}
    without = typed.words(("env", "batch_size", "verbose"))
    assert without == ["--profile", "big", "--socket-ifname=-x", "--no-stacks"]
    assert TypedLaunch(typed.said).words() == typed.words()[2:]
    assert parse(["explain", "a", "b"])["targets"] == ["a", "b"]


def test_values_of_a_commands_own_flags_are_numbers_and_seconds() -> None:
    def typed(command: str, words: list[str]) -> dict[str, Any]:
        return own_values(command, parse([command, *words]))

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
