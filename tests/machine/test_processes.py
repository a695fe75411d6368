"""Which processes are a run, and which are orphans, from made-up and real process tables."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.hosts.local.stop_run import Stopped
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.orphans import adopts_orphans, orphans_in
from ddplaunch.machine.processes.process_table import Process, process_table, read_process, start_s
from ddplaunch.machine.processes.run_processes import RunProcesses, is_launcher, runs_in, within
from ddplaunch.records.launchers import read_processes, still_running
from ddplaunch.ui.stop_view import stopped_text
from ddplaunch.values.variable_names import LAUNCH
from tests.records.fake_runs import StartRun, processes_json, record, unique

TORCHRUN = ("python", "-m", "torch.distributed.run", "train.py")
ELASTIC = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0", "RANK": "0", "MASTER_PORT": "29400"}
OURS = {"DDPLAUNCH_RUN_ID": "r"}


def process(pid: int, parent: int = 1, session: int = 0, **more: Any) -> Process:
    """A process with what matters."""
    given = {"state": "S", "start_ticks": pid, "uid": 7, "name": "python", "command": ("python", "train.py"), **more}
    return Process(pid=pid, parent=parent, session=session or pid, **given)


def table(*processes: Process) -> dict[int, Process]:
    """A process table with an init."""
    init = process(1, parent=0, uid=0, name="systemd", command=("/sbin/init",))
    return {each.pid: each for each in (init, *processes)}


RANK = process(20, parent=10, environment={**OURS, **ELASTIC})
LOADER = process(21, parent=20, session=20, environment={**OURS, **ELASTIC})
LAUNCHER = process(10, command=TORCHRUN, environment=OURS)
GUARDS = ("python", "-c", "from ddplaunch.agent.guard.guard …")
GUARD = process(11, parent=10, session=10, command=GUARDS, environment=OURS)


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        ("python -P -u -m torch.distributed.run --nnodes=1", True),
        ("/opt/python /opt/bin/torchrun train.py", True),
        ("/opt/python /opt/bin/accelerate launch train.py", True),
        ("/opt/python -u -m deepspeed.launcher.launch train.py", True),
        ("/opt/python -u train.py --launcher torchrun", False),
        ("/opt/python -m ddplaunch.examples.train_char", False),
        ("bash -c 'torchrun train.py'", False),
        ("/opt/python -m", False),
        ("", False),
    ],
)
def test_what_starts_ranks(command: str, launches: bool) -> None:
    assert is_launcher(process(5, command=tuple(shlex.split(command)))) is launches


def test_a_run_is_its_launcher_and_what_that_started() -> None:
    shell = process(30, name="bash", command=("bash",), environment=OURS)  # `plan --exports` was evaluated there
    renamed = process(22, parent=10, environment={})  # setproctitle writes over the environment
    forked = process(23, parent=10, command=TORCHRUN, environment=OURS)  # a rank that has the launcher's command line
    # what waits to become a rank is none
    spare = process(24, parent=10, name="ddplaunch-warm", environment={})
    hidden = process(25, parent=10, name="ddplaunch-warm", command=TORCHRUN, environment=OURS)
    seen = table(LAUNCHER, GUARD, RANK, LOADER, renamed, forked, spare, hidden, shell, process(31, parent=30))
    (run,) = runs_in(seen)
    assert run == RunProcesses("r", 7, (LAUNCHER,), (RANK, renamed, forked), (LOADER, spare, hidden), (GUARD,))
    assert within(seen, LOADER.pid) == {21, 20, 10, 1}
    assert runs_in(table(shell, process(31))) == ()


def test_a_program_that_a_rank_detached_is_no_rank() -> None:
    of_rank = {**OURS, **ELASTIC, "RANK": "3"}
    rank, detached = process(20, parent=10, environment=of_rank), process(15, start_ticks=90, environment=of_rank)
    for launchers in ((LAUNCHER,), ()):
        (run,) = runs_in(table(*launchers, rank, detached))
        assert (run.launchers, run.ranks, run.children) == (launchers, (rank,), (detached,))
        said = stopped_text(Stopped(run, (rank, detached), (), (), (), 0.1))
        assert "ended rank 3 and 1 child process" in said


def test_ranks_without_their_launcher_are_still_the_run() -> None:
    lost = process(20, environment={**OURS, **ELASTIC})
    late = process(23, session=20, environment={**OURS, **ELASTIC, "RANK": "1"})  # its rank may be gone as well
    (run,) = runs_in(table(lost, LOADER._replace(state="Z"), GUARD._replace(parent=1)))
    assert (run.ranks, run.children, run.guards) == ((lost,), (), (GUARD._replace(parent=1),))
    (run,) = runs_in(table(lost, LOADER, late))
    assert (run.launchers, run.ranks, run.children) == ((), (lost,), (LOADER, late))
    for ended in (lost, LAUNCHER):
        assert runs_in(table(ended._replace(state="Z"))) == ()


def test_a_run_within_a_run_is_another_run() -> None:
    inner = {**ELASTIC, "DDPLAUNCH_RUN_ID": "inner"}
    launcher = process(40, parent=20, session=20, command=TORCHRUN, environment=inner)
    rank = process(41, parent=40, environment=inner)
    runs = {run.run_id: run for run in runs_in(table(LAUNCHER, RANK, launcher, rank))}
    assert runs["r"].all == (LAUNCHER, RANK)
    assert runs["inner"].all == (launcher, rank)
    for marks in (inner, {**OURS, **ELASTIC, LAUNCH: "b"}):  # and when its launcher is gone
        alone = process(41, parent=20, environment=marks)
        assert [run.all for run in runs_in(table(LAUNCHER, RANK, alone))] == [(alone,), (LAUNCHER, RANK)]


def test_runs_of_one_id_are_told_apart_by_launch_and_user() -> None:
    def one(pid: int, launch: str, uid: int = 7) -> Process:
        return process(pid, uid=uid, command=TORCHRUN, environment={**OURS, LAUNCH: launch})

    assert [run.launchers for run in runs_in(table(one(12, "a"), one(11, "b"), one(10, "a")))] == [
        (one(11, "b"),),
        (one(10, "a"), one(12, "a")),  # two nodes of one run on this machine
    ]
    assert len(runs_in(table(one(10, "a"), one(11, "a", uid=8)))) == 2
    assert len(runs_in(table(one(10, "a"), process(20, environment={**OURS, **ELASTIC})))) == 1


def test_another_users_run_is_told_by_its_command_line() -> None:
    """Environments of others may not be read, command lines may."""
    command = ("python", "-m", "torch.distributed.run", "--rdzv-id=exp", "--logs-specs=ddplaunch", "--", "train.py")
    launcher, rank = process(10, uid=8, command=command, environment=None), process(20, parent=10, uid=8)
    assert runs_in(table(launcher, rank)) == (RunProcesses("exp", 8, (launcher,), (rank,)),)
    assert runs_in(table(process(10, command=TORCHRUN, environment=None), rank)) == ()
    other = process(10, command=(*TORCHRUN, "--rdzv-id=exp"), environment=None)
    assert runs_in(table(other, rank)) == ()
    plain = ("python", "-m", "torch.distributed.run", "--rdzv-id=exp", "--", "train.py", "--logs-specs=ddplaunch")
    assert runs_in(table(process(10, command=plain, environment={}), rank)) == ()


LOST = process(20, environment=ELASTIC)
GUARDED = {**OURS, **ELASTIC, LAUNCH: "a"}


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ((LOST,), [20]),
        ((LOST, process(21, parent=20, session=20, environment=ELASTIC), process(22, parent=21)), [20, 22, 21]),
        ((process(19, environment={**ELASTIC, "RANK": "1"}), LOST), [20, 19]),
        ((LOST, process(21, parent=20, state="Z"), process(22, parent=20, uid=8)), [20]),
        ((process(21, session=19, environment=ELASTIC),), [21]),  # a DataLoader worker whose rank is gone as well
        ((process(20, environment={**OURS, **ELASTIC}),), [20]),
        ((process(20, parent=0, environment=ELASTIC),), [20]),
        ((process(20, parent=10, environment=ELASTIC),), []),
        ((process(20, parent=10, environment=ELASTIC), process(10, command=TORCHRUN)), []),
        ((process(20, parent=10, environment=ELASTIC), process(10)), []),  # somebody's own launcher
        ((LOST, process(25, parent=10, environment=ELASTIC), process(10, command=TORCHRUN)), []),  # the run goes on
        ((process(20, environment=GUARDED), GUARD._replace(environment=GUARDED)), []),  # it is being ended
        ((process(20, environment={**GUARDED, LAUNCH: "b"}), GUARD._replace(environment=GUARDED)), [20]),
        ((process(20, name="tmux: server", command=("tmux",), environment=ELASTIC),), []),
        ((process(20, environment={**ELASTIC, "LOCAL_RANK": None}),), []),
        ((process(20, environment={**ELASTIC, "TORCHELASTIC_RUN_ID": None}),), []),
        ((process(20, state="Z", environment=ELASTIC),), []),
        ((process(20, environment=None),), []),
        ((process(20, command=TORCHRUN, environment=ELASTIC),), []),
    ],
)
def test_orphans(processes: tuple[Process, ...], found: list[int]) -> None:
    groups = orphans_in(table(*processes), adopts=lambda parent: parent.pid == 1)
    assert [each.pid for group in groups for each in group.processes] == found
    ours = processes[0].mark("DDPLAUNCH_RUN_ID")
    assert {group.kind for group in groups} <= {"ddplaunch" if ours else "torchrun"}


def test_processes_that_vanish_or_may_not_be_read(tmp_path: Path) -> None:
    gone, other, odd = tmp_path / "70", tmp_path / "71", tmp_path / "72"
    for place in (gone, other, odd):
        place.mkdir()
    (other / "stat").write_text(f"71 (a b) c) S 1 71 71 0 -1{' 0' * 13} 4711 0\n")
    (odd / "stat").write_text("72 (x) S\n")
    assert process_table(str(tmp_path)) == {
        71: Process(71, 1, 71, "S", 4711, os.getuid(), "a b) c", (), None)  # nobody may look into its environment
    }
    assert process_table(str(tmp_path / "nothing")) == {}
    me = read_process(os.getpid())
    assert me is not None and me == process_table()[os.getpid()]
    assert 0 <= time.time() - (start_s(me.start_ticks) or 0.0) < 86400


def test_a_process_that_is_becoming_a_rank_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """execve(2) lets the starter go on before arguments and environment can be read (seen 138 times of 300)."""
    place, waits = tmp_path / "80", []
    place.mkdir()

    def kernel_goes_on(_: float) -> None:
        waits.append(1)
        (place / "cmdline").write_bytes(b"python\0train.py\0")
        (place / "environ").write_bytes(b"RANK=3\0LOCAL_RANK=1\0")

    monkeypatch.setattr(time, "sleep", kernel_goes_on)
    # (flags, where its environment ends): becoming a rank; started with no variables; on its way out
    for number, (flags, env_end) in enumerate(((0, 0), (0, 140_000), (0x4, 0))):
        fields = ["R", 1, 80, 80, 0, -1, flags, *[0] * 12, 4711, *[0] * 28, env_end, 0]
        (place / "stat").write_text(f"80 (python) {' '.join(map(str, fields))}\n")
        for name in ("cmdline", "environ"):
            (place / name).write_bytes(b"")
        seen = read_process(80, str(tmp_path))
        assert seen is not None and len(waits) == 1
        assert (seen.command, seen.mark("RANK")) == ((("python", "train.py"), "3") if number == 0 else ((), None))


@pytest.mark.parametrize(
    ("name", "innermost", "maps", "adopts"),
    [
        ("systemd", "812", "", True),  # the user's own, a subreaper
        ("bash", "1", "", True),  # process 1 of a container
        ("bash", "812", "", False),
        ("python", "1", "7f00-7f01 r-xp 0 0:0 1 /env/torch/lib/libtorch_cpu.so", False),  # a launcher in a container
    ],
)
def test_who_adopts_orphans(tmp_path: Path, name: str, innermost: str, maps: str, adopts: bool) -> None:
    place = tmp_path / "812"
    place.mkdir()
    (place / "status").write_text(f"Name:\t{name}\nNSpid:\t812\t{innermost}\n")
    (place / "maps").write_text(f"{maps}\n")
    assert adopts_orphans(process(812, name=name), str(tmp_path)) is adopts
    assert adopts_orphans(process(1), str(tmp_path)) is True, "also where nothing of init may be read"
    assert orphans_in({20: LOST}, adopts_orphans)


@pytest.mark.root
def test_what_another_user_may_not_read_is_left_out(start_run: StartRun) -> None:
    run = start_run("private")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        seen = process_table()
        hidden = run.run_id not in {each.run_id for each in runs_in(seen)}
        os.write(writer, b"ok" if hidden and seen[run.rank_pids[0]].environment is None else b"no")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 2) == b"ok"


def test_recorded_processes_count_with_boot_and_start(tmp_path: Path) -> None:
    directory = record(tmp_path, unique("r"))
    processes_json(directory, launcher={"pid": 10, "start_time": 10})
    (node,) = read_processes(directory)
    assert node.launcher is not None
    ours = {"DDPLAUNCH_RUN_ID": directory.name}
    boot, launcher = boot_id(), process(10, environment=ours)
    assert still_running(node.launcher, node, table(launcher), boot) == launcher
    assert still_running(node.launcher, node, table(launcher), "another boot") is None
    assert still_running(node.launcher, node, table(process(10, environment={})), boot) is None
    renamed = process(10, parent=9, environment={})  # setproctitle wrote its title there
    for above, of_run in ((ours, True), ({"DDPLAUNCH_RUN_ID": "x"}, False)):
        assert (
            still_running(node.launcher, node, table(renamed, process(9, environment=above)), boot) is renamed
        ) is of_run
    other = process(10, parent=9, environment={"PATH": "/bin"})
    assert still_running(node.launcher, node, table(other, process(9, environment=ours)), boot) is None
    assert still_running(node.launcher, node, table(process(10, start_ticks=11, environment=ours)), boot) is None
