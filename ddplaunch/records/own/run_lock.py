"""Keeps a run ID to one live run: the launch holds locks in the record, and records of ended runs are moved aside.

A lock is an flock(2): it belongs to an open file, so it survives exec into torchrun and ends with torchrun and the
guard, which holds it too, however they end. ``.lock-K`` belongs to node K, so that all nodes of a launch may share a
directory; ``.lock`` is taken exclusively by the launcher of several hosts, and shared by nodes started one by one.
https://man7.org/linux/man-pages/man2/flock.2.html
"""

from __future__ import annotations

import os
import re
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ddplaunch.machine.files import boot_id, owner_name
from ddplaunch.records.directory import not_yours, path_text, run_directory
from ddplaunch.records.own.own_files import (
    LOCK_ALONE,
    LOCK_SHARED,
    NotOursError,
    closing,
    open_file,
    open_place,
    open_to_write,
    own_folders,
    try_lock,
)
from ddplaunch.values.finding import RefusedError, error
from ddplaunch.values.frozen import dataclass

if TYPE_CHECKING:
    from ddplaunch.planning.launch import Launch

#: Who holds the ID: a node that was started by itself, the launcher of several hosts, or one of its hosts.
Holder = Literal["node", "launcher", "host"]

_WAIT_S = 3.0  # the guard of a run that has just ended releases it a moment after torchrun
_PAUSE_S = 0.02
_TRIES = 3
_HOLDER_LENGTH = 200
_LOCK = re.compile(r"\.lock(-\d+)?")
_NODE = re.compile(r"node-\d{1,9}")


@dataclass(frozen=True)
class HeldRun:
    """A run ID that is held while ``locks`` are open. ``aside`` is the new place of an older record with this ID.

    ``unlocked`` is a clause that says why the ID could not be locked.
    """

    locks: tuple[int, ...] = ()
    aside: Path | None = None
    unlocked: str | None = None

    def pass_on(self) -> None:
        """Let the program that this process execs keep the locks."""
        for lock in self.locks:
            os.set_inheritable(lock, True)

    def __enter__(self) -> HeldRun:
        """Hold the ID until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the ID."""
        for lock in self.locks:
            os.close(lock)

    def told(self, record: str) -> str:
        """Return the panel's line: the ``record``, where the previous one went, and why the ID is not locked."""
        if self.aside is not None:
            record += f"; the previous one is now in {'/'.join(self.aside.parts[-2:])}"
        return record if self.unlocked is None else f"{record}; not locked: {self.unlocked}"


def refuse_taken(base: Path, launch: Launch, holder: Holder = "node") -> None:
    """Raise RefusedError if the run's directory is another user's, or a live run has its ID. Creates nothing."""
    locks, _ = _locked(base, launch, holder, create=False)
    _release(list(locks))


def hold_run(base: Path, launch: Launch, holder: Holder = "node", *, shared: bool = False) -> HeldRun:
    """Take the run ID for this launch, and move aside what an ended run with this ID left.

    ``shared``: a launcher has already moved it, in the same directory. If nothing can be written or locked, the launch
    goes on without. Raises RefusedError if another launch holds the ID, or the directory is another user's.
    """
    locks, unlocked = _locked(base, launch, holder, create=True)
    directory, node = base / "runs" / launch.run_id, _node(launch)
    aside = None
    with suppress(OSError, ValueError):
        nodes = set() if node is None else {node}
        if holder == "launcher":
            nodes = _recorded_nodes(directory) | {0}
        for number in nodes if not shared else ():
            aside = set_aside(directory, number, launched=True) or aside
    if node == 0 and not shared:
        _set_rest_aside(directory)
    return HeldRun(locks, aside, unlocked)


