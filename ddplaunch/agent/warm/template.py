"""torchrun's side of a warm start: forks the template, and has it fork the ranks.

Whatever stands in the way, ranks start cold, as torchrun starts them, and one line says why.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
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
from ddplaunch.machine.processes.process_table import is_stopped, read_stat

Say = Callable[[str], None]
Cold = Callable[[], Any]  # what torchrun itself starts, by Popen
#: Seconds for which forking one rank may take: it is a matter of milliseconds, of seconds on a machine that swaps.
_FORK_S = 60.0
#: Seconds for which one of them may be stopped (SIGSTOP, a debugger) before ranks start without them.
STOPPED_S = 5.0
_LOOK_S = 0.5
#: Seconds to wait for a template that was told to end, and for processes that were killed.
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
        self.pid: int | None = None
        self._say = say
        self._channel: socket.socket | None = None
        self._at_load = environ_at_load()
        self._cpus = cpus
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
        command, cpus = requests.without_numactl(args)
        request = Request(command, dict(env), cpus or (self._cpus.of(env) if self._cpus else None))
        if not self._forked and not self._cold and not self._ready(request):
            self.tell()
            self._cold = request.siblings or 1
        if self._cold:
            self._cold -= 1
            return cold()
        try:
            rank = WarmProcess(command, self._deliver(request, outputs))
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
            template = WarmProcess(["template"], pid)
            try:
                template.wait(_LEAVES_S)
            except subprocess.TimeoutExpired:
                end(members(pid))
                template.poll()  # else the next Popen would wait for this pid, whosever it is by then

    def tell(self) -> None:
        """Say once why ranks start cold."""
        if not self._told and self.reason is not None:
            self._told = True
            self._say(f"cold start: {self.reason}")

    def _ready(self, request: Request) -> bool:
        """Say whether the first rank of several can be forked; ``reason`` is known if not."""
        is_file = len(request.args) > 2 and Path(request.target).exists()
        self.reason = self.reason or why_not_forked(request, sys.executable, self._at_load, is_file)
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

    def _deliver(self, request: Request, outputs: Sequence[Any]) -> int:
        if self._channel is None:
            raise ConnectionResetError
        numbers = [0, *(number if file is None else file.fileno() for number, file in enumerate(outputs, 1))]
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        try:
            requests.send(self._channel, vars(request), [*numbers, folder])
        finally:
            os.close(folder)
        return int(self._hear("pid", _FORK_S))

    def _let_go(self) -> None:
        """Wait until all ranks have sessions of their own and are this process's children: torchrun may signal them."""
        self._hear("forked", _FORK_S)
        rank, _ = self._forked[-1]
        deadline = time.monotonic() + STOPPED_S
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
        wait_for_word(self._channel, self.pid, limit_s, self._slow)
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
        reasons = {ConnectionError: _GONE, TimeoutError: _SILENT}
        self.reason = next((words for kind, words in reasons.items() if isinstance(why, kind)), str(why))
        self.close()
        pid, self.pid = self.pid, None
        family = [] if pid is None else members(pid)
        end(list(dict.fromkeys([*(rank.pid for rank, _ in self._forked), *family])))
        with contextlib.suppress(OSError):
            kernel.adopt_orphans(False)


def members(pid: int) -> list[int]:
    """Return ``pid`` and what descends from it; ``pid`` alone where the kernel does not list children."""
    found = [pid]
    for each in found:  # grows meanwhile
        with contextlib.suppress(OSError):
            found += [int(word) for word in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found


def wait_for_word(
    channel: socket.socket, template: int, limit_s: float, slow: Callable[[], None] | None = None
) -> None:
    """Wait until something can be read from ``channel``, its end too.

    Raises TimeoutError after ``limit_s`` seconds, or if one of the template's family is stopped for 5 s. Without a
    limit, which an import has not, ``slow`` is called once after a minute.
    """
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    began = time.monotonic()
    moving = began
    while not poll.poll(_LOOK_S * 1000):
        now = time.monotonic()
        if not any(map(is_stopped, members(template))):
            moving = now
        if now - moving > STOPPED_S or now - began > limit_s:
            raise TimeoutError
        if slow is not None and now - began > 60:
            slow()
            slow = None


def end(pids: Sequence[int]) -> None:
    """Kill them all, and reap those that are or become children of this process, for at most 1 s."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _KILLED_S
    left = list(pids)
    while left and time.monotonic() < deadline:
        left = [pid for pid in left if not _reaped(pid)]
        if left:
            time.sleep(0.001)


def _reaped(pid: int) -> bool:
    """Say whether nothing is left of a process that this one could wait for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        one = read_stat(pid)
        return one is None or not one.alive


class WarmProcess(subprocess.Popen[bytes]):
    """A child of this process that another one has forked: ``Popen`` in all but the start."""

    def __init__(self, args: Sequence[str], pid: int) -> None:
        """Take over ``pid``, which has to be a child of this process, and does what ``args`` would."""
        self._forked, self._instead = pid, None
        super().__init__(())
        self.args = args

    def _execute_child(self, *_: Any) -> None:
        """Start nothing, where ``Popen`` starts a program."""
        self.pid, self._child_created = self._forked, True

    def replace(self, other: Any) -> None:
        """Stand for ``other`` from now on, which is kept: a Popen that nobody holds is waited for by the next one."""
        self.pid, self._instead = other.pid, other
