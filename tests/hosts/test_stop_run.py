"""One run is ended, and nothing else: pid, start time and run id have to agree at the moment of the signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.hosts.json_lines import GREETING
from ddplaunch.hosts.local.stop_run import HostStopped, Stopped, ask_hosts, stop_resident, stop_run
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.processes.process_table import Process, process_table, read_process
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.machine.processes.stop_processes import is_same, send_signal, wait_gone
from ddplaunch.records.launchers import Launched, Place
from ddplaunch.ui.stop_view import begin_text, stop_findings, stopped_text
from tests.agent.guarded import runs
from tests.cli.cli_calls import Call
from tests.hosts.launching import ddplaunch
from tests.records.fake_runs import StartRun, outcome, processes_json, record, unique, wait_for


def seen(pid: int) -> Process:
    process = read_process(pid)
    assert process is not None
    return process


@pytest.mark.parametrize("old_kernel", [False, True])
def test_a_recycled_pid_is_not_signalled(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch, old_kernel: bool
) -> None:
    def no_pidfd(_: int) -> int:
        raise OSError(38, "Function not implemented")

    if old_kernel:
        monkeypatch.setattr(os, "pidfd_open", no_pidfd)
    rank = seen(start_run("recycled", ranks=1).rank_pids[0])
    assert rank.environment is not None
    earlier = rank._replace(start_ticks=rank.start_ticks - 1)  # the pid was somebody else's before
    stranger = rank._replace(environment={**rank.environment, "DDPLAUNCH_RUN_ID": "another"})
    for other in (earlier, stranger):
        assert send_signal(other, signal.SIGKILL) == "other" and not is_same(other)
    assert runs(rank.pid)
    assert send_signal(rank, signal.SIGKILL) == "sent" and wait_gone([rank], 30) == []
    if not old_kernel:  # a zombie until its parent looks
        assert wait_for(lambda: send_signal(rank, signal.SIGKILL) in ("gone", "sent"))


def test_of_a_run_that_has_ended_or_that_never_was_nothing_is_ended(call: Call, folder: Path) -> None:
    directory = record(folder / ".ddplaunch", unique("forged"))
    with subprocess.Popen(["sleep", "120"]) as bystander:
        start = seen(bystander.pid).start_ticks
        rank = {"rank": 0, "local_rank": 0, "pid": bystander.pid, "start_time": start}
        processes_json(directory, launcher={"pid": bystander.pid, "start_time": start - 5}, ranks=[rank])
        said = call("stop", directory.name)
        assert (said.status, said.err) == (0, f"{directory.name}: nothing of it runs on this host\n")
        assert runs(bystander.pid)
        bystander.kill()
    said = call("stop", unique("never"))
    assert said.status == 2 and "error[run-not-found]" in said.err
    assert call("stop", "x", "--grace", "soon").status == 2
    directory = record(folder / ".ddplaunch", unique("two"))
    processes_json(directory, host="node-9")
    said = call("stop", directory.name)
    assert said.status == 1 and f"`ssh node-9 ddplaunch stop {directory.name}`" in said.err
    outcome(directory)
    said = call("stop", directory.name)
    assert (said.status, said.err) == (0, f"{directory.name}: nothing of it runs on this host\n")


def test_a_run_is_stopped_from_another_directory_and_others_go_on(start_run: StartRun, call: Call) -> None:
    run, other = start_run("stop", "worker"), start_run("other")
    pids = [run.launcher.pid, *run.session_pids]
    assert len(pids) == 5  # torchrun, two ranks, a child of each
    said = call("stop", run.run_id)
    assert said.status == 0 and said.out == ""
    assert f"SIGTERM to torchrun (pid {run.launcher.pid})" in said.err
    assert "ended torchrun, ranks 0, 1 and 2 child processes" in " ".join(said.err.split())
    assert not any(runs(pid) for pid in pids)
    assert all(runs(pid) for pid in [other.launcher.pid, *other.rank_pids])
    part = other.run_id[:-3]
    assert json.loads(call("stop", part, "--json").out)["stopped"] is True
    assert not any(runs(pid) for pid in [other.launcher.pid, *other.rank_pids])


@pytest.mark.parametrize("lost", [None, {}], ids=["environment unreadable", "environment empty"])
def test_a_rank_on_its_way_out_is_still_called_a_rank(
    lost: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its environment is gone before its memory is, which took 176 ms for 400 MiB on a busy machine."""
    marks = {"DDPLAUNCH_RUN_ID": "r", "DDPLAUNCH_LAUNCH": "t"}
    torchrun = Process(1 << 23, 1, 1 << 23, "S", 5, 7, "python", ("torchrun",), marks)
    rank = Process((1 << 23) + 1, 1 << 23, (1 << 23) + 1, "S", 6, 7, "python", ("train.py",), {**marks, "RANK": "1"})
    leaving = rank._replace(state="R", command=(), environment=lost)
    tables = iter(({torchrun.pid: torchrun, rank.pid: leaving}, {}))
    monkeypatch.setattr("ddplaunch.hosts.local.stop_run.process_table", lambda: next(tables))
    (run,) = runs_in({torchrun.pid: torchrun, rank.pid: rank})
    stopped = stop_run(run, 60.0)
    assert "torchrun and rank 1" in stopped_text(stopped)


