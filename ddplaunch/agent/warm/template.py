"""torchrun's side of a warm start: forks the template, and gets its ranks from it; refuses to make a launch fail.

Whatever stands in the way, ranks start cold, as torchrun starts them itself, and one line says why.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.agent.warm import handover, kernel, message
from ddplaunch.agent.warm.alone import skip_the_spread
from ddplaunch.agent.warm.facts import agent_facts, environ_at_load
from ddplaunch.agent.warm.nursery import Nursery
from ddplaunch.agent.warm.process import WarmProcess
from ddplaunch.agent.warm.request import Request
from ddplaunch.agent.warm.why_cold import why_no_template, why_not_forked

Say = Callable[[str], None]
_CLOSE_S = 2.0
_GONE = "the process to fork ranks from has ended"


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"ddplaunch: {line}\n")


def prepare(preload: Sequence[str] = (), say: Say = _to_stderr) -> Template:
    """Fork the template, and make torchrun start its ranks from it.

    Has to be the first thing that the plug-in does: what descriptors, threads, signal handlers, hooks and ``atexit``
    handlers it has made before, ranks would share. No caller may catch BaseException: the template leaves torchrun's
    frames by one (``handover.py``). ``preload`` are modules to import once, ``say`` gets one line for a user now and
    then. Raises nothing.
    """
    facts = agent_facts()
    template = Template(say, why_no_template(facts))
    if template.reason is None:
        try:
            template.fork(preload)
        except OSError as exception:
            template.reason = f"the template could not be forked ({exception})"
    skip_the_spread()
    if template.reason is None:
        _take_over(template)
    else:
        template.tell()
    return template


def _take_over(template: Template) -> None:
    """Replace the one method with which torchrun starts a rank.

    There is no official place for it: entry points choose logs and events, `--run-path --start-method fork` forks from
    a process with threads and hides the script's ``sys.path``, ``atexit`` and signals. ``SubprocessHandler._popen`` is
    where the command line, the environment and the opened outputs are final, alike from torch 2.3 to 2.13.
    """
    from torch.distributed.elastic.multiprocessing import subprocess_handler

    handlers: Any = subprocess_handler.SubprocessHandler
    cold = handlers._popen

    def popen(handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        process = template.start(args, env, (handler._stdout, handler._stderr))
        return cold(handler, args, env) if process is None else process

    handlers._popen = popen


class Template:
    """The process from which ranks are forked, seen from torchrun's. ``reason`` says why ranks start cold, if so."""

    def __init__(self, say: Say, reason: str | None) -> None:
        """Fork nothing yet."""
        self.reason = reason
        self.pid: int | None = None
        self._say = say
        self._channel: socket.socket | None = None
        self._at_load = environ_at_load()
        self._missing = 0  # ranks of the present start that are still to be forked
        self._cold = 0  # ranks of the present start that are still to be started cold
        self._told = False

    def fork(self, preload: Sequence[str]) -> None:
        """Fork the template from this process. Raises OSError."""
        ours, theirs = socket.socketpair()
        launcher_path = None if getattr(sys.flags, "safe_path", False) else sys.path[0]
        agent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        kernel.flush_c_streams()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()  # Ctrl-C and hang-up are torchrun's business
                ours.close()
                kernel.close_all_but(theirs.fileno())
                nursery = Nursery(theirs, agent, launcher_path)
            except BaseException:
                os._exit(1)
            handover.leave(lambda: nursery.serve(preload))
        theirs.close()
        self.pid, self._channel = pid, ours
        # counted after the fork: OpenBLAS ends its threads before each, and holds no lock of theirs across it
        threads = kernel.native_threads()
        if threads > 1:
            self.close()
            self.reason = f"{threads} threads of C libraries run in torchrun's process already"

    def start(self, args: Sequence[str], env: Mapping[str, str], outputs: Sequence[Any]) -> WarmProcess | None:
        """Return a rank that runs ``args`` with ``env``; None if torchrun has to start it itself.

        ``outputs`` are the files for stdout and stderr, None for torchrun's own. All ranks of one start are warm, or
        none. Raises OSError where Popen would: no memory, or too many processes.
        """
        request = Request(tuple(args), env)
        if self._cold:
            self._cold -= 1
            return None
        pid = self._deliver(request, outputs) if self._missing else self._first(request, outputs)
        if pid is None:
            self.tell()
            self._cold = max(0, request.siblings - 1)
            return None
        self._missing -= 1
        if not self._missing:
            self._receive("born")
            kernel.adopt_orphans(False)
        return WarmProcess(args, pid)

    def _first(self, request: Request, outputs: Sequence[Any]) -> int | None:
        """Start the first rank of several; None, and the reason is known, if all of them have to start cold."""
        self.reason = self.reason or self._why_not(request) or self._not_ready()
        if self.reason is not None:
            return None
        kernel.adopt_orphans(True)
        try:
            pid = self._deliver(request, outputs)
        except ConnectionError:  # whatever was forked for it has ended too, before the script's first line
            kernel.adopt_orphans(False)
            self.close()
            self.reason = _GONE
            return None
        self._missing = request.siblings
        return pid

    def close(self) -> None:
        """End the template and wait for its end, at most 2 s; ranks stay as they are."""
        if self._channel is None or self.pid is None:
            return
        self._channel.close()
        template = WarmProcess(["template"], self.pid)
        self._channel = self.pid = None
        deadline = time.monotonic() + _CLOSE_S
        while template.poll() is None:
            if time.monotonic() > deadline:
                os.kill(template.pid, signal.SIGKILL)
            time.sleep(0.001)

    def tell(self) -> None:
        """Say once why ranks start cold."""
        if not self._told and self.reason is not None:
            self._told = True
            self._say(f"cold start: {self.reason}")

    def _why_not(self, request: Request) -> str | None:
        is_file = len(request.args) > 2 and Path(request.target).exists()
        return why_not_forked(request, sys.executable, self._at_load, is_file)

    def _not_ready(self) -> str | None:
        """Wait for the template, which may have modules to import; return why it is of no use."""
        received = None if self._channel is None else message.receive(self._channel)
        if received is None or "ready" not in received[0]:
            self.close()
            return _GONE
        for note in received[0]["ready"]:
            self._say(note)
        return None

    def _deliver(self, request: Request, outputs: Sequence[Any]) -> int:
        assert self._channel is not None
        numbers = [0, *(number if file is None else file.fileno() for number, file in enumerate(outputs, 1))]
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            message.send(self._channel, request.packed(), [*numbers, folder])
        finally:
            os.close(folder)
        return int(self._receive("pid"))

    def _receive(self, key: str) -> Any:
        """Return what the template answers. Raises OSError if it could not fork, or is gone."""
        received = None if self._channel is None else message.receive(self._channel)
        answer = {"errno": errno.ECONNRESET} if received is None else received[0]
        if key not in answer:
            number = answer.get("errno", errno.EPROTO)
            with contextlib.suppress(OSError):
                kernel.adopt_orphans(False)
            raise OSError(number, f"a rank could not be forked: {os.strerror(number)}")
        return answer[key]
