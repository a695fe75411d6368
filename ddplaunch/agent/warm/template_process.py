"""The template's side of a warm start: processes that have one thread, and fork ranks on request.

template   forked from torchrun before it has threads; imports what ``--preload`` names, and waits.
forker     a fork of the template, made ahead; forks the ranks of one start, and ends: they are orphans then, and
           torchrun, which adopts orphans at that moment, is the parent of each, as if it had forked them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddplaunch.agent.rank_site.sitecustomize import PARENT
from ddplaunch.agent.torch_patches import torchrun_args
from ddplaunch.agent.warm import fresh, kernel, requests
from ddplaunch.agent.warm.fresh import Program, leave_libraries_alone
from ddplaunch.agent.warm.requests import Request
from ddplaunch.machine.files import gpu_devices
from ddplaunch.machine.processes.stop_processes import signal_at_parents_end


def _import_all(names: Sequence[str], first: str | None) -> list[str]:
    """Import what was asked for; return a line for each that could not be imported."""
    if first is not None:
        sys.path.insert(0, first)
    notes = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as exception:
            notes.append(f"`--preload {name}`: {type(exception).__name__}: {exception}".splitlines()[0])
    if first is not None and first in sys.path:
        sys.path.remove(first)
    return notes


def may_start_again(args: Any) -> bool:
    """Say whether torchrun may start ranks once more: after a failure, or when nodes come and go."""
    return args is None or args.max_restarts > 0 or args.nnodes != "1"


def first_path(args: Any) -> str | None:
    """Return the folder that leads a rank's ``sys.path``."""
    if args is None or args.no_python or getattr(sys.flags, "safe_path", False):
        return None
    return str(Path.cwd()) if args.module else str(Path(args.training_script).resolve().parent)


def _unfit() -> str | None:
    """Return why this process must not be forked from, None if it may.

    Threads that a library ends in its at-fork handler and starts again later (OpenBLAS does) do no harm: so the count
    is taken after a fork.
    """
    if kernel.native_threads() > 1:
        child = kernel.fork_on_trial()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    threads = kernel.native_threads()
    if threads > 1:
        return f"{threads} threads run"
    devices = gpu_devices("self")
    return f"{devices[0]} is in use" if devices else None


_STARTED, _GONE = 0, 1


class TemplateProcess:
    """The template and the processes that it becomes by forking: forkers, then ranks."""

    def __init__(self, channel: socket.socket, agent: int, launcher_path: str | None) -> None:
        """``launcher_path`` is the entry of ``sys.path`` that is torchrun's own."""
        self.channel = channel
        self.agent = agent
        self.launcher_path = launcher_path
        self._args: Any = None

    def serve(self, preload: Sequence[str]) -> Program:
        """Return only in a rank, with what runs its script. ``preload`` are modules to import before."""
        try:
            kernel.die_with_parent(self.agent)
            # nobody who looks for the run's processes by their environment is to take it for a rank
            kernel.is_shown_as("ddplaunch-warm", ["ddplaunch: warm template"], {})
            self._leave_home()
            self._args = torchrun_args()
            notes = self._preload(preload) if preload else []
            sys.path_importer_cache.clear()
            leave_libraries_alone(os.environ)
            gc.freeze()  # a collection writes to each object that it looks at: each rank would get a copy of its own
            _close_streams()
            return self._generations(notes)
        except BaseException:
            os._exit(_GONE)

    def _leave_home(self) -> None:
        """Take out what came with torchrun's process and with ddplaunch."""
        if self.launcher_path is not None:
            sys.path.remove(self.launcher_path)
        self.seed = fresh.torch_seed()
        for name in [name for name in sys.modules if name.partition(".")[0] == "ddplaunch"]:
            del sys.modules[name]

    def _preload(self, names: Sequence[str]) -> list[str]:
        """Import modules; return a line for each that could not be. End if this process must not be forked then."""
        notes = _import_all(names, first_path(self._args))
        if reason := _unfit():
            requests.send(self.channel, {"unfit": f"{reason} after `--preload {','.join(names)}`"})
            os._exit(_GONE)
        return notes

    def _generations(self, notes: list[str]) -> Program:
        while True:
            parent = os.getpid()
            forker = os.fork()
            if forker == 0:
                kernel.die_with_parent(parent)
                return self._deliver()
            requests.send(self.channel, {"ready": notes})
            _, status = os.waitpid(forker, 0)
            if status != _STARTED or not may_start_again(self._args):
                os._exit(_GONE)
            notes = []

    def _deliver(self) -> Program:
        """Fork all ranks of one start; return in each of them, end in the forker itself.

        A rank goes on when it is told to, so that none runs if the forker is killed meanwhile; and torchrun goes on
        when all ranks have sessions of their own, so that it can signal these.
        """
        go, tell = os.pipe()
        hear, ready = os.pipe()
        done = 0
        while True:
            received = requests.receive(self.channel)
            if received is None:
                os._exit(_GONE)
            request, descriptors = Request(**received[0]), received[1]
            forker = os.getpid()
            try:
                pid = os.fork()
            except OSError as exception:
                requests.send(self.channel, {"errno": exception.errno})
                continue
            if pid == 0:
                os.close(tell)
                os.close(hear)
                return self._become_rank(request, descriptors, (go, ready), forker)
            requests.send(self.channel, {"pid": pid})
            for number in descriptors:
                os.close(number)
            done += 1
            if done == request.siblings:
                os.close(ready)
                while done and (heard := os.read(hear, done)):
                    done -= len(heard)
                os.write(tell, b"+" * request.siblings)
                requests.send(self.channel, {"forked": True})
                os._exit(_STARTED)

    def _become_rank(self, request: Request, descriptors: list[int], pipes: tuple[int, int], forker: int) -> Program:
        """Become the rank. What cannot be done in this process is done by a new interpreter with the same pid."""
        go, ready = pipes
        os.setsid()
        os.write(ready, b"+")
        os.close(ready)
        try:
            self.channel.close()
            for number, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, number)
            os.fchdir(descriptors[3])
            for descriptor in descriptors:
                os.close(descriptor)
            program = fresh.become(request, self.seed)
            kernel.is_shown_as(Path(request.args[0]).name, request.args, request.environ)
        except Exception:
            program = None
        if os.read(go, 1) != b"+":
            os._exit(_GONE)
        os.close(go)
        while os.getppid() == forker:  # closed its descriptors, and is not gone yet
            os.sched_yield()
        if PARENT in request.environ:
            with contextlib.suppress(OSError):  # the guard ends it, if a sandbox forbids this
                signal_at_parents_end(signal.SIGTERM)
            if os.getppid() != self.agent:
                os._exit(_GONE)
        if program is None:
            os.execve(request.args[0], request.args, request.environ)
        return program


def _close_streams() -> None:
    """Hold nobody's terminal or pipe open."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