def test_what_does_not_listen_is_killed_after_the_grace(start_run: StartRun, call: Call) -> None:
    run = start_run("deaf", "deaf", "worker")
    pids = [run.launcher.pid, *run.session_pids]
    begun = time.monotonic()
    said = call("stop", run.run_id, "--grace", "0.2", "--json")
    assert time.monotonic() - begun >= 0.2
    data = json.loads(said.out)
    assert said.status == 0 and data["stopped"] is True and data["remaining"] == []
    assert {each["pid"] for each in data["ended"]} >= set(run.rank_pids)
    assert all(each["by"] == "SIGKILL" for each in data["ended"] if each["pid"] in run.rank_pids)
    assert not any(runs(pid) for pid in pids)


def test_ranks_without_their_launcher_are_asked_themselves(start_run: StartRun, call: Call) -> None:
    run = start_run("lost")
    run.lose_launcher()
    said = call("stop", run.run_id)
    assert said.status == 0 and "torchrun is gone; SIGTERM to ranks 0, 1" in said.err
    assert not any(runs(pid) for pid in run.rank_pids)


@pytest.mark.parametrize("own_grace_s", [30.0, 0.1])
def test_the_launcher_of_hosts_kills_when_this_grace_is_over_or_is_killed(
    monkeypatch: pytest.MonkeyPatch, own_grace_s: float
) -> None:
    monkeypatch.setattr("ddplaunch.hosts.local.stop_run._RESIDENT_S", 60.0 if own_grace_s == 30 else 0.1)
    program = "trap '' TERM; trap 'exit 0' INT; echo up; while :; do sleep 0.05; done"
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline() == b"up\n"
        launcher = seen(started.pid)
        run = RunProcesses("r", launcher.uid, (launcher,))
        stopped = stop_resident(run, launcher, 0.1, own_grace_s)
        assert (stopped.ended, stopped.killed) == (((launcher,), ()) if own_grace_s == 30 else ((), (launcher,)))
        monkeypatch.setattr("ddplaunch.hosts.local.stop_run.send_signal", lambda *_: "denied")
        assert stop_resident(run, launcher, 0.1, own_grace_s).denied == (launcher,)
        assert stopped.remaining == stopped.denied == () and started.wait(60) == (0 if own_grace_s == 30 else -9)


def test_hosts_tell_how_their_part_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = json.dumps({"ended": [{"pid": 7, "by": "itself"}], "remaining": [{"pid": 8}]})
    answers = f"printf '\\0{GREETING[1:-1].decode()}\\n'; read order; echo '{ended}'"
    monkeypatch.setattr(
        EachHost,
        "_start",
        lambda self, name: self._links.open(name, ["bash", "-c", answers if name == "a" else "exit 9"]),
    )
    places = tuple(Place(node, name, "python", "/runs/r") for node, name in enumerate("ab"))
    launched = Launched("r", tmp_path, "here", "boot", 1, 1, places)
    first, second = ask_hosts(launched, 1.0)
    assert first == HostStopped("a", ({"pid": 7, "by": "itself"},), ({"pid": 8},))
    monkeypatch.setattr(EachHost, "_start", lambda *_: Path("/no/ssh").read_text())
    problems = [each.problem and each.problem.code for each in ask_hosts(launched, 1.0)]
    assert problems == ["ssh-missing"] * 2
    assert second.host == "b" and second.problem is not None and second.problem.code == "host-session-failed"


