"""Sorts a table's processes into runs: launchers, ranks, their children, guards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ddplaunch.machine.processes.process_table import Process, ProcessTable, ancestors, descendants
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import LAUNCH, RUN_ID

_LAUNCHING_MODULES = ("torch.distributed", "accelerate", "deepspeed", "ddplaunch")
_LAUNCHING_PROGRAMS = ("torchrun", "accelerate", "deepspeed", "ddplaunch", "pt_elastic")
_GUARD = "ddplaunch.agent.guard.guard"
_SPARE = "ddplaunch-warm"  # a process that waits to become a rank, with --start warm


@dataclass(frozen=True)
class RunProcesses:
    """The live processes of one run on this machine.

    ``ranks`` were started by its launchers (one per node; a machine may be several nodes), ``children`` by the ranks
    (DataLoader workers); ``guards`` show and record what the ranks print.
    """

    run_id: str
    uid: int
    launchers: tuple[Process, ...] = ()
    ranks: tuple[Process, ...] = ()
    children: tuple[Process, ...] = ()
    guards: tuple[Process, ...] = ()
    launch: str = ""  # the launch's unique random token; empty if unknown

    @property
    def all(self) -> tuple[Process, ...]:
        """All processes, launchers first."""
        return (*self.launchers, *self.ranks, *self.children, *self.guards)

    @property
    def first(self) -> Process:
        """The most informative process of the run: a launcher if there is one."""
        return self.all[0]


def is_launcher(process: Process) -> bool:
    """Return whether the command line is that of a program that starts ranks."""
    words = process.command
    if not words:
        return process.name == "pt_elastic"
    if words[0].rpartition("/")[2] in _LAUNCHING_PROGRAMS:
        return True
    for position, word in enumerate(words[1:], 1):
        if word == "-m":
            module = words[position + 1] if position + 1 < len(words) else ""
            return module.startswith(_LAUNCHING_MODULES) and not module.startswith("ddplaunch.examples")
        if not word.startswith("-"):  # the script, or the value of an option (-W x), which does no harm
            return word.rpartition("/")[2] in _LAUNCHING_PROGRAMS
    return False


def is_guard(process: Process) -> bool:
    """Return whether the process is a guard, which ddplaunch starts beside torchrun to show and record the output."""
    return any(_GUARD in word for word in process.command)


def is_python(process: Process) -> bool:
    """Return whether the program is Python by its name: a rank, not another program that a rank detached."""
    program = process.command[0].rpartition("/")[2] if process.command else process.name
    return program.startswith(("python", "pypy", "pt_"))


def runs_in(table: ProcessTable) -> tuple[RunProcesses, ...]:
    """Return ddplaunch's runs, identified by the environment of their processes; the newest first.

    Only launchers, ranks and what they started belong to a run, not a shell in which a plan's variables were exported.
    Runs with the same ID are distinguished by user and launch.
    """
    named = [process for process in table.values() if process.alive and _run_id(process)]
    launchers = {
        process.pid: _key(process) for process in named if is_launcher(process) and not _copied(process, table)
    }
    runs: dict[_Key, dict[str, list[Process]]] = defaultdict(lambda: defaultdict(list))
    for pid, key in launchers.items():
        runs[key]["launchers"].append(table[pid])
    members = {process.pid for process in named if process.mark("LOCAL_RANK") is not None or is_guard(process)}
    members |= set(launchers) | descendants(table, members | set(launchers))
    for pid in sorted(members - set(launchers)):
        process = table[pid]
        owner = _owner(process, table, launchers, runs)
        if owner is not None and process.alive:
            part = "guards" if is_guard(process) else "ranks" if _is_rank(process, table, launchers) else "children"
            runs[owner][part].append(process)
    run_list = (_run(key, parts) for key, parts in runs.items())
    return tuple(sorted(run_list, key=lambda run: -run.first.start_ticks))


def _run(key: _Key, parts: Mapping[str, list[Process]]) -> RunProcesses:
    uid, run_id, launch = key
    ranks: dict[tuple[int, int], Process] = {}
    children = list(parts["children"])
    for process in sorted(parts["ranks"], key=lambda member: member.start_ticks):
        number = process.number("RANK")
        of_its_own = rank_of(process) if number is None else (number, 0)
        if ranks.setdefault(of_its_own, process) is not process:  # a program that the rank has detached
            children.append(process)
    return RunProcesses(
        run_id,
        uid,
        tuple(sorted(parts["launchers"], key=lambda member: member.start_ticks)),
        tuple(sorted(ranks.values(), key=rank_of)),
        tuple(children),
        tuple(parts["guards"]),
        launch,
    )


_Key = tuple[int, str, str]  # user, run ID, and the launch's token, which distinguishes launches with the same ID


def _key(process: Process) -> _Key:
    return process.uid, _run_id(process), process.mark(LAUNCH) or ""


def _run_id(process: Process) -> str:
    """Return ddplaunch's run ID, or an empty string.

    Another user's environment cannot be read, but command lines can: the launcher's contains the ID.
    """
    if process.environment is not None:
        return process.mark(RUN_ID) or ""
    if "--logs-specs=ddplaunch" not in process.command or not is_launcher(process):
        return ""
    return next((word.partition("=")[2] for word in process.command if word.startswith("--rdzv-id=")), "")


def _owner(process: Process, table: ProcessTable, launchers: Mapping[int, _Key], keys: Iterable[_Key]) -> _Key | None:
    """Return the run of a process that is below a launcher or has a run's variables; None if there is none."""
    own_key = _key(process)
    for ancestor in ancestors(table, process.pid):
        key = launchers.get(ancestor.pid)
        # without readable marks (setproctitle overwrites them) ancestry decides; other marks mean a run inside this one
        if key is not None and own_key[1] in ("", key[1]) and own_key[2] in ("", key[2]):
            return key
    if not own_key[1]:  # below a rank whose launcher is gone
        own_key = next((_key(ancestor) for ancestor in ancestors(table, process.pid) if _run_id(ancestor)), own_key)
    same = [key for key in keys if key[:2] == own_key[:2] and own_key[2] in ("", key[2])]
    return same[0] if same else own_key if own_key[1] else None


def _copied(process: Process, table: ProcessTable) -> bool:
    """Return whether the process is the launcher's fork, which is how ranks start with ``--start-method fork``."""
    parent = table.get(process.parent)
    return parent is not None and parent.command == process.command


def _is_rank(process: Process, table: ProcessTable, launchers: Mapping[int, _Key]) -> bool:
    """Return whether a launcher started it: a rank leads a session, and its DataLoader workers stay in that session."""
    if process.parent in launchers:
        return process.session == process.pid and process.name != _SPARE
    if process.mark("LOCAL_RANK") is None or process.session != process.pid:
        return False
    parent = table.get(process.parent)
    return parent is None or parent.mark("LOCAL_RANK") is None


def rank_of(process: Process) -> tuple[int, int]:
    """Return a sort key: the rank (a large number if unknown), then the pid."""
    rank = process.number("RANK")
    return (1 << 30 if rank is None else rank, process.pid)


def within(table: ProcessTable, pid: int) -> set[int]:
    """Return ``pid`` and its ancestors; a command that runs inside of them must never end them."""
    return {pid, *(process.pid for process in ancestors(table, pid))}
