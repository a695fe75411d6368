"""When a failed run is launched again as a whole, what tells that it got anywhere, and what is said of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.plugin.torchrun_end import progress_of, restored
from ddplaunch.cli.relaunching import claimed, or_status_before, relaunch_refused, told
from ddplaunch.hosts.roll_call.messages import Hello, hello_line, read_hello
from ddplaunch.machine.paths import NewestCheckpoint, advanced, is_checkpoint, newest_below
from ddplaunch.planning.options import parse_options
from ddplaunch.planning.relaunch import (
    NOT_RELAUNCHED,
    RELAUNCHED,
    RelaunchDecision,
    Relaunched,
    RelaunchOrder,
    RelaunchPolicy,
    RunProgress,
    decide,
    pause_s,
    read_relaunched,
    relaunched_id,
)
from ddplaunch.ui.outcome_view import asking_text, not_relaunched_text, relaunching_text
from ddplaunch.values import codec
from ddplaunch.values.finding import RefusedError, UsageError, error
from ddplaunch.values.resolved import DEFAULT, Resolved
from tests.hosts.roll_calls import hello

POLICY = RelaunchPolicy(3)


def asked(**said: Any) -> RelaunchPolicy | None:
    values: dict[str, Any] = {name: Resolved(value, DEFAULT) for name, value in said.items()}
    return parse_options(values).relaunch_policy


def test_what_was_asked_for() -> None:
    assert asked() is None and asked(relaunch=0) is None
    assert asked(relaunch=0, relaunch_after="5m") is None  # the profile's, and a flag that turns it off
    assert asked(relaunch=2) == RelaunchPolicy(2, 60.0, 10.0)
    assert asked(relaunch=2, relaunch_after="5m", relaunch_wait="1") == RelaunchPolicy(2, 300.0, 1.0)
    for name in ("relaunch_after", "relaunch_wait"):
        with pytest.raises(UsageError, match="without `--relaunch`"):
            asked(**{name: "5m"})
        with pytest.raises(UsageError, match="is not a length of time"):
            asked(relaunch=1, **{name: "soon"})


@pytest.mark.parametrize(
    ("progress", "number", "again", "reason"),
    [
        ([RunProgress(60.0)], 1, True, "lived"),
        ([RunProgress(59.9)], 1, False, "short"),
        ([RunProgress(0.1, "out/a.pt")], 3, True, "advanced"),
        ([RunProgress(7200.0, "out/a.pt")], 4, False, "spent"),
        ([RunProgress(None)], 1, False, "short"),
        ([RunProgress(None, "out/a.pt")], 1, True, "advanced"),
        # node 1 waited for node 0, which had failed at once
        ([RunProgress(3.0), RunProgress(630.0)], 1, False, "short"),
        # the checkpoint lies on the disk of one node
        ([RunProgress(3.0), RunProgress(3.2, "out/a.pt")], 1, True, "advanced"),
        ([RunProgress(None), RunProgress(90.0)], 1, True, "lived"),
    ],
)
def test_rule(progress: list[RunProgress], number: int, again: bool, reason: str) -> None:
    decision = decide(progress, POLICY, number)
    assert (decision.again, decision.reason) == (again, reason)


def test_pause_is_doubled_and_bounded() -> None:
    assert [pause_s(POLICY, number) for number in range(1, 8)] == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert (
        pause_s(RelaunchPolicy(1, wait_s=900.0), 1) == 900.0 and pause_s(RelaunchPolicy(9999, wait_s=0.0), 9999) == 0.0
    )


def test_a_relaunch_of_a_named_run_has_a_name_of_its_own() -> None:
    assert [relaunched_id("big", number) for number in range(3)] == ["big", "big-relaunch-1", "big-relaunch-2"]


def order(**changes: Any) -> RelaunchOrder:
    said = {
        "run_id": "r",
        "number": 1,
        "policy": POLICY,
        "command": ("/python", "-m", "ddplaunch", "run", "--", "a\udcff.py"),
        "restore": {"OMP_NUM_THREADS": None, "PATH": "/mine"},
        "outputs": (
            ("out", NewestCheckpoint("out/a.pt", 5, 6)),
            ("dead", NewestCheckpoint(problem="did not answer within 5 s")),
        ),
        "alone": True,
    }
    return RelaunchOrder(**{**said, **changes})


def test_order_survives_its_way_through_the_environment() -> None:
    assert codec.from_plain(codec.plain(order()), RelaunchOrder) == order()
    with pytest.raises(ValueError, match=r"Order\.number is missing"):
        codec.from_plain({"run_id": "r"}, RelaunchOrder)


def test_a_launch_inside_of_a_rank_takes_no_other_s_place() -> None:
    back = Relaunched(2, "r", 137, RunProgress(61.5, "out/a.pt"), 4711)
    text = codec.to_json(back)
    assert read_relaunched(text, 4711) == back
    assert read_relaunched(text, 4712) is None
    for broken in (None, "", "no json", "[]", '{"pid": 4711}', "4"):
        assert read_relaunched(broken, 4711) is None


def test_environment_is_that_of_the_first_launch() -> None:
    now = {"OMP_NUM_THREADS": "8", "PATH": "/changed", "DDPLAUNCH_AGENT": "{}", "KEPT": "1"}
    assert restored(now, order()) == {"PATH": "/mine", "KEPT": "1"}


def test_what_was_left_for_this_process_is_taken_once() -> None:
    back = Relaunched(2, "r", 137, RunProgress(61.5), os.getpid())
    shown = {"DDPLAUNCH_RUN_ID": "r", "DDPLAUNCH_AGENT": "{}"}
    environ = {RELAUNCHED: codec.to_json(back), **shown, "PATH": "/"}
    assert claimed(environ) == back and environ == {"PATH": "/"}
    environ = {RELAUNCHED: codec.to_json(replace(back, pid=os.getppid())), **shown}
    assert claimed(environ) is None and environ == shown  # this process is a rank's, and that one its launcher


def test_newest_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (before,) = newest_below([str(out)])
    assert before == NewestCheckpoint()
    (out / "deep").mkdir(parents=True)
    for name in ("train.log", "args.json", "events.out.tfevents.1", ".hidden.pt", "half.pt.tmp"):
        (out / name).write_text("x")
    (out / "wandb").mkdir()
    (out / "wandb" / "run.wandb").write_text("x")
    assert newest_below([str(out)]) == (NewestCheckpoint(),)  # none of these is a checkpoint
    (out / "old.pt").write_text("123")
    os.utime(out / "old.pt", ns=(5, 5))
    (first,) = newest_below([str(out)])
    assert first == NewestCheckpoint(str(out / "old.pt"), 5, 3)
    (out / "deep" / "model.safetensors").write_text("12")
    file, folder = newest_below([str(out / "old.pt"), str(out)])
    assert file == first and folder.path == str(out / "deep" / "model.safetensors")
    assert advanced(before, first) and advanced(first, folder)
    assert not advanced(folder, folder) and not advanced(folder, first)  # the newer one was removed
    assert advanced(first, NewestCheckpoint("same", 5, 4)) and not advanced(first, NewestCheckpoint())


def test_an_output_that_does_not_answer_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.machine.paths._newest_checkpoint", lambda path: time.sleep(60))
    (late,) = newest_below([str(tmp_path)], 0.05)
    assert late.problem == "did not answer within 0.05 s"
    assert not advanced(NewestCheckpoint(), late) and not advanced(late, NewestCheckpoint("a.pt", 1, 1))
    monkeypatch.setattr("ddplaunch.machine.paths._newest_checkpoint", lambda path: 1 / 0)
    assert "ZeroDivisionError" in (newest_below([str(tmp_path)])[0].problem or "")


def test_too_many_files_are_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplaunch.machine.paths._MOST", 2)
    for number in range(3):
        (tmp_path / f"{number}.pt").touch()
    assert newest_below([str(tmp_path)])[0].problem == "holds more than 2 files"


@pytest.mark.parametrize(
    "name", ["ckpt.pt", "model.safetensors", "pytorch_model.bin", "epoch=3.ckpt", "__0_0.distcp", ".metadata"]
)
def test_names_of_checkpoints(name: str) -> None:
    assert is_checkpoint(name) == (name != ".metadata")


def test_evidence_of_a_node(tmp_path: Path) -> None:
    (tmp_path / "a.pt").touch()
    here = order(
        outputs=(("dead", NewestCheckpoint(problem="did not answer within 5 s")), (str(tmp_path), NewestCheckpoint()))
    )
    assert progress_of(here, 8.0) == RunProgress(8.0, f"{tmp_path}/a.pt", "dead did not answer within 5 s")
    (now,) = newest_below([str(tmp_path)])
    assert progress_of(order(outputs=((str(tmp_path), now),)), None) == RunProgress()
    assert progress_of(order(outputs=()), None) == RunProgress(unseen="was not given")


def test_nodes_agree_in_the_roll_call() -> None:
    def heard(**failed: Any) -> Hello:
        found = read_hello(hello_line(hello(len(failed), failed=told(RunProgress(**failed)))).rstrip(b"\n"))
        assert found is not None
        return found

    short, long, newer = heard(lived_s=3.0), heard(lived_s=70.0), heard(lived_s=3.0, advanced="/secret/a.pt")
    refused = relaunch_refused({0: short, 1: long}, POLICY)
    assert refused is not None and refused.what.startswith("not relaunched: its ranks ran for 3.0 s, less than 1 min")
    assert relaunch_refused({0: short, 1: newer}, POLICY) is None
    assert newer.failed is not None and newer.failed["advanced"] == "a.pt"
    assert relaunch_refused({0: long, 1: long}, POLICY) is None
    assert relaunch_refused({0: short, 1: hello(1)}, POLICY) is None  # somebody started node 1 anew
    assert relaunch_refused({0: hello(0), 1: hello(1)}, None) is None


def test_a_refused_relaunch_keeps_the_status_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    back = Relaunched(1, "r", 137, RunProgress())

    def refuse() -> int:
        raise RefusedError(error("port-taken", "port 1 is taken", why="w", fix="f"))

    def silent() -> int:
        raise SystemExit(4)

    def leave() -> int:
        raise SystemExit(143)

    assert or_status_before(back, refuse) == 137
    assert "error[port-taken]" in capsys.readouterr().err

    def stay() -> int:
        raise RefusedError(error(NOT_RELAUNCHED, "not relaunched: it failed at once", why="w", fix="f"))

    assert or_status_before(back, stay) == 137
    assert capsys.readouterr().err == "ddplaunch: not relaunched: it failed at once\n"
    assert or_status_before(back, silent) == or_status_before(back, lambda: 4) == 137
    assert or_status_before(back, lambda: 0) == 0
    with pytest.raises(SystemExit, match="143"):
        or_status_before(back, leave)


def test_words(golden: Callable[[str, str], None]) -> None:
    long, short = RunProgress(7384.0), RunProgress(3.21)
    newer = RunProgress(3.21, "out/checkpoints/epoch-12.pt")
    dead = RunProgress(3.21, None, "/mnt/runs did not answer within 5 s")
    golden(
        "relaunch-80",
        "".join(
            (
                relaunching_text(decide([long], POLICY, 1), POLICY, 1, 80),
                relaunching_text(decide([newer], POLICY, 3), POLICY, 3, 80),
                relaunching_text(decide([long], POLICY, 1), POLICY, 1, 80, at_least_s=35.0),
                asking_text(short, POLICY, 2, 80),
                asking_text(newer, POLICY, 2, 80),
                *(
                    not_relaunched_text(each, POLICY, 80)
                    for each in (
                        decide([short], POLICY, 1),
                        decide([dead], POLICY, 1),
                        decide([RunProgress(unseen="was not given")], POLICY, 1),
                        RelaunchDecision(False, "spent", long),
                    )
                ),
            )
        ),
    )
