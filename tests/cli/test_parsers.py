"""The quick parser says what Typer says, or nothing; a flag is one field of ``Options``, or one row of ``OWN``."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplaunch.cli.commands.submit import run_words
from ddplaunch.cli.configuration import with_configuration
from ddplaunch.cli.flags import HELP, flags_of, own_values, said_on_command_line
from ddplaunch.cli.quick import parse
from ddplaunch.cli.typer_app import parse as parse_with_typer
from ddplaunch.launch import options as launch_options
from ddplaunch.launch.flag import Flag, read_duration
from ddplaunch.launch.hosts_plan import options_from_json, options_json
from ddplaunch.launch.job.submission import Submission
from ddplaunch.launch.options import Options, parse_options
from ddplaunch.values.finding import UsageError
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source

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


@settings(max_examples=150)
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


@dataclass(frozen=True)
class Longer(Options):
    """Options with one flag more: nothing but this field says that it exists."""

    nap_s: Resolved[float] | None = field(
        default=None,
        metadata={"flag": Flag("nap", "text", "Nap", "Sleep this long before the launch.", "TIME", read=read_duration)},
    )


@pytest.fixture
def longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_options, "Options", Longer)


@pytest.mark.usefixtures("longer")
def test_a_new_field_is_a_flag_of_both_parsers_and_a_key_of_profiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = parse("run", ["2", "--nap", "2m"])
    assert values is not None and parse_with_typer(["run", "2", "--nap", "2m"]) == ("run", values)
    assert parse_with_typer(["plan", "--help"]) is None and "Sleep this long" in capsys.readouterr().out
    typed = with_configuration(said_on_command_line(values), None, tmp_path)
    assert isinstance(typed, Longer) and typed.nap_s == Resolved(120.0, Source("flag", "--nap"))
    (tmp_path / "ddplaunch.toml").write_text('[profiles.slow]\nnap = "1h"\n')
    from_profile = with_configuration({}, "slow", tmp_path)
    assert isinstance(from_profile, Longer)
    assert from_profile.nap_s == Resolved(3600.0, Source("profile", "ddplaunch.toml, slow"))


@pytest.mark.usefixtures("longer")
def test_a_new_field_reaches_the_nodes_of_a_job_and_other_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"nap": Resolved("2m", Source("flag", "--nap"))}
    assert run_words(said, None, Submission("a", "train.py", 1), ["train.py"]) == (
        "run",
        "--nap",
        "2m",
        "--",
        "train.py",
    )
    monkeypatch.setattr("ddplaunch.launch.hosts_plan.Options", Longer)
    assert options_from_json(options_json(parse_options(said))) == parse_options(said)


def test_values_of_a_commands_own_flags_are_numbers_and_seconds() -> None:
    def typed(command: str, words: list[str]) -> dict[str, Any]:
        values = parse(command, words)
        assert values is not None
        return own_values(command, values)

    assert typed("stop", ["--grace", "2m"])["grace"] == 120.0
    assert typed("run", ["--join-timeout=0"])["join_timeout"] == 0.0
    assert (
        typed("submit", ["--nodes", "2", "--setup", "a"]).items() >= {"nodes": 2, "setup": ["a"], "mem": None}.items()
    )
    for wrong in ("soon", "-1"):
        with pytest.raises(UsageError, match="is not a length of time"):
            typed("run", [f"--join-timeout={wrong}"])
