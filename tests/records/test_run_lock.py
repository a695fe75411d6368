"""A live run id is refused, a finished one keeps its older record, and what is ended is known by the launch's token."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddplaunch.hosts.json_lines import GREETING, json_line, message_in
from ddplaunch.hosts.session.job import HostJob
from ddplaunch.machine.processes.process_table import process_table, read_process
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.planning.launch import Launch
from ddplaunch.records.find import read_record
from ddplaunch.records.old_records import old_records
from ddplaunch.records.own import run_lock
from ddplaunch.records.own.own_files import LOCK_ALONE, closing, try_lock
from ddplaunch.records.own.run_lock import Holder, end_with_this_program, hold_run, is_held, refuse_taken
from ddplaunch.records.run_states import live_run
from ddplaunch.records.write import write_record
from ddplaunch.values.finding import RefusedError
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.words import host_name
from tests.agent.guarded import runs
from tests.cli.cli_calls import Call
from tests.planning.sample_launch import facts, launch, two_nodes
from tests.records.fake_runs import StartRun, outcome, processes_json, record

ONE = launch(run_id="one")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_WAIT_S", 0.04)


def node(number: int | None) -> Launch:
    """Return node ``number`` of two; None is one of those that torchrun numbers."""
    first = two_nodes()
    rank = None if number is None else Resolved(number, Source("flag", "--node-rank"))
    return dataclasses.replace(first, run_id="one", topology=dataclasses.replace(first.topology, node_rank=rank))


def held_by_another_process(base: Path, holder: Holder, one: Launch) -> subprocess.Popen[str]:
    """Hold the run in a process that became another program, as ddplaunch becomes torchrun."""
    return subprocess.Popen(
        ["sleep", "300"], preexec_fn=lambda: hold_run(base, one, holder).pass_on(), close_fds=False, text=True
    )


@pytest.mark.parametrize(
    ("there", "theirs", "holder", "mine", "welcome"),
    [
        ("node", ONE, "node", ONE, False),
        ("launcher", ONE, "node", ONE, False),
        ("launcher", ONE, "host", node(0), True),  # its own
        ("host", node(0), "host", node(1), True),
        ("host", node(0), "host", node(0), False),
        ("node", node(0), "node", node(1), True),  # nodes of one launch, on one disk
        ("node", node(0), "node", node(0), False),
        ("node", node(0), "node", ONE, False),
        ("node", node(None), "node", node(None), True),  # torchrun numbers these
    ],
)
def test_who_may_have_the_id_of_a_live_run(
    tmp_path: Path, there: Holder, theirs: Launch, holder: Holder, mine: Launch, welcome: bool
) -> None:
    with held_by_another_process(tmp_path, there, theirs) as first:
        try:
            if welcome:
                refuse_taken(tmp_path, mine, holder)
                with hold_run(tmp_path, mine, holder) as held:
                    assert held.locks and held.unlocked is None
            for attempt in () if welcome else (refuse_taken, hold_run):
                with pytest.raises(RefusedError) as refused:
                    attempt(tmp_path, mine, holder)
                (finding,) = refused.value.findings
                assert finding.code == "run-id-in-use"
                assert finding.what == f"run one is live: pid {first.pid} on {host_name()} has it"
            assert is_held(tmp_path / "runs" / "one")
            with hold_run(tmp_path / "elsewhere", mine, holder) as held:
                assert held.locks, "an id of one's own in another directory"
        finally:
            first.kill()
    refuse_taken(tmp_path, mine, holder)
    assert not is_held(tmp_path / "runs" / "one")
    with hold_run(tmp_path, mine, holder):
        pass


def test_asking_makes_nothing(tmp_path: Path) -> None:
    refuse_taken(tmp_path, ONE)
    record(tmp_path, "one")
    before = sorted(tmp_path.rglob("*"))
    refuse_taken(tmp_path, ONE)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_has_just_ended_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard lets go a moment after torchrun."""
    monkeypatch.setattr(run_lock, "_WAIT_S", 60.0)
    with (
        held_by_another_process(tmp_path, "node", ONE) as first,
        subprocess.Popen(["sh", "-c", f"sleep 0.3; kill {first.pid}"]),
        hold_run(tmp_path, ONE) as held,
    ):
        assert held.locks


