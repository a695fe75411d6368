"""Which processes of a table make up which run, and which of them nobody looks after; refuses to signal any."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ddplaunch.frozen import dataclass
from ddplaunch.probes import files
from ddplaunch.probes.process_table import Process, Table, ancestors, descendants

#: Programs that adopt orphans without being process 1 (PR_SET_CHILD_SUBREAPER, prctl(2)).
_ADOPTERS = (
    "systemd",
    "init",
    "tini",
    "docker-init",
    "dumb-init",
    "catatonit",
    "conmon",
    "containerd-shim",
    "s6-svscan",
)
_LAUNCHING_MODULES = ("torch.distributed", "accelerate", "deepspeed", "ddplaunch")
_LAUNCHING_PROGRAMS = ("torchrun", "accelerate", "deepspeed", "ddplaunch", "pt_elastic")
_GUARD = "ddplaunch.agent.guard"


@dataclass(frozen=True)
class RunProcesses:
    """The live processes of one run on this machine. ``ranks`` are what the launcher started, ``children`` what
    those did (DataLoader workers); ``guard`` shows and records what the ranks print.
    """

    run_id: str
    launcher: Process | None
    ranks: tuple[Process, ...]
    children: tuple[Process, ...]
    guard: Process | None = None

    @property
    def all(self) -> tuple[Process, ...]:
        """Everything, the launcher first."""
        launcher = () if self.launcher is None else (self.launcher,)
        guard = () if self.guard is None else (self.guard,)
        return (*launcher, *self.ranks, *self.children, *guard)


@dataclass(frozen=True)
class Orphans:
    """What one dead launcher left: ``ranks`` whose parent is whoever adopts orphans, and everything below them."""

    run_id: str  # ddplaunch's, else torchelastic's, which is "none" unless somebody names it
    kind: str  # "ddplaunch", "torchrun", "deepspeed"
    processes: tuple[Process, ...]


def is_launcher(process: Process) -> bool:
    """Return whether the command line is that of something that starts ranks, as opposed to a rank."""
    words = process.command
    if not words:
        return process.name == "pt_elastic"
    if words[0].rpartition("/")[2] in _LAUNCHING_PROGRAMS:
        return True
    for position, word in enumerate(words[1:], 1):
        if word == "-m":
            module = words[position + 1] if position + 1 < len(words) else ""
            return module.startswith(_LAUNCHING_MODULES) and not module.startswith("ddplaunch.examples")
        if not word.startswith("-"):  # the script; an option's value (-W x) is not worth knowing
            return word.rpartition("/")[2] in _LAUNCHING_PROGRAMS
    return False


def is_guard(process: Process) -> bool:
    """Return whether it is what ddplaunch starts beside torchrun to show and record what the ranks print."""
    return any(_GUARD in word for word in process.command)


def runs_in(table: Table) -> dict[str, RunProcesses]:
    """Return ddplaunch's runs by run id, as the environment of their processes names them.

    A shell in which the variables of a plan were exported is not part of the run: only launchers, ranks, and what
    they started.
    """
    named: dict[str, list[Process]] = {}
    for process in table.values():
        run_id = process.mark("DDPLAUNCH_RUN_ID")
        if run_id and process.alive:
            named.setdefault(run_id, []).append(process)
    found = {run_id: _run(run_id, processes, table) for run_id, processes in named.items()}
    return {run_id: run for run_id, run in found.items() if run.launcher is not None or run.ranks}


def _run(run_id: str, named: list[Process], table: Table) -> RunProcesses:
    launchers = {
        process.pid: process for process in named if is_launcher(process) and not _below_launcher(process, table)
    }
    launcher = min(launchers.values(), key=lambda process: process.start_ticks, default=None)
    below = descendants(table, set(launchers))
    ranks, children, guard = [], [], None
    own = {process.pid for process in named if process.mark("LOCAL_RANK") is not None} | below
    own |= descendants(table, own) | {process.pid for process in named if is_guard(process)}
    for pid in sorted(own - set(launchers)):
        process = table[pid]
        if _foreign(process, run_id) or not process.alive:
            continue
        if is_guard(process):
            guard = process
        elif _is_rank(process, table, launchers, run_id):
            ranks.append(process)
        else:
            children.append(process)
    return RunProcesses(run_id, launcher, tuple(sorted(ranks, key=rank_of)), tuple(children), guard)


def _below_launcher(process: Process, table: Table) -> bool:
    """Whether it is a copy of the launcher made by fork, which is how ranks start with ``--start-method fork``."""
    parent = table.get(process.parent)
    return parent is not None and parent.command == process.command


def _foreign(process: Process, run_id: str) -> bool:
    """Whether it belongs to a run inside this one. Without readable marks (setproctitle overwrites them) descent
    decides.
    """
    return process.mark("DDPLAUNCH_RUN_ID") not in (None, run_id)


def _is_rank(process: Process, table: Table, launchers: dict[int, Process], run_id: str) -> bool:
    if process.parent in launchers:
        return process.session == process.pid
    if process.mark("LOCAL_RANK") is None:
        return False
    if process.session != process.pid:  # the session of a rank that is gone: a DataLoader worker of it
        return False
    parent = table.get(process.parent)
    return parent is None or parent.mark("DDPLAUNCH_RUN_ID") != run_id or parent.mark("LOCAL_RANK") is None


def rank_of(process: Process) -> tuple[int, int]:
    """Return the rank for sorting and naming, a large number where it is not known; then the pid."""
    text = process.mark("RANK") or ""
    return (int(text) if text.isdecimal() else 1 << 30, process.pid)


def orphans_in(table: Table, adopts: Callable[[Process], bool]) -> tuple[Orphans, ...]:
    """Return what dead launchers left, by run. ``adopts`` tells whether a parent is one that adopts orphans.

    In doubt a process is no orphan: it has to be a Python process that torchelastic or deepspeed started, adopted by
    somebody who is no launcher, and no rank of the same run may have its launcher still. What a rank detached on
    purpose (a server, a terminal) is thereby left alone.
    """
    roots: dict[tuple[int, str, str, str], list[Process]] = {}
    looked_after: set[tuple[int, str, str, str]] = set()
    for process in table.values():
        if (
            (run_id := process.mark("DDPLAUNCH_RUN_ID"))
            and process.alive
            and (is_launcher(process) or is_guard(process))
        ):
            looked_after.add((process.uid, "ddplaunch", run_id, ""))
        key = _run_key(process)
        if key is None or not process.alive:
            continue
        parent = table.get(process.parent)
        if parent is None or (not is_launcher(parent) and adopts(parent)):
            if parent is not None or process.parent in (0, 1):
                roots.setdefault(key, []).append(process)
        elif is_launcher(parent):
            looked_after.add(key)
    return tuple(
        _orphans(key, found, table)
        for key, found in sorted(roots.items())
        if key not in looked_after and _python(found)
    )


def _run_key(process: Process) -> tuple[int, str, str, str] | None:
    """Return user, kind, run id and port of the rank or DataLoader worker that this is, None if it is neither."""
    if process.mark("LOCAL_RANK") is None or is_launcher(process):
        return None
    port = process.mark("MASTER_PORT") or ""
    elastic = process.mark("TORCHELASTIC_RUN_ID")
    if elastic is not None:
        ours = process.mark("DDPLAUNCH_RUN_ID")
        return (process.uid, "ddplaunch", ours, "") if ours else (process.uid, "torchrun", elastic, port)
    if process.mark("CROSS_RANK") is not None and process.mark("LOCAL_SIZE") is not None:
        return (process.uid, "deepspeed", "none", port)
    return None


def _python(processes: Iterable[Process]) -> list[Process]:
    return [process for process in processes if _is_python(process)]


def _is_python(process: Process) -> bool:
    program = process.command[0].rpartition("/")[2] if process.command else process.name
    return program.startswith(("python", "pypy", "pt_"))


def _orphans(key: tuple[int, str, str, str], roots: list[Process], table: Table) -> Orphans:
    pids = {process.pid for process in _python(roots)}
    pids |= descendants(table, pids)
    processes = [table[pid] for pid in pids if table[pid].uid == key[0] and table[pid].alive]
    return Orphans(
        key[2], key[1], tuple(sorted(processes, key=lambda process: (process.pid != process.session, rank_of(process))))
    )


def adopts_orphans(process: Process, proc: str = "/proc") -> bool:
    """Return whether orphans are given to this process: init, here or of a container, or a known subreaper.

    One that has loaded torch is a launcher of somebody's own making instead, also where it is process 1 of a container.
    """
    innermost = next(
        (
            line.split()[-1]
            for line in (files.read(f"{proc}/{process.pid}/status") or "").splitlines()
            if line[:5] == "NSpid"
        ),
        "",
    )
    if process.pid != 1 and innermost != "1" and not process.name.startswith(_ADOPTERS):
        return False
    return "libtorch" not in (files.read(f"{proc}/{process.pid}/maps") or "")


def within(table: Table, pid: int) -> set[int]:
    """Return ``pid`` and its ancestors: what a command must never end, because it runs inside of them."""
    return {pid, *(process.pid for process in ancestors(table, pid))}
