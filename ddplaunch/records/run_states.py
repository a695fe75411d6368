"""The state and summary of each run of this machine, from records and live processes together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from ddplaunch.machine.files import owner_name
from ddplaunch.machine.processes.process_table import ProcessTable, process_table, start_s
from ddplaunch.machine.processes.run_processes import RunProcesses, is_python, runs_in
from ddplaunch.planning.settings import Settings
from ddplaunch.records.find import RunRecord, read_record, run_directories
from ddplaunch.records.json_files import as_text, as_whole
from ddplaunch.records.launchers import (
    NodeProcesses,
    held_by,
    read_launched,
    read_processes,
    residents_in,
    with_residents,
)
from ddplaunch.records.outcome import read_findings
from ddplaunch.records.own.own_files import foreign
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import SETTINGS, TRIAL
from ddplaunch.values.words import own_id

#: "running": its launcher lives here. "orphaned": ranks live here, but not their launcher. "elsewhere": no outcome, and
#: started on another host. "ended": nothing of it runs here, and how it ended was not written. "unreadable": the record
#: was written by a newer ddplaunch or is damaged.
State = Literal[
    "running", "orphaned", "succeeded", "failed", "terminated", "killed", "ended", "elsewhere", "unreadable"
]


def state_of(
    record: RunRecord | None, processes: RunProcesses | None, nodes: tuple[NodeProcesses, ...], host: str
) -> State:
    """Return the state. Live processes outrank the outcome: a node may end before the others do."""
    if processes is not None:
        return "running" if processes.launchers or processes.guards else "orphaned"
    if record is None:
        return "ended"
    if record.outcome is not None:
        return record.outcome.state
    if record.problem is not None:
        return "unreadable"
    hosts = {node.host for node in nodes} or {record.host or ""}
    return "elsewhere" if hosts - {host, ""} else "ended"


def _hosts_of(record: RunRecord | None, nodes: tuple[NodeProcesses, ...], host: str) -> tuple[str, ...]:
    """Return the hosts of a run by node, as far as the record names them; if it names none, the launching host."""
    named = {node.node: node.host for node in nodes if node.host}
    for number, outcome in (record.outcomes if record is not None else {}).items():
        if outcome.host:
            named.setdefault(number, outcome.host)
    if not named:
        first = record.host if record is not None else host
        return () if first is None else (first,)
    return tuple(dict.fromkeys(named[number] for number in sorted(named)))


@dataclass(frozen=True)
class RankProcess:
    """A rank that lives here; ``rank`` is None if its environment does not tell."""

    rank: int | None
    pid: int


@dataclass(frozen=True)
class RunSummary:
    """One run, for a line of a table. Times are in seconds since the epoch; None and empty mean "not known".

    ``exit_status``, ``first_failed_rank`` and ``diagnosis`` (a code) are the outcome's; ``ranks`` are those on this
    host. ``findings`` say where its ranks do not train as planned. ``trial`` is group and name (``scale-x7k2q9/2``), if
    the run is a trial. ``sizes`` are the numbers of ranks per node, if they differ.
    """

    run_id: str
    state: State
    directory: Path | None = None
    script: str | None = None
    nnodes: int | None = None
    nproc_per_node: int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    exit_status: int | None = None
    first_failed_rank: int | None = None
    diagnosis: str | None = None
    effective_batch: int | None = None
    device: str | None = None
    gpus: tuple[str, ...] | None = None
    user: str | None = None
    hosts: tuple[str, ...] = ()
    launcher_pids: tuple[int, ...] = ()
    ranks: tuple[RankProcess, ...] = ()
    problem: str | None = None
    findings: tuple[Finding, ...] = ()
    trial: str | None = None
    sizes: tuple[int, ...] = ()


def summaries(base: Path, table: ProcessTable, host: str, most: int | None) -> tuple[tuple[RunSummary, ...], int]:
    """Return the runs on this machine, then the newest records under ``base``; and how many more records there are.

    Running ones come first, of all users as far as /proc tells, those of ``base`` before others. At most ``most`` ended
    runs are read (None: all), where the trials of one command count as one.
    """
    directories, runs = run_directories(base), (base / "runs").resolve()
    alive = [(run, recorded_at(run)) for run in with_residents(runs_in(table), residents_in(table, host))]
    alive.sort(key=lambda one: one[1] is None or runs not in one[1].parents)
    running = [summary(directory, run, host) for run, directory in alive]
    busy = {directory for _, directory in alive}
    ended = [path for path in directories if runs / path.name not in busy]
    listed: list[RunSummary] = []
    groups: set[str] = set()
    for path in ended:
        one = summary(path, None, host)
        groups.add(one.run_id if one.trial is None else one.trial.partition("/")[0])
        if most is not None and len(groups) > most:
            break
        listed.append(one)
    return (*running, *listed), len(ended) - len(listed)


def recorded_at(run: RunProcesses) -> Path | None:
    """Return the run's resolved directory as its processes name it, or None if it cannot be found.

    It is the one that its launcher on this machine holds open, else the one that the launch passed to its plug-in, else
    it is derived from their working directory.
    """
    for process in run.launchers:
        if (record := held_by(process)) is not None and record.name == run.run_id:
            return record.resolve()
    for process in run.all[:3]:
        with suppress(OSError, ValueError):
            named = Settings.from_json(process.mark(SETTINGS) or "{}").directory
            cwd = Path(f"/proc/{process.pid}/cwd").readlink()
            base = process.mark("DDPLAUNCH_DIR") or ".ddplaunch"
            path = cwd / (named or f"{base}/runs/{run.run_id}")
            if path.is_dir() and foreign(path) is None:
                return path.resolve()
    return None


def live_run(directory: Path, launcher: int | None = None) -> RunProcesses | None:
    """Return the live processes of the run of ``directory``, or None.

    A run with the same ID may be another user's, or of another directory: this one has a launcher with the pid
    ``launcher``, or ``directory`` as its record.
    """
    for run in runs_in(process_table()):
        if run.run_id == directory.name and run.uid == own_id():
            launchers = [process.pid for process in run.launchers]
            if launcher in launchers or recorded_at(run) == directory.resolve():
                return run
    return None


def summary(directory: Path | None, run: RunProcesses | None, host: str) -> RunSummary:
    """Return the summary of one run; ``directory`` (of its record) or ``run`` may be None, but not both."""
    record = None if directory is None else read_record(directory)
    if run is not None and record is not None and record.outcome is not None and _is_detached(run):
        run = None
    nodes = () if record is None else read_processes(record.directory, record.outcomes)
    launched = None if directory is None else read_launched(directory)
    state = state_of(record, run, nodes, host)
    if state == "elsewhere" and launched is not None and launched.host == host:
        state = "ended"  # its launcher was here and is gone: the hosts do not continue without it
    hosts = () if launched is None else tuple(dict.fromkeys(place.host for place in launched.places))
    outcome = None if run is not None or record is None else record.outcome
    recorded: dict[str, Any] = {} if record is None else _recorded(record)
    if run is not None:
        of_record = {key: value for key, value in recorded.items() if value is not None and key != "user"}
        recorded = {**_from_processes(run), **of_record}
    recorded |= {name: getattr(outcome, name, None) for name in ("ended_s", "exit_status", "first_failed_rank")}
    return RunSummary(
        run_id=run.run_id if run is not None else record.run_id if record is not None else "",
        state=state,
        hosts=hosts or _hosts_of(record, nodes, host),
        diagnosis=None if outcome is None or outcome.diagnosis is None else outcome.diagnosis.code,
        launcher_pids=tuple(process.pid for process in run.launchers) if run is not None else (),
        ranks=tuple(RankProcess(each.number("RANK"), each.pid) for each in run.ranks) if run is not None else (),
        problem=record.problem if record is not None else _no_record(run),
        findings=outcome.findings if outcome is not None else () if directory is None else read_findings(directory),
        **recorded,
    )


def _is_detached(run: RunProcesses) -> bool:
    """Return whether only programs are left that a rank detached (``setsid tensorboard``): the run itself is over."""
    return not (run.launchers or run.guards or any(map(is_python, run.ranks)))


def _no_record(run: RunProcesses | None) -> str | None:
    """Return why a live run has no record here; None for another user's run, whose record is not looked for."""
    return "its record is missing" if run is None or run.uid == own_id() else None