def test_a_disk_without_locks_is_named_and_the_record_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_run: StartRun
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with hold_run(tmp_path, ONE) as held:
        assert held.told("x") == "x; not locked: No locks available"
    run = start_run("unlocked", ranks=1)
    there = launch(run_id=run.run_id)
    seen = read_process(run.launcher.pid)
    assert seen is not None
    directory = record(tmp_path, run.run_id)
    processes_json(directory, launcher={"pid": seen.pid, "start_time": seen.start_ticks})
    for attempt in (refuse_taken, hold_run):
        with pytest.raises(RefusedError, match=f"pid {seen.pid} on this host has it"):
            attempt(tmp_path, there)
    processes_json(directory, launcher={"pid": seen.pid, "start_time": seen.start_ticks - 1})
    refuse_taken(tmp_path, there)


def test_what_a_rank_leaves_behind_does_not_hold_the_id(tmp_path: Path) -> None:
    held = hold_run(tmp_path, ONE)
    held.pass_on()
    try:
        assert all(os.get_inheritable(each) for each in held.locks) and len(held.locks) == 2
        end_with_this_program()
        assert not any(os.get_inheritable(each) for each in held.locks)
    finally:
        held.__exit__()


def test_a_held_record_is_not_cleaned(tmp_path: Path) -> None:
    outcome(record(tmp_path, "one", begun_s=time.time() - 3600))
    with held_by_another_process(tmp_path, "host", node(1)) as first:
        found = old_records(tmp_path, 0, (), host_name())
        assert found.removable == () and [reason for _, reason in found.kept] == ["it runs"]
        first.kill()
    assert len(old_records(tmp_path, 0, (), host_name()).removable) == 1


def begun(base: Path, one: Launch, holder: Holder = "node", shared: bool = False) -> str:
    """Launch as far as the record; return what the panel says of it."""
    with hold_run(base, one, holder, shared=shared) as held:
        noted = write_record(one, ("typed",), {}, facts(), (), base)
        assert isinstance(noted, Path)
        return held.told("RECORD")


def test_an_older_record_of_the_id_is_kept_and_named(tmp_path: Path) -> None:
    assert begun(tmp_path, ONE) == "RECORD"
    directory = tmp_path / "runs" / "one"
    (directory / "node-0" / "attempt-0").mkdir(parents=True)
    (directory / "node-0" / "attempt-0" / "rank-0.out").write_text("first")
    (directory / "flight-recorder-rank-0").write_text("first")
    outcome(directory)
    first = (directory / "run.json").read_text()
    assert begun(tmp_path, ONE) == "RECORD; the previous one is now in node-0/before-1"
    kept = directory / "node-0" / "before-1"
    assert (kept / "run.json").read_text() == first and (kept / "outcome.json").exists()
    assert (kept / "attempt-0" / "rank-0.out").read_text() == "first" and (kept / "flight-recorder-rank-0").exists()
    assert read_record(directory).outcomes == {} and not (directory / "node-0" / "attempt-0").exists()
    assert begun(tmp_path, ONE).endswith("node-0/before-2")


