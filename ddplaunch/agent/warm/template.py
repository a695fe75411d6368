"""torchrun's side of a warm start: forks the template, and has it fork the ranks.

Whatever stands in the way, ranks start cold, as torchrun starts them, and one line says why.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddplaunch.agent.torch_patches import skip_the_spread, start_ranks_by
from ddplaunch.agent.warm import fresh, kernel, requests, warm_process
from ddplaunch.agent.warm.requests import Request
from ddplaunch.agent.warm.template_process import TemplateProcess
from ddplaunch.agent.warm.warm_process import WarmProcess
from ddplaunch.agent.warm.why_cold import agent_facts, environ_at_load, why_no_template, why_not_forked
from ddplaunch.machine.processes.process_table import read_stat

Say = Callable[[str], None]
Cold = Callable[[], Any]  # what torchrun itself starts, by Popen
#: Seconds for which forking one rank may take: it is a matter of milliseconds, of seconds on a machine that swaps.
_FORK_S = 60.0
_END_S = 0.3
_GONE = "the process to fork ranks from has ended"
_SILENT = "the process to fork ranks from does not answer"


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"ddplaunch: {line}\n")


def prepare(preload: Sequence[str] = (), say: Say = _to_stderr) -> Template:
    """Fork the template, and make torchrun start its ranks from it.

    Has to be the first thing that the plug-in does: what descriptors, threads, signal handlers, hooks and ``atexit``
    handlers it has made before, ranks would share. No caller may catch BaseException: the template leaves torchrun's
    frames by one (``fresh.leave``). ``preload`` are modules to import once, ``say`` gets one line for a user now and
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
        start_ranks_by(template.start)
    else:
        template.tell()
    return template