def _set_rest_aside(directory: Path) -> None:
    """Move aside what an ended run with this ID left for nodes that are not alive: they may never start and do it.

    A node that is about to start waits for its lock in the meantime.
    """
    for number in _recorded_nodes(directory) - {0}:
        with suppress(OSError), closing(open_to_write(directory / f".lock-{number}", os.O_RDWR)) as lock:
            if try_lock(lock, LOCK_ALONE):
                set_aside(directory, number, launched=True)


def _recorded_nodes(directory: Path) -> set[int]:
    return {int(name[5:]) for name in own_folders(directory) if _NODE.fullmatch(name)}


def _locked(base: Path, launch: Launch, holder: Holder, *, create: bool) -> tuple[tuple[int, ...], str | None]:
    """Return the locks that ``holder`` got, and why the ID could not be locked, or None.

    Raises RefusedError if another launch holds the ID, or the directory is another user's.
    """
    locks: list[int] = []
    unlocked = None
    try:
        directory = run_directory(base, launch.run_id)
        for _ in range(_TRIES):
            with closing(open_place(directory, create=create)) as folder:
                with suppress(OSError):
                    os.fchmod(folder, 0o700)  # an older version may have created it with another mode
                _take(locks, folder, directory, _wanted(_node(launch), holder), create=create)
            if all(os.fstat(lock).st_nlink for lock in locks):
                break
            _release(locks)  # `clean` held them while it removed the record
    except NotOursError as problem:
        raise _not_yours(problem) from None
    except (OSError, ValueError) as problem:
        unlocked = getattr(problem, "strerror", None) or str(problem)
    if (pid := _living(base / "runs" / launch.run_id, _node(launch))) is not None:  # one without locks
        _release(locks)
        raise _taken(base / "runs" / launch.run_id, f"pid {pid} on this host")
    return tuple(locks), unlocked


def _node(launch: Launch) -> int | None:
    """Return the number of this node; None for one of several nodes that torchrun will number."""
    rank = launch.topology.node_rank
    if rank is not None:
        return rank.value
    return 0 if launch.topology.nnodes.value == 1 else None


def _wanted(node: int | None, holder: Holder) -> list[tuple[str, int]]:
    """Return the names of the locks that ``holder`` takes, each with its operation: exclusive or shared."""
    names: list[tuple[str, int]] = []
    if holder != "host":
        names.append((".lock", LOCK_ALONE if holder == "launcher" else LOCK_SHARED))
    if holder != "launcher":
        names.append((f".lock-{node or 0}", LOCK_SHARED if node is None else LOCK_ALONE))
    return names


def _take(locks: list[int], folder: int, directory: Path, names: list[tuple[str, int]], *, create: bool) -> None:
    """Take the locks and add them to ``locks``. Raises RefusedError, releasing all, if another launch has one."""
    until_s = time.monotonic() + _WAIT_S
    for name, operation in names:
        try:
            lock = open_file(folder, name, os.O_RDWR | (os.O_CREAT if create else 0))
        except FileNotFoundError:
            continue
        locks.append(lock)
        while not try_lock(lock, operation):
            if time.monotonic() > until_s:
                who = os.pread(lock, _HOLDER_LENGTH, 0).decode(errors="replace")
                _release(locks)
                raise _taken(directory, who)
            time.sleep(_PAUSE_S)
        if create:
            with suppress(OSError):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)


def _release(locks: list[int]) -> None:
    while locks:
        os.close(locks.pop())


def _living(directory: Path, node: int | None) -> int | None:
    """Return the pid of this node's torchrun in the record if it is still alive, else None."""
    if not any(directory.glob("node-*/processes.json")):
        return None
    from ddplaunch.machine.processes.process_table import read_process  # imported for the few launches that reuse an ID
    from ddplaunch.records.launchers import read_processes, still_running

    boot = boot_id()
    for processes in read_processes(directory):
        pid = 0 if processes.launcher is None else processes.launcher.pid
        process = read_process(pid) if pid and processes.node == node and pid != os.getpid() else None
        if process is not None and still_running(processes.launcher, processes, {pid: process}, boot) is not None:
            return pid
    return None


