"""The launcher's part over ssh: which launches follow which, with which hosts, and what it exits with."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.cli.hosts.plan_hosts import HostsMissingError, answering
from ddplaunch.cli.hosts.run_on_hosts import Again, LaunchEnd, progress_of, until_done
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.hosts.hostlist import Host
from ddplaunch.hosts.session.collect import Gathered
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.planning.hosts_plan import HostReport, sized
from ddplaunch.planning.options import Options, parse_options
from ddplaunch.planning.relaunch import RelaunchPolicy, RunProgress
from ddplaunch.records.launchers import Place, holding, launched_by_me, launcher_of, read_launched
from ddplaunch.records.outcome import AttemptOutcome, RunOutcome
from ddplaunch.values.finding import RefusedError, Severity, error
from ddplaunch.values.resolved import DEFAULT, Resolved
from ddplaunch.values.words import host_name
from tests.checks.healthy import healthy_facts

LIVED, SHORT = (RunProgress(90.0),), (RunProgress(3.0),)
POLICY = RelaunchPolicy(3, wait_s=0.0)
MISSING = error("host-unreachable", "gpu-b does not answer", why="w", fix="f", where="gpu-b")
HOSTS = (Host("gpu-a"), Host("gpu-b"), Host("gpu-c"))


class Launches:
    """Ends as it is told, launch by launch; what is an exception is raised."""

    def __init__(self, *ends: LaunchEnd | Exception) -> None:
        self._ends = list(ends)
        self.asked: list[tuple[int, str | None]] = []

    def __call__(self, again: Again) -> LaunchEnd:
        self.asked.append((again.number, again.of))
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


def test_until_it_has_done(capsys: pytest.CaptureFixture[str]) -> None:
    launches = Launches(LaunchEnd(137, "a", LIVED), LaunchEnd(1, "b", LIVED), LaunchEnd(0, "c"))
    assert until_done(launches, POLICY) == 0
    assert launches.asked == [(0, None), (1, "a"), (2, "b")]
    assert capsys.readouterr().err.count("because its ranks ran for 1 min 30 s") == 2


@pytest.mark.parametrize(
    ("ends", "status", "launched", "said"),
    [
        ([LaunchEnd(7, "a", SHORT)], 7, 1, "not relaunched: its ranks ran for 3.0 s"),
        ([LaunchEnd(130, "a")], 130, 1, ""),  # interrupted, or a time limit
        ([LaunchEnd(4)], 4, 1, ""),
        ([LaunchEnd(number, str(number), LIVED) for number in range(5, 9)], 8, 4, "`--relaunch 3` is used up"),
        ([LaunchEnd(7, "a", LIVED), LaunchEnd(4)], 7, 2, ""),  # a check objects now
        ([LaunchEnd(7, "a", LIVED), RefusedError(MISSING)], 7, 2, "nothing was launched"),
        ([LaunchEnd(7, "a", LIVED), *[HostsMissingError(MISSING)] * 3], 7, 4, "gpu-b does not answer"),
        ([LaunchEnd(7, "a", LIVED), HostsMissingError(MISSING), LaunchEnd(0, "b")], 0, 3, "relaunching 2 of 3"),
    ],
)
def test_ends(
    ends: Sequence[LaunchEnd | Exception], status: int, launched: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = Launches(*ends)
    assert until_done(launches, POLICY) == status
    assert len(launches.asked) == launched and said in capsys.readouterr().err
    assert launches.asked[-1][1] in (None, "a", "0", "7")  # the last run that there was


def test_hosts_that_were_lost_get_time_to_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    monkeypatch.setattr(time, "sleep", paused.append)
    launches = Launches(LaunchEnd(1, "a", LIVED, pause_s=35.0), HostsMissingError(MISSING), LaunchEnd(0, "b"))
    assert until_done(launches, RelaunchPolicy(3)) == 0
    assert paused == [35.0, 20.0]


def test_without_relaunches_there_is_one_launch() -> None:
    assert until_done(Launches(LaunchEnd(7, "a", LIVED)), None) == 7
    with pytest.raises(HostsMissingError):
        until_done(Launches(HostsMissingError(MISSING)), POLICY)


def whole(state: Any, code: str = "host-lost") -> RunOutcome:
    diagnosis = Diagnosis(code, "observed", "what", "why", ("fix",))
    return RunOutcome("r", "h", 0, state, 1, 0.0, 99.0, None, diagnosis, (), ())


def test_evidence_of_all_hosts(tmp_path: Path) -> None:
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-2" / "relaunch.json").write_text(json.dumps({"schema": 1, "advanced": "out/a.pt"}))
    outcomes = {
        node: RunOutcome("r", "h", node, "failed", 1, 0.0, 99.0, None, None, (), (attempt,))
        for node, attempt in (
            (0, AttemptOutcome(0, 1.0, 61.0, True, None, ())),
            (2, AttemptOutcome(0, 1.0, 62.0, True, None, ())),
        )
    }
    expected = (RunProgress(60.0), RunProgress(61.0, "out/a.pt"))
    assert progress_of(tmp_path, whole("failed"), outcomes, None) == expected
    assert progress_of(tmp_path, whole("killed"), {}, None) == ()
    assert progress_of(tmp_path, whole("failed"), outcomes, 2) is None
    assert progress_of(tmp_path, whole("failed", "time-limit"), outcomes, None) is None
    assert progress_of(tmp_path, whole("terminated"), outcomes, None) is None
    assert progress_of(tmp_path, whole("succeeded"), outcomes, None) is None


def test_hosts_that_answer_are_enough_or_not() -> None:
    reports = tuple(HostReport(name, healthy_facts(), "0.1") for name in ("gpu-a", "gpu-c"))
    some = Gathered(reports, (), (MISSING,))
    there, left_out = answering(HOSTS, some, 2)
    assert [host.name for host in there] == ["gpu-a", "gpu-c"]
    (warning,) = left_out
    assert (warning.code, warning.severity) == ("host-left-out", Severity.WARNING)
    assert warning.what == "gpu-b is left out of 3 hosts: gpu-b does not answer"
    with pytest.raises(HostsMissingError, match="gpu-b does not answer"):
        answering(HOSTS, some, 3)
    assert answering(HOSTS[::2], Gathered(reports, (), ()), 2) == (HOSTS[::2], ())


def test_sizes_are_those_of_the_hosts_that_answered() -> None:
    def said(**values: str) -> Options:
        options: dict[str, Any] = {name: Resolved(value, DEFAULT) for name, value in values.items()}
        return parse_options(options)

    for options in (said(nproc="4", nnodes="2:3"), said(nproc="3x4", nnodes="2:3"), said(nproc="3x4")):
        found = sized(replace(options, nnodes=None), ("gpu-a", "gpu-c"), (None, None))
        assert found.nnodes is not None and found.nproc is not None
        assert (found.nnodes.value, found.nproc.value) == ((2, 2), 4)
    found = sized(said(), ("gpu-a", "gpu-c"), (8, 8))
    assert found.nproc is not None and found.nproc.value == 8


def test_a_pause_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> int | None:
        launched = read_launched(tmp_path)
        assert launched is not None
        launcher = launcher_of(launched, process_table(), boot_id(), host_name())
        return None if launcher is None else launcher.pid

    seen: list[tuple[int | None, float]] = []
    really = time.sleep

    def pause(seconds: float) -> None:
        if threading.current_thread() is not threading.main_thread():
            return really(seconds)  # of something else in this process
        seen.append((found(), seconds))

    monkeypatch.setattr(time, "sleep", pause)
    with holding(launched_by_me(tmp_path, "a", (Place(0, "gpu-a", "python"),), 30.0)):
        pass
    ended = LaunchEnd(1, "a", LIVED, pause_s=35.0, directory=tmp_path)
    assert until_done(Launches(ended, LaunchEnd(0, "b")), POLICY) == 0
    assert seen == [(os.getpid(), 35.0)] and found() is None
