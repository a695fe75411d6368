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

from ddplaunch.agent.torch_patches import RankCpus, skip_the_spread, start_ranks_by
from ddplaunch.agent.warm import fresh, kernel, requests
from ddplaunch.agent.warm.requests import Request
from ddplaunch.agent.warm.template_process import TemplateProcess
from ddplaunch.agent.warm.why_cold import agent_facts, environ_at_load, why_no_template, why_not_forked
from ddplaunch.machine.processes.process_table import read_stat

Say = Callable[[str], None]
Cold = Callable[[], Any]  # what torchrun itself starts, by Popen
#: Seconds for which forking one rank may take: it is a matter of milliseconds, of seconds on a machine that swaps.
FORK_S = 60.0
#: Seconds to wait for a template that was told to end, and for one that was killed.
_LEAVES_S, _KILLED_S = 0.3, 1.0
_GONE = "the process to fork ranks from has ended"
_SILENT = "the process to fork ranks from does not answer"


def prepare(preload: Sequence[str], say: Say, cpus: RankCpus | None = None) -> Template:
    """Fork the template, and make torchrun start its ranks from it.

    Has to be the first thing that the plug-in does: what descriptors, threads, signal handlers, hooks and ``atexit``
    handlers it has made before, ranks would share. No caller may catch BaseException: the template leaves torchrun's
    frames by one (``fresh.leave``). ``preload`` are modules to import once, ``say`` gets one line for a user now and
    then. ``cpus`` are those of each rank, also of one that starts cold. Raises nothing.
    """
    facts = agent_facts()
    template = Template(say, why_no_template(facts), cpus)
    if template.reason is None:
        try:
            template.fork(preload)
        except OSError as exception:
            template.reason = f"the template could not be forked ({exception})"
    skip_the_spread()
    if cpus:
        cpus.bind()
    if template.reason is None:
        start_ranks_by(template.start)
    else:
        template.tell()
    return template


class Template:
    """The process from which ranks are forked, seen from torchrun's. ``reason`` says why ranks start cold, if so."""

    def __init__(self, say: Say, reason: str | None, cpus: RankCpus | None = None) -> None:
        """Fork nothing yet."""
        self.reason = reason
        self._say = say
        self._process: WarmProcess | None = None
        self._channel: socket.socket | None = None
        self._at_load = environ_at_load()
        self._cpus = cpus
        self._forked: list[int] = []  # ranks of the present start; none runs its script yet
        self._told = False

    def fork(self, preload: Sequence[str]) -> None:
        """Fork the template from this process. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.settimeout(None if preload else FORK_S)  # an import takes as long as it does
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
        self._process, self._channel = WarmProcess(["template"], pid), ours
        # counted after the fork: OpenBLAS ends its threads before each, and holds no lock of theirs across it
        threads = kernel.native_threads()
        if threads > 1:
            self.end()
            self.reason = f"{threads} threads of C libraries run in torchrun's process already"

    def start(self, args: Sequence[str], env: Mapping[str, str], outputs: Sequence[Any], cold: Cold) -> Any:
        """Return a rank that runs ``args`` with ``env``: forked, or what ``cold`` returns.

        ``outputs`` are the files for stdout and stderr, None for torchrun's own. All ranks of one start are warm, or
        none. Raises OSError where Popen would, no memory or too many processes, and where the template is lost when it
        has forked some of them; these end before their script's first line.
        """
        command, cpus = requests.without_numactl(args)
        request = Request(command, dict(env), cpus or (self._cpus.of(env) if self._cpus else None))
        if not self._forked:
            self._await_template(request)
        if self.reason is None:
            try:
                rank = WarmProcess(command, self._deliver(request, outputs))
                self._forked.append(rank.pid)
                if len(self._forked) == request.siblings:
                    self._let_go(rank.pid)
                return rank
            except (ConnectionError, TimeoutError) as exception:
                self._lose(exception)
                if self._forked:
                    raise type(exception)(self.reason) from exception
        self.tell()
        return cold()

    def close(self) -> None:
        """Let the template end by itself; ranks stay as they are. Waits for nothing."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def end(self, leaves_s: float = _LEAVES_S) -> None:
        """Wait until the template is gone; after ``leaves_s`` it is killed. What it had forked ends with it."""
        self.close()
        process, self._process = self._process, None
        if process is None:
            return
        for limit_s in (leaves_s, _KILLED_S):
            try:
                process.wait(limit_s)
                return
            except subprocess.TimeoutExpired:
                process.kill()

    def tell(self) -> None:
        """Say once why ranks start cold."""
        if not self._told and self.reason is not None:
            self._told = True
            self._say(f"cold start: {self.reason}")

    def _await_template(self, request: Request) -> None:
        """Wait until ranks can be forked, or set ``reason``; ``request`` is the first of a start."""
        is_file = len(request.args) > 2 and Path(request.target).exists()
        self.reason = self.reason or why_not_forked(request, sys.executable, self._at_load, is_file)
        if self.reason is not None:
            return
        try:
            notes = self._hear("ready")
            kernel.adopt_orphans(True)
        except OSError as exception:
            self._lose(exception)
            return
        for note in notes:
            self._say(note)

    def _deliver(self, request: Request, outputs: Sequence[Any]) -> int:
        if self._channel is None:
            raise ConnectionResetError
        numbers = [0, *(number if file is None else file.fileno() for number, file in enumerate(outputs, 1))]
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            requests.send(self._channel, vars(request), [*numbers, folder])
        finally:
            os.close(folder)
        return int(self._hear("pid"))

    def _let_go(self, last_rank: int) -> None:
        """Wait until all ranks have sessions of their own and are this process's children: torchrun may signal them."""
        self._hear("forked")
        deadline = time.monotonic() + FORK_S
        while (stat := read_stat(last_rank)) is not None and stat.parent != os.getpid():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.0005)
        self._forked = []
        kernel.adopt_orphans(False)

    def _hear(self, key: str) -> Any:
        """Return what the template's side answers. Raises OSError: it could not fork, is gone, or does not answer."""
        if self._channel is None:
            raise ConnectionResetError
        received = requests.receive(self._channel)
        self._channel.settimeout(FORK_S)
        if received is None:
            raise ConnectionResetError
        answer = received[0]
        if "unfit" in answer:
            raise OSError(answer["unfit"])
        if key not in answer:
            number = int(answer.get("errno", errno.EPROTO))
            raise OSError(number, f"a rank could not be forked: {os.strerror(number)}")
        return answer[key]

    def _lose(self, why: OSError) -> None:
        """Do without the template from now on: end it, and the ranks that it has forked for this start."""
        reasons = {ConnectionError: _GONE, TimeoutError: _SILENT}
        self.reason = next((words for kind, words in reasons.items() if isinstance(why, kind)), str(why))
        self.end(0)
        with contextlib.suppress(OSError):
            kernel.adopt_orphans(False)


class WarmProcess(subprocess.Popen[bytes]):
    """A child of this process that another one has forked: ``Popen`` in all but the start."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        """Take over ``pid``, which has to be a child of this process, and does what ``args`` would."""
        self._forked = pid
        super().__init__(())
        self.args = args

    def _execute_child(self, *_: Any) -> None:
        """Start nothing, where ``Popen`` starts a program."""
        self.pid, self._child_created = self._forked, True
