"""Warm starts: spare processes, forked from torchrun's while it has one thread, each of which becomes a rank.

If that is not possible, ranks start cold, as torchrun starts them, and one line says why. Restarts are cold too,
because torchrun has threads by then.
"""

from __future__ import annotations

import gc
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ddplaunch.agent.protocol import receive, send
from ddplaunch.agent.torch_patches import RankCpus, start_ranks_by
from ddplaunch.agent.warm import fresh, kernel
from ddplaunch.agent.warm.requests import Request
from ddplaunch.agent.warm.why_cold import environ_at_load, why_no_fork, why_not_forked
from ddplaunch.machine.software import shadowing_file

Say = Callable[[str], None]
Cold = Callable[[], Any]  # starts a rank as torchrun does, by Popen
#: Seconds within which a fork must answer: it takes milliseconds, or seconds on a machine that swaps.
READY_S = 60.0
#: ddplaunch's modules, kept alive in a rank: freeing them would write to pages that ranks share.
_hidden: list[ModuleType] = []


def prepare(ranks: int, preload: Sequence[str], say: Say, cpus: RankCpus | None) -> Spares:
    """Import the modules ``preload``, fork ``ranks`` spares, and make torchrun start its ranks from them.

    Must be called before the plug-in does anything else: ranks would share descriptors, threads, signal handlers, hooks
    and ``atexit`` handlers made earlier. No caller may catch BaseException: the spares leave torchrun's frames by one
    (``fresh.leave``). ``say`` is called with single lines for the user. ``cpus`` are each rank's CPUs.
    Never raises Exception.
    """
    spares, reason = Spares(say, cpus), why_no_fork()
    if reason is None:
        seed = fresh.torch_seed()
        first = first_path(sys.argv)
        for note in import_all(preload, first):
            say(note)
        beside = first and shadowing_file(first)
        if beside:
            reason = f"`{beside}` beside the script is named like what torchrun imports"
        reason = reason or why_no_fork() or spares.fork(ranks, seed)
    if reason is None:
        start_ranks_by(spares.start)
    else:
        say(f"cold start: {reason}")
    return spares


def import_all(names: Sequence[str], first: str | None) -> list[str]:
    """Import modules with ``first`` as the first entry of ``sys.path``; return a line for each that failed."""
    if first is not None:
        sys.path.insert(0, first)
    notes = []
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as exception:
            notes.append(f"`--preload {name}`: {type(exception).__name__}: {exception}".splitlines()[0])
    if first is not None and first in sys.path:
        sys.path.remove(first)
    return notes


def first_path(argv: Sequence[str]) -> str | None:
    """Return the first entry of a rank's ``sys.path``, from torchrun's ``argv`` with ``--`` before the target."""
    if "--" not in argv or getattr(sys.flags, "safe_path", False):
        return None
    place = argv.index("--")
    return str(Path.cwd() if "--module" in argv[:place] else Path(argv[place + 1]).resolve().parent)


