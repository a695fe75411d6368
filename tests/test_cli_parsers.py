"""The quick parser says what Typer says, or nothing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.cli.flags import HELP, flags_of
from ddplaunch.cli.quick import parse
from ddplaunch.cli.typer_app import parse as parse_with_typer
from ddplaunch.values.finding import UsageError

VALUES = st.sampled_from(["4", "auto", "2x4", "-1", "1e-4", "a b", "", "=", "x=y", "--", "-", "é", "\udcff", "{lr}"])


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command and words that are right, nearly right, or neither."""
    command = draw(st.sampled_from(sorted(HELP)))
    spellings = [flag.flag for flag in flags_of(command) if flag.kind != "argument"]
    negations = ["--no-" + spelling[2:] for spelling in spellings]
    flags = st.sampled_from([*spellings, *spellings, *negations, "--lr-", "--ba", "-x", "--batch_size", "--DRY-RUN"])
    attached = st.builds(lambda flag, value: f"{flag}={value}", flags, VALUES)
    pairs = st.builds(lambda flag, value: [flag, value], flags, VALUES)
    alone = st.one_of(flags, attached, VALUES).map(lambda word: [word])
    return command, [word for part in draw(st.lists(st.one_of(pairs, alone), max_size=6)) for word in part]


@settings(max_examples=150, deadline=None)
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
    assert answer == (command, values)


def test_quick_does_not_leave_everything_to_typer() -> None:
    words = ["4", "--batch-size", "8", "--env", "A=1", "--env=B=2", "--no-nccl-ib", "--dry-run"]
    values = parse("run", words)
    assert values is not None and values["env"] == ["A=1", "B=2"] and values["nccl_ib"] is False
    assert parse_with_typer(["run", *words]) == ("run", values)
    for odd in (["--help"], ["--batch"], ["--batch-size"], ["4", "5"], ["--dry-run=1"]):
        assert parse("run", odd) is None