class Template:
    """The process from which ranks are forked, seen from torchrun's. ``reason`` says why ranks start cold, if so."""

    def __init__(self, say: Say, reason: str | None) -> None:
        """Fork nothing yet."""
        self.reason = reason
        self.pid: int | None = None
        self._say = say
        self._channel: socket.socket | None = None
        self._at_load = environ_at_load()
        self._forked: list[tuple[WarmProcess, Cold]] = []  # ranks of the present start; none runs its script yet
        self._cold = 0  # ranks of the present start that are still to be started cold
        self._told = False

    def fork(self, preload: Sequence[str]) -> None:
        """Fork the template from this process. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_FORK_S)
        launcher_path = None if getattr(sys.flags, "safe_path", False) else sys.path[0]
        agent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        kernel.flush_c_streams()
        pid = kernel.fork_on_trial()
        if pid == 0:
            try:
                os.setsid()  # Ctrl-C and hang-up are torchrun's business
                ours.close()
                kernel.close_all_but(theirs.fileno())
                process = TemplateProcess(theirs, agent, launcher_path)
            except BaseException:
                os._exit(1)
            fresh.leave(lambda: process.serve(preload))
        theirs.close()
        self.pid, self._channel = pid, ours
        # counted after the fork: OpenBLAS ends its threads before each, and holds no lock of theirs across it
        threads = kernel.native_threads()
        if threads > 1:
            self.end()
            self.reason = f"{threads} threads of C libraries run in torchrun's process already"

    def start(self, args: Sequence[str], env: Mapping[str, str], outputs: Sequence[Any], cold: Cold) -> Any:
        """Return a rank that runs ``args`` with ``env``: forked, or what ``cold`` returns.

        ``outputs`` are the files for stdout and stderr, None for torchrun's own. All ranks of one start are warm, or
        none: those that were forked before the template was lost are ended before their script's first line, and
        started once more. Raises OSError where Popen would: no memory, or too many processes.
        """
        request = Request(tuple(args), env)
        if not self._forked and not self._cold and not self._ready(request):
            self.tell()
            self._cold = request.siblings or 1
        if self._cold:
            self._cold -= 1
            return cold()
        try:
            rank = WarmProcess(args, self._deliver(request, outputs))
            self._forked.append((rank, cold))
            if len(self._forked) == request.siblings:
                self._let_go()
            return rank
        except (ConnectionError, TimeoutError) as exception:
            self._lose(exception)
        self.tell()
        forked, self._forked = self._forked, []
        for rank, again in forked:
            rank.replace(again())
        self._cold = request.siblings - len(forked)
        if not self._cold:
            return forked[-1][0]
        self._cold -= 1
        return cold()

    def close(self) -> None:
        """Let the template end by itself; ranks stay as they are. Waits for nothing."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def end(self) -> None:
        """Wait until nothing is left of the template: it has 0.3 s, then it is killed."""
        self.close()
        pid, self.pid = self.pid, None
        if pid is not None:
            try:
                WarmProcess(["template"], pid).wait(_END_S)
            except subprocess.TimeoutExpired:
                warm_process.end(warm_process.members(pid))

    def tell(self) -> None:
        """Say once why ranks start cold."""
        if not self._told and self.reason is not None:
            self._told = True
            self._say(f"cold start: {self.reason}")

    def _ready(self, request: Request) -> bool:
        """Say whether the first rank of several can be forked; ``reason`` is known if not."""
        self.reason = self.reason or self._why_not(request)
        if self.reason is not None:
            return False
        try:
            notes = self._hear("ready", float("inf"))
            kernel.adopt_orphans(True)
        except OSError as exception:
            self._lose(exception)
            return False
        for note in notes:
            self._say(note)
        return True

    def _why_not(self, request: Request) -> str | None:
        is_file = len(request.args) > 2 and Path(request.target).exists()
        return why_not_forked(request, sys.executable, self._at_load, is_file)

    def _deliver(self, request: Request, outputs: Sequence[Any]) -> int:
        if self._channel is None:
            raise ConnectionResetError
        numbers = [0, *(number if file is None else file.fileno() for number, file in enumerate(outputs, 1))]
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            requests.send(self._channel, request.packed(), [*numbers, folder])
        finally:
            os.close(folder)
        return int(self._hear("pid", _FORK_S))

    def _let_go(self) -> None:
        """Wait until all ranks have sessions of their own and are this process's children: torchrun may signal them."""
        self._hear("forked", _FORK_S)
        rank, _ = self._forked[-1]
        deadline = time.monotonic() + warm_process.STOPPED_S
        while (seen := read_stat(rank.pid)) is not None and seen.parent != os.getpid():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.0005)
        self._forked = []
        kernel.adopt_orphans(False)

    def _hear(self, key: str, limit_s: float) -> Any:
        """Return what the template's side answers. Raises OSError: it could not fork, is gone, or does not answer."""
        if self._channel is None or self.pid is None:
            raise ConnectionResetError
        warm_process.wait_for_word(self._channel, self.pid, limit_s, self._slow)
        received = requests.receive(self._channel)
        if received is None:
            raise ConnectionResetError
        if key not in received[0]:
            with contextlib.suppress(OSError):
                kernel.adopt_orphans(False)
            number = int(received[0].get("errno", errno.EPROTO))
            raise OSError(number, f"a rank could not be forked: {os.strerror(number)}")
        return received[0][key]

    def _slow(self) -> None:
        self._say("the modules of `--preload` are still being imported, after a minute")

    def _lose(self, why: OSError) -> None:
        """Do without the template from now on: end it, and the ranks that it has forked for this start."""
        self.reason = (
            _GONE if isinstance(why, ConnectionError) else _SILENT if isinstance(why, TimeoutError) else str(why)
        )
        self.close()
        pid, self.pid = self.pid, None
        forked = [rank.pid for rank, _ in self._forked]
        warm_process.end(
            [*forked, *(each for each in warm_process.members(pid) if each not in forked)] if pid else forked
        )
        with contextlib.suppress(OSError):
            kernel.adopt_orphans(False)