def test_what_is_left_is_a_finding_with_a_fix() -> None:
    run = RunProcesses("r", 0, (Process(10, 1, 10, "S", 10, 0, "python", ("torchrun",), {"DDPLAUNCH_RUN_ID": "r"}),))
    denied = Stopped(run, (), (), run.all, run.all, 0.0)
    (finding,) = stop_findings("r", denied, ())
    assert finding.code == "not-permitted" and "sudo ddplaunch stop r" in finding.fix
    stuck = run.launchers[0]._replace(state="D")
    (finding,) = stop_findings("r", replace(denied, remaining=(stuck,), denied=()), ())
    assert (finding.code, finding.what) == ("does-not-end", "SIGKILL did not end torchrun")
    assert "takes no signal" in finding.why and "-p 10" in finding.fix
    assert stopped_text(denied) == "not stopped r after 0.0 s: still running: torchrun\n"
    assert begin_text(run, 35.0) == "r: SIGTERM to torchrun (pid 10), SIGKILL after 35 s\n"
    assert stop_findings("r", replace(denied, remaining=(), denied=()), ()) == ()
    ranks = tuple(Process(100 + n, 10, 100 + n, "S", 5, 0, "python", ("python",), {"RANK": str(n)}) for n in range(64))
    worker = Process(300, 100, 100, "S", 6, 0, "pt_data_worker", ("python",), {"RANK": "9" * 5000})
    told = stopped_text(Stopped(run, (*run.launchers, *ranks, worker), (), (), (), 0.2))
    assert told.endswith(": ended torchrun, ranks 0-63 and 1 child process\n")


@pytest.mark.root
def test_another_users_run_is_not_ended(start_run: StartRun, tmp_path: Path) -> None:
    """As nobody, whose table shows the run of root without its environment: there is no such run to stop."""
    run = start_run("roots")
    rank = seen(run.rank_pids[0])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os.write(writer, send_signal(rank._replace(environment=None), signal.SIGKILL).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"denied"
    assert runs(rank.pid)


#: Ignores the SIGTERM that the kernel sends a forked rank when its torchrun is gone.
LOOP = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("rank", os.environ["RANK"], "begins", flush=True)
os.fork()
time.sleep(300)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_real_run_that_lost_torchrun_and_guard_is_cleaned(folder: Path, call: Call, start: str) -> None:
    (folder / "loop.py").write_text(LOOP)

    def listed() -> dict[str, Any]:
        runs = json.loads(call("ps", "--json").out)["runs"]
        return next(run for run in runs if run["run_id"] == run_id)

    run_id = unique("orphans")
    flags = ("run", "2", "--device", "cpu", "--start", start, "--show", "all", "--run-id", run_id, "--", "loop.py")
    with subprocess.Popen(ddplaunch(*flags), cwd=folder, stdout=subprocess.PIPE) as launched:
        for _ in range(2):
            assert launched.stdout is not None and launched.stdout.readline().endswith(b" begins\n")
        assert len(listed()["ranks"]) == 2
        assert listed()["state"] == "running" and listed()["launcher_pids"] == [launched.pid]
        (run,) = [each for each in runs_in(process_table()) if each.run_id == run_id]
        for process in (*run.guards, *run.launchers):  # as the OOM killer may
            os.kill(process.pid, signal.SIGSTOP)
        for process in (*run.guards, *run.launchers):
            os.kill(process.pid, signal.SIGKILL)
        launched.wait(120)
    assert wait_for(lambda: listed()["state"] == "orphaned")
    assert json.loads(call("clean", run_id, "--yes", "--json").out)["done"] is True
    assert wait_for(lambda: not any(runs(process.pid) for process in run.all))
    assert call("clean", run_id).out == f"nothing to clean: no orphans of run {run_id}\n"
