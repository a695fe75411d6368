"""Options given to ``ddplaunch.launch`` become the words that the command line takes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch import LaunchRefused, Outcome, RunFailed, launch
from ddplaunch.api.child import Ended
from ddplaunch.api.from_python import NOT_HERE, _option_words, _outcome
from ddplaunch.cli.parsing.command import options_of
from ddplaunch.cli.parsing.typed_words import parse_quickly
from ddplaunch.cli.streams import StartReport
from ddplaunch.explain.diagnosis import Diagnosis, UserCall
from ddplaunch.planning import current
from ddplaunch.values.finding import error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 8, "lr": None}, ["--batch-size=8"]),
        ({"capture": False, "verbose": True, "phases": False}, ["--no-capture", "--verbose"]),
        ({"env": {"A": 1, "B": "x y"}}, ["--env=A=1", "--env=B=x y"]),
        ({"hosts": ["gpu-a", "gpu-b"], "show": [0, 3]}, ["--hosts=gpu-a", "--hosts=gpu-b", "--show=0,3"]),
        ({"data": [Path("/a"), "/b"]}, ["--data=/a", "--data=/b"]),
        ({"batch_size": [8, 16]}, ["--batch-size=8,16"]),  # which the command refuses
    ],
)
def test_options_are_spelled_as_on_the_command_line(options: dict[str, Any], words: list[str]) -> None:
    assert _option_words(options) == words
    assert parse_quickly("run", words) is not None


def test_every_option_of_run_can_be_given() -> None:
    for flag in options_of("run"):
        if flag.kind == "argument" or flag.name in NOT_HERE:
            continue
        value: Any = True if flag.kind in ("switch", "pair") else flag.example or "1"
        words = _option_words({flag.name: value})
        assert parse_quickly("run", words) is not None, words


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nprocs": 2}, "did you mean `nproc`"),
        ({"dry_run": True}, "no option `dry_run`"),
        ({"script_args": ["--lr", "1"]}, "did you mean `args`"),
        ({"capture": "no"}, "`capture` is True or False"),
    ],
)
def test_what_is_no_option_is_a_type_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said) as raised:
        _option_words(options)
    assert hasattr(raised.value, "_render_traceback_"), "a cell shows no traceback"


@pytest.mark.parametrize(
    ("told", "in_python"),
    [
        ("`--lr 1e-3` and `--data` are both given", "`lr='1e-3'` and `data=` are both given"),
        ("`--batch-size 8`, or `--no-capture`", "`batch_size=8`, or `capture=False`"),
        ("`--gpus free:2`; `ddplaunch doctor --comm`", "`gpus='free:2'`; `ddplaunch doctor --comm`"),
        ("`--epochs 3` or `--no-shuffle` behind `--lr 2`", "`--epochs 3` or `--no-shuffle` behind `lr=2`"),
        ("NPROC is a number: `ddplaunch run 4 -- train.py`", "nproc is a number: `launch('train.py', 4)`"),
        ("`ddplaunch run -- t.py --lr '1 2'`", "`launch('t.py', None, args=['--lr', '1 2'])`"),
    ],
)
def test_a_refusal_names_arguments_not_flags(told: str, in_python: str) -> None:
    refused = LaunchRefused(2, error("usage", told, why=told, fix=told))
    assert str(refused) == f"{in_python}\n  why: {in_python}\n  fix: {in_python}"
    assert refused._render_traceback_()[0] == f"LaunchRefused: {in_python}"
    placed = LaunchRefused(4, error("x", "a", why="b", fix="c", where=("train.py:4", "flag: NPROC")))
    assert str(placed) == "a\n  --> train.py:4\n  why: b\n  fix: c", "an argument has no flag"


def test_options_and_words_of_the_script_are_its_own() -> None:
    assert "did you mean `--lr`?" in str(
        LaunchRefused(4, error("script-arguments", "a", why="b", fix="did you mean `--lr`?"))
    )
    with pytest.raises(TypeError, match=re.escape("`args=['--epochs', '1']`")):
        launch("train.py", 2, args="--epochs 1")
    with pytest.raises(TypeError, match=r"by name: `args=\[…\]`") as raised:
        launch("train.py", 2, ["--lr", "1"])  # type: ignore[call-overload]
    assert hasattr(raised.value, "_render_traceback_")


def test_what_a_launch_that_is_over_raises() -> None:
    refused = StartReport((error("usage", "a", why="b", fix="c"),))
    for status, report, raises in (
        (130, StartReport(run_id="first"), KeyboardInterrupt),
        (0, StartReport(), KeyboardInterrupt),
        (4, StartReport(), RuntimeError),
        (4, refused, LaunchRefused),
    ):
        interrupted = raises is KeyboardInterrupt
        with pytest.raises(raises):
            _outcome(Ended(status, interrupted, report))
    assert _outcome(Ended(0, True, StartReport(run_id="first"))).status == 0, "the interrupt came too late"


def test_an_outcome_is_a_line_and_a_picture_of_it() -> None:
    done = Outcome(0, "first", Path("/w/first"), None, (), {"val_loss": 1 / 3, "epochs": 3.0}, None)
    assert repr(done) == "<Outcome: run first ended with status 0; val_loss 0.333333; epochs 3>"
    calls = (UserCall("a.py:3 in main", "step(<x>)"), UserCall("a.py:9 in step"))
    cause = Diagnosis("script-exception", "observed", "KeyError: '<b>'", "why", ("`fix`",), 1, calls=calls)
    failed = replace(done, status=1, diagnosis=cause, metrics={}, record=None)
    assert repr(failed) == "<Outcome: run first ended with status 1; rank 1: KeyError: '<b>'>"
    assert failed._repr_html_() == (
        "<b>run first ended with status 1</b><br>rank 1: KeyError: &#x27;&lt;b&gt;&#x27;<br><code>no record</code>"
    )
    told = ["run first ended with status 1", "rank 1: KeyError: '<b>'"]
    story = ["    a.py:3 in main  step(<x>)", "    a.py:9 in step", "  why: why", "  fix: `fix`"]
    assert RunFailed(failed)._render_traceback_() == [f"RunFailed: {told[0]}", told[1], *story]


def test_metrics_are_numbers_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank-0.metrics.jsonl"
    current.log_metrics({"val_loss": 1.0})  # outside of a launch
    monkeypatch.setenv("DDPLAUNCH_METRICS", str(path))
    monkeypatch.setenv("RANK", "1")
    current.log_metrics({"val_loss": 1.0})
    assert not path.exists()
    monkeypatch.setenv("RANK", "0")
    current.log_metrics({"val_loss": 0.5, "bad": float("nan")}, step=3)
    assert path.read_text().startswith('{"metrics": {"val_loss": 0.5}, "step": 3, "at_s": ')
    with pytest.raises(ValueError, match="could not convert"):
        current.log_metrics({"val_loss": "low"})  # type: ignore[dict-item]