def end_with_this_program() -> None:
    """Do not pass the locks of this program on to programs that it starts from now on.

    Otherwise a program that outlives a rank on purpose, such as TensorBoard, would hold the ID of an ended run.
    """
    for path in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if _LOCK.fullmatch(path.readlink().name):
                os.set_inheritable(int(path.name), False)


def hold_ended(directory: Path) -> HeldRun | None:
    """Lock an ended run so that no launch can use its ID; None if a live launch holds it.

    Locks that cannot be opened are skipped.
    """
    locks: list[int] = []
    with suppress(OSError), closing(open_place(directory)) as folder:
        for name in os.listdir(folder):  # noqa: PTH208 - by descriptor
            if name.startswith(".lock"):
                with suppress(OSError):
                    locks.append(open_file(folder, name, os.O_RDWR))
                    if not try_lock(locks[-1], LOCK_ALONE):
                        _release(locks)
                        return None
    return HeldRun(tuple(locks))


def is_held(directory: Path) -> bool:
    """Return whether a live launch holds the run of ``directory``; False if that cannot be determined."""
    lock = hold_ended(directory)
    if lock is None:
        return True
    with lock:
        return False


def _taken(directory: Path, holder: str) -> RefusedError:
    who = holder.strip() or "another launch"
    return RefusedError(
        error(
            "run-id-in-use",
            f"run {directory.name} is live: {who} has it",
            why=f"both would write into {path_text(directory)}, and be one run to `logs` and `stop`",
            fix=f"another `--run-id`, or none for a new one; `ddplaunch stop {shlex.quote(directory.name)}` ends it",
            where="flag: --run-id",
        )
    )


def _not_yours(problem: NotOursError) -> RefusedError:
    folder = shlex.quote(f".ddplaunch-{owner_name(os.geteuid())}")
    return RefusedError(
        not_yours(problem, f"`--run-dir {folder}`, or for every command `export DDPLAUNCH_DIR={folder}`")
    )


_OF_A_NODE = ("launcher.err", "processes.json", "observed.json", "outcome.json", "metrics.jsonl")
_OF_ALL = ("outcome.json",)
_OF_A_LAUNCH = ("run.json", "launcher.json")


def set_aside(directory: Path, node: int, *, launched: bool = False) -> Path | None:
    """Move what an ended run with this ID left of ``node`` into ``node-K/before-N``; return that path, or None.

    Node 0 includes the files about all nodes. Otherwise a reused ``--run-id``, or a command pasted twice, would append
    to the files of the previous run, and its errors would be taken for this run's. ``launched``: called by a launch
    before it writes its run.json; without it, only torchrun was started. Raises OSError if files cannot be moved.
    """
    own_folder = directory / f"node-{node}"
    launch = _OF_A_LAUNCH if launched else ()
    old = [
        *own_folder.glob("attempt-*"),
        *own_folder.glob("stacks-*.txt"),
        *(own_folder / name for name in (*_OF_A_NODE, *launch)),
    ]
    if node == 0:
        old += [*directory.glob("flight-recorder-rank-*"), *(directory / name for name in (*_OF_ALL, *launch))]
    old = [path for path in old if os.path.lexists(path)]
    if not old:
        return None
    number = 1
    while (own_folder / f"before-{number}").exists():
        number += 1
    kept_in = own_folder / f"before-{number}"
    with closing(open_place(kept_in, create=True)) as folder:
        for path in sorted(old, key=lambda entry: entry.parent == directory):
            name = path.name
            if (kept_in / name).exists():
                name = f"all-{name}"  # of several hosts; node 0's own outcome was moved before
            with suppress(FileNotFoundError), closing(open_place(path.parent)) as place:
                os.rename(path.name, name, src_dir_fd=place, dst_dir_fd=folder)
    return kept_in