def _recorded(record: RunRecord) -> dict[str, Any]:
    gpus, sizes = record.value("plan", "gpus"), record.value("plan", "topology", "sizes")
    return {
        "directory": record.directory,
        "script": record.script,
        "nnodes": as_whole(record.value("plan", "topology", "nnodes", "value")),
        "nproc_per_node": as_whole(record.value("plan", "topology", "nproc_per_node", "value")),
        "started_s": record.created_s,
        "effective_batch": as_whole(record.value("plan", "numbers", "global_batch_size", "value")),
        "device": as_text(record.value("plan", "device", "value")),
        "gpus": tuple(str(gpu) for gpu in gpus) if isinstance(gpus, list) else None,
        "user": as_text(record.value("host", "host", "user")),
        "trial": as_text(record.value("environment", TRIAL)),
        "sizes": tuple(as_whole(size) or 0 for size in sizes) if isinstance(sizes, list) else (),
    }


def _from_processes(run: RunProcesses) -> dict[str, Any]:
    """Return what processes tell about a run, for fields that no record provides."""
    return {
        "script": _script_of(run.ranks[0].command) if run.ranks else None,
        "started_s": start_s(run.first.start_ticks),
        "user": owner_name(run.first.uid),
    }


def _script_of(command: Sequence[str]) -> str | None:
    """Return the script in a rank's command line: the first word after the interpreter and its options."""
    for word in command[1:]:
        if not word.startswith("-"):
            return word
    return command[0] if command else None