class Spares:
    """The processes that wait to become ranks, as torchrun's process sees them."""

    def __init__(self, say: Say, cpus: RankCpus | None = None) -> None:
        """Fork nothing yet."""
        self._say, self._cpus = say, cpus
        self._waiting: list[tuple[int, socket.socket]] = []  # pid, and this side of its channel
        self._at_load = environ_at_load()

    def fork(self, ranks: int, seed: int | None) -> str | None:
        """Fork a process for each rank; return why not if that fails. ``seed`` was torch's before preloading."""
        sys.stdout.flush()
        sys.stderr.flush()
        kernel.flush_c_streams()
        launcher_path = None if getattr(sys.flags, "safe_path", False) else sys.path[0]
        reason = None if ranks else "DDPLAUNCH_NPROC is not set"
        for _ in range(ranks):
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            try:
                pid = kernel.fork_on_trial()
            except OSError as exception:
                reason = f"a rank could not be forked ({exception})"
                break
            if pid == 0:
                try:
                    os.setsid()  # Ctrl-C and hang-up are handled by torchrun
                    for channel in (ours, *(channel for _, channel in self._waiting)):
                        channel.close()
                    kernel.close_all_but(theirs.fileno())
                except BaseException:
                    os._exit(1)
                fresh.leave(lambda channel=theirs: _become_rank(channel, launcher_path, seed))  # type: ignore[misc]
            theirs.close()
            ours.settimeout(READY_S)
            self._waiting.append((pid, ours))
        # counted after forking: OpenBLAS ends its threads before each fork, and holds no lock of theirs across it
        threads = len(list(Path("/proc/self/task").iterdir()))
        if threads > 1:
            reason = f"{threads} threads of C libraries run in torchrun's process already"
        if reason is not None:
            self.close()
        return reason

    def start(self, args: Sequence[str], env: Mapping[str, str], outputs: Sequence[Any], cold: Cold) -> Any:
        """Return a rank that runs ``args`` with ``env``: forked, or what ``cold`` returns.

        ``outputs`` are the files for stdout and stderr, None for torchrun's own.
        """
        if not self._waiting:
            return cold()
        request = Request(args, env, self._cpus.of(env) if self._cpus else None)
        reason = why_not_forked(request, sys.executable, self._at_load)
        if reason is None:
            pid, channel = self._waiting.pop(0)
            rank = WarmProcess(args, pid)
            try:
                _hand_over(channel, request, outputs)
                return rank
            except OSError as exception:
                rank.end()
                reason = f"the process that was forked for a rank was lost: {exception}"
        self.close()
        self._say(f"cold start: {reason}")
        return cold()

    def close(self) -> None:
        """End the waiting processes; those that became ranks go on."""
        while self._waiting:
            pid, channel = self._waiting.pop()
            channel.close()
            WarmProcess((), pid).end()


def _hand_over(channel: socket.socket, request: Request, outputs: Sequence[Any]) -> None:
    """Tell a waiting process which rank to become. Raises OSError if it is gone or does not answer."""
    numbers = [0, *(number if file is None else file.fileno() for number, file in enumerate(outputs, 1))]
    with channel:
        send(channel, {"op": "become", "rank": vars(request)}, numbers)
        if not channel.recv(1):
            raise ConnectionResetError("it has ended")


def _become_rank(channel: socket.socket, launcher_path: str | None, seed: int | None) -> fresh.Program:
    """Wait until this process is told which rank to become; return the program that runs its script.

    It ends if torchrun ends before. If it cannot become the rank, because there is no script say, it executes a new
    interpreter, which keeps the pid.
    """
    try:
        # an empty environment, so that searches for the run's processes do not take it for a rank
        kernel.is_shown_as("ddplaunch-warm", ["ddplaunch: waits for its rank"], {})
        if launcher_path is not None:
            sys.path.remove(launcher_path)
        _hidden.extend(sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "ddplaunch")
        sys.path_importer_cache.clear()
        fresh.leave_libraries_alone()
        gc.freeze()  # a collection writes to every object, and would copy the shared pages into each rank
        message, descriptors = receive(channel)
        if message is None:  # torchrun has ended
            os._exit(1)
        request = Request(**message["rank"])
        # before the answer: the guard reads the command line once it is told of the rank, and recognises forks by it
        kernel.is_shown_as(Path(request.args[0]).name, request.args, request.environ)
        channel.sendall(b"+")
    except BaseException:
        os._exit(1)
    try:
        channel.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        program = fresh.become(request, seed)
    except Exception:
        os.execve(request.args[0], list(request.args), request.environ)
    return program


class WarmProcess(subprocess.Popen[bytes]):
    """A ``Popen`` for a child of this process that is already forked."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        """Take over ``pid``, a child of this process, which runs ``args``."""
        self._forked = pid
        super().__init__(())
        self.args = args

    def end(self) -> None:
        """Kill the process, and wait until it is gone."""
        self.kill()
        self.wait()

    def _execute_child(self, *_: Any) -> None:
        """Start nothing, where ``Popen`` would start a program."""
        self.pid, self._child_created = self._forked, True
