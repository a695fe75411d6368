"""Finds orphans, processes whose launcher is gone, and describes the processes that hold memory on GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ddplaunch.machine import files
from ddplaunch.machine.facts import GpuProcess
from ddplaunch.machine.processes.process_table import Process, ProcessTable, descendants, read_process
from ddplaunch.machine.processes.run_processes import is_guard, is_launcher, is_python, rank_of
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.secrets import hide_words
from ddplaunch.values.variable_names import LAUNCH, RUN_ID

#: Programs that adopt orphans without being process 1 (PR_SET_CHILD_SUBREAPER, prctl(2)).
_ADOPTERS = (
    *("systemd", "init", "tini", "docker-init", "dumb-init", "catatonit"),
    *("conmon", "containerd-shim", "s6-svscan"),
)


@dataclass(frozen=True)
class Orphans:
    """The processes that one dead launcher left behind: its adopted ranks and all their descendants."""

    run_id: str  # ddplaunch's run ID, else torchelastic's, which is "none" unless given
    kind: str  # "ddplaunch" or "torchrun"
    processes: tuple[Process, ...]


class _Run(NamedTuple):
    """The key of a run on this machine; ``which`` is ddplaunch's launch token, or the master port for torchrun."""

    uid: int
    kind: str
    run_id: str
    which: str = ""


def orphans_in(table: ProcessTable, adopts: Callable[[Process], bool]) -> tuple[Orphans, ...]:
    """Return what dead launchers left behind, by run. ``adopts`` tells whether a parent adopts orphans.

    In doubt a process is not an orphan: it must be a Python process started by torchelastic and adopted by a process
    that is not a launcher, and no rank of its run may still have its launcher. Other programs that a rank started and
    detached, such as a terminal multiplexer, are left alone; a detached Python server cannot be told from an orphan.
    """
    roots: dict[_Run, list[Process]] = {}
    looked_after: set[_Run] = set()
    for process in filter(lambda candidate: candidate.alive, table.values()):
        run_id = process.mark(RUN_ID)
        if run_id and (is_launcher(process) or is_guard(process)):
            looked_after.add(_Run(process.uid, "ddplaunch", run_id, process.mark(LAUNCH) or ""))
        run, parent = _run_of(process), table.get(process.parent)
        if run is None:
            continue
        if parent is not None and is_launcher(parent):
            looked_after.add(run)
        elif process.parent in (0, 1) if parent is None else adopts(parent):
            roots.setdefault(run, []).append(process)
    groups = ((run, [process for process in group if is_python(process)]) for run, group in sorted(roots.items()))
    return tuple(_orphans(run, group, table) for run, group in groups if group and run not in looked_after)


def _run_of(process: Process) -> _Run | None:
    """Return the run if the process is a rank or a rank's DataLoader worker, else None."""
    elastic_id, run_id = process.mark("TORCHELASTIC_RUN_ID"), process.mark(RUN_ID)
    if elastic_id is None or process.mark("LOCAL_RANK") is None or is_launcher(process):
        return None
    if run_id:
        return _Run(process.uid, "ddplaunch", run_id, process.mark(LAUNCH) or "")
    return _Run(process.uid, "torchrun", elastic_id, process.mark("MASTER_PORT") or "")


def _orphans(run: _Run, roots: list[Process], table: ProcessTable) -> Orphans:
    pids = {process.pid for process in roots}
    pids |= descendants(table, pids)
    processes = [table[pid] for pid in pids if table[pid].uid == run.uid and table[pid].alive]
    processes.sort(key=lambda process: (process.pid != process.session, rank_of(process)))
    return Orphans(run.run_id, run.kind, tuple(processes))


def adopts_orphans(process: Process, proc: str = "/proc") -> bool:
    """Return whether the kernel gives orphans to this process: init of the host or a container, or a known subreaper.

    A process that has loaded torch is a custom launcher instead, even as process 1 of a container.
    """
    status = files.read(f"{proc}/{process.pid}/status") or ""
    innermost = next((line.split()[-1] for line in status.splitlines() if line.startswith("NSpid")), "")
    if process.pid != 1 and innermost != "1" and not process.name.startswith(_ADOPTERS):
        return False
    return "libtorch" not in (files.read(f"{proc}/{process.pid}/maps") or "")


_COMMAND_LENGTH = 160


def gpu_process(pid: int, memory_bytes: int | None, proc: str = "/proc") -> GpuProcess:
    """Return what /proc shows of ``pid``; only the number if it is gone or in another pid namespace."""
    process = read_process(pid, proc)
    if process is None:
        return GpuProcess(pid, memory_bytes, None, None)
    user = files.owner_name(process.uid)
    return GpuProcess(pid, memory_bytes, user, command_text(process), _is_orphan(process, proc))


def command_text(process: Process) -> str:
    """Return the beginning of a command line in one line, without secrets; the program's name if it has none."""
    text = " ".join(hide_words(process.command)).strip() or f"[{process.name}]"
    return "".join(letter if letter.isprintable() else " " for letter in text[:_COMMAND_LENGTH])


def _is_orphan(process: Process, proc: str) -> bool:
    """Return whether the process is a rank, or a rank's DataLoader worker, that was adopted because its parent is gone.

    In a container torchrun itself may be process 1; a rank whose parent is 1 is then no orphan.
    """
    if process.mark("TORCHELASTIC_RUN_ID") is None:
        return False
    parent = read_process(process.parent, proc)
    return parent is not None and not is_launcher(parent) and adopts_orphans(parent, proc)
