"""What is gone is answered with what to use instead."""

from __future__ import annotations

from pathlib import Path

import pytest

import ddplaunch
from ddplaunch.cli.parsing.command import COMMANDS, options_of, spellings
from ddplaunch.cli.parsing.removed import instead
from tests.cli.cli_calls import Call

REMOVED = instead("removed")


def typed(gone: str) -> list[str]:
    """Return a command line with what a row of the table names."""
    words = gone.split()
    words = ["run", *words] if words[0].startswith("-") else words
    return [*words, "--", "train.py"] if words[0] in ("run", "scale") else words


@pytest.mark.parametrize("gone", REMOVED)
def test_each_is_answered_with_what_to_use_instead(gone: str, call: Call) -> None:
    said = call(*typed(gone))
    assert said.status == 2 and said.err.startswith(f"error[removed]: `{gone}` is gone\n"), said.err
    assert " ".join(REMOVED[gone].split()) in " ".join(said.err.split())


def test_nothing_in_the_table_is_there() -> None:
    for gone in REMOVED:
        command, _, option = gone.rpartition(" ")
        commands = [command] if command else list(COMMANDS)
        assert gone not in COMMANDS
        assert not any(option in spellings(options_of(each)) for each in commands if each in COMMANDS)


@pytest.mark.parametrize("words", [["--trace", "t.svg"], ["--trace=t.svg"], ["2", "--record_metrics"]])
def test_with_a_value_and_with_underscores(words: list[str], call: Call) -> None:
    assert "error[removed]" in call("run", *words, "--", "train.py").err


def test_in_a_profile_and_from_python(call: Call, folder: Path) -> None:
    (folder / "ddplaunch.toml").write_text("record-metrics = true\n")
    said = call("plan", "2", "--", "train.py")
    assert said.status == 2 and "error[removed]: `--record-metrics` is gone" in said.err
    with pytest.raises(TypeError, match="no option `trace` any more: `ddplaunch report`"):
        ddplaunch.launch("train.py", trace="t.svg")