def test_nodes_on_one_disk_set_their_own_part_aside(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "one"
    for number in (0, 1):
        assert begun(tmp_path, node(number)) == "RECORD"
    second = (directory / "node-1" / "run.json").read_text()
    with closing(os.open(directory / ".lock-1", os.O_RDWR)) as lives:
        assert try_lock(lives, LOCK_ALONE)
        assert begun(tmp_path, node(0)).endswith("node-0/before-1")
        assert (directory / "node-1" / "run.json").read_text() == second
    assert begun(tmp_path, node(1)).endswith("node-1/before-1")
    assert begun(tmp_path, node(0)).endswith("node-0/before-2")  # node 1 may not come again
    assert (directory / "node-1" / "before-2" / "run.json").exists()


def test_a_launcher_sets_the_record_of_all_hosts_aside_and_its_hosts_do_not_touch_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "one"
    assert begun(tmp_path, node(0), "launcher") == "RECORD"
    outcome(directory)
    (directory / "node-0").mkdir(exist_ok=True)
    (directory / "node-0" / "outcome.json").write_text("node 0's own")
    (directory / "node-1" / "attempt-0").mkdir(parents=True)
    assert "before-1" in begun(tmp_path, node(0), "launcher")
    assert (directory / "node-1" / "before-1" / "attempt-0").exists()
    kept = directory / "node-0" / "before-1"
    assert (kept / "outcome.json").read_text() == "node 0's own" and (kept / "all-outcome.json").exists()
    mine = (directory / "run.json").read_text()
    assert begun(tmp_path, node(1), "host", shared=True) == "RECORD"
    assert (directory / "run.json").read_text() == mine


# Tokens


@pytest.fixture
def twins(start_run: StartRun) -> tuple[str, list[int], list[int]]:
    """Start two launches of one id; return it, and the pids of their ranks."""
    first = start_run("twin", ranks=1, DDPLAUNCH_LAUNCH="aaaa")
    second = start_run("twin", ranks=1, DDPLAUNCH_LAUNCH="bbbb", DDPLAUNCH_RUN_ID=first.run_id)
    return first.run_id, first.session_pids, second.session_pids


def test_two_launches_of_one_id_are_two_runs(twins: tuple[str, list[int], list[int]]) -> None:
    run_id, first, second = twins
    found = [run for run in runs_in(process_table()) if run.run_id == run_id]
    assert {run.launch: [each.pid for each in run.ranks] for run in found} == {"aaaa": first, "bbbb": second}
    assert [len(run.launchers) for run in found] == [1, 1]
    job = HostJob.__new__(HostJob)
    job._run = (run_id, os.geteuid(), "aaaa")
    left = {process.pid for process in job._left()}
    assert left >= set(first) and not left & set(second)


def test_what_lives_of_a_launch_is_not_that_of_another_directory(
    start_run: StartRun, call: Call, tmp_path: Path
) -> None:
    one = start_run("twin", ranks=1, DDPLAUNCH_LAUNCH="aaaa")
    directory = tmp_path / "other" / ".ddplaunch" / "runs" / one.run_id
    assert live_run(directory, os.getpid()) is None
    found = live_run(directory, one.launcher.pid)
    assert found is not None and found.launch == "aaaa"
    other = start_run("twin", ranks=1, DDPLAUNCH_LAUNCH="bbbb", DDPLAUNCH_RUN_ID=one.run_id)
    one.lose_launcher()
    assert live_run(directory, one.launcher.pid) is None
    (tmp_path / ".ddplaunch" / "runs" / one.run_id).mkdir(parents=True)
    assert live_run(tmp_path / ".ddplaunch" / "runs" / one.run_id, 0) is not None, "its record says so"
    assert call("clean", one.run_id, "--yes").status == 0
    assert not one.session_pids and all(map(runs, other.session_pids)), (
        "orphans end though another launch of the id lives"
    )


def test_stop_on_a_host_ends_the_launch_that_is_meant(twins: tuple[str, list[int], list[int]]) -> None:
    run_id, first, second = twins
    question = json_line({"what": "command", "words": ["stop", f"/{run_id}@aaaa", "--json", "--grace", "5"]})
    words = [sys.executable, "-m", "ddplaunch.cli.hosts.serve"]
    done = subprocess.run(words, input=question, capture_output=True, check=True)
    answer = message_in(done.stdout.removeprefix(GREETING))
    assert {each["pid"] for each in answer["ended"]} >= set(first)
    assert not any(map(runs, first)) and all(map(runs, second))
