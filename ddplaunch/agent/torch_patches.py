"""Replaces internals of torch in torchrun's process; each function does nothing if this torch's internals are unknown.

The names are in ``torch_names.py``. Torch is imported when a function is called, not with this module.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddplaunch.agent.torch_names import (
    CLOSE,
    CLOSE_RANK,
    MONITOR,
    POPEN,
    SPREAD,
    START,
    TorchName,
)
from ddplaunch.machine.processes.process_table import own_processes
from ddplaunch.machine.processes.stop_processes import asked_first, send_signal
from ddplaunch.values.words import numbers_of

_SPREAD_S = (0, 0.3)  # 2.15 has another random pause, after a failed write to the store


def _replace(name: TorchName, function: Callable[..., Any]) -> None:
    """Replace ``theirs``, torch's function of this ``name``, by ``function(theirs, …)`` if it is known."""
    if not name.is_known():
        return
    theirs = name.value()

    @functools.wraps(theirs)
    def ours(*args: Any, **more: Any) -> Any:
        return function(theirs, *args, **more)

    setattr(name.owner(), name.name.rpartition(".")[2], ours)


def skip_the_spread() -> None:
    """Skip the random pause that spreads nodes' first rendezvous; keep all other pauses. Call it for a single node."""

    def all_others(pause: Any, seconds: Any) -> None:
        if seconds != _SPREAD_S:
            pause(seconds)

    _replace(SPREAD, all_others)


def notice_start(tell: Callable[[dict[int, int]], None]) -> None:
    """Call ``tell({local rank: pid})`` as soon as all ranks of an attempt are started."""

    def start(theirs: Any, context: Any) -> None:
        theirs(context)
        pids = getattr(context, "pids", None)
        if pids is not None:
            tell(dict(pids()))

    _replace(START, start)


def judge_failures(is_final: Callable[[dict[int, Any]], bool]) -> None:
    """Call ``is_final({rank: ProcessFailure})`` before ranks that failed are started again; not if it returns True."""

    def monitor(theirs: Any, agent: Any, group: Any) -> Any:
        result = theirs(agent, group)
        failures = getattr(result, "failures", None)
        if failures and getattr(agent, "_remaining_restarts", 0) and is_final(failures):
            agent._remaining_restarts = 0
        return result

    _replace(MONITOR, monitor)


def wait_for_ranks(grace_s: float, tell: Callable[[], None]) -> None:
    """Give ranks ``grace_s`` seconds whenever they are asked to end, whatever the reason; call ``tell()`` before."""

    def close(theirs: Any, context: Any, death_sig: Any = None, timeout: float = grace_s) -> None:
        tell()
        theirs(context, death_sig, grace_s)

    _replace(CLOSE, close)


def spare_children_of_ranks() -> None:
    """Have torchrun ask only the ranks to end; SIGKILL, after the grace, still goes to their children too."""

    def close(close_group: Any, handler: Any, death_sig: Any = None) -> None:
        number = death_sig or signal.SIGTERM
        session = [one for one in own_processes() if one.session == handler.proc.pid]
        if number == signal.SIGKILL or not session:
            close_group(handler, death_sig)
            return
        for process in asked_first(session):
            send_signal(process, number)
        for stream in filter(None, (handler._stdout, handler._stderr)):
            stream.close()

    _replace(CLOSE_RANK, close)


def start_ranks_by(
    start: Callable[[Sequence[str], Mapping[str, str], Sequence[Any], Callable[[], Any]], Any],
) -> None:
    """Have torchrun start each rank by ``start(args, environment, (stdout, stderr), cold)``.

    ``cold()`` starts the rank as torchrun itself does.
    """

    def start_one(popen: Any, handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        if not (hasattr(handler, "_stdout") and hasattr(handler, "_stderr")):
            return popen(handler, args, env)
        return start(args, env, (handler._stdout, handler._stderr), lambda: popen(handler, args, env))

    _replace(POPEN, start_one)


def limit_files_of_ranks(limit: tuple[int, int]) -> None:
    """Give each rank this soft and hard limit of open files: those it would have had without ddplaunch.

    With a raised limit, a descriptor leak that ends a script under torchrun would go unnoticed, and select(2) would
    meet descriptors that it cannot take. The limit is set about 0.1 ms after the rank's program is executed: lowering
    this process's own limit for that moment could make the start fail.
    """

    def start_one(popen: Any, *of_rank: Any) -> Any:
        process = popen(*of_rank)
        with contextlib.suppress(OSError):  # it has ended, or changed its user
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limit)
        return process

    _replace(POPEN, start_one)


class RankCpus:
    """Starts each local rank on its CPUs ("0-15,64-79"), whether torchrun starts it cold or warm.

    A new process inherits the CPUs of the thread that starts it, so this thread's are changed for that moment: no part
    of a rank ever runs on other CPUs, its threads and DataLoader workers included.
    """

    def __init__(self, cpus: Sequence[str], say: Callable[[str], None]) -> None:
        """``say`` is called with one line if ranks cannot be bound; they then run unbound."""
        self._cpus, self._say, self._told = cpus, say, False

    def of(self, env: Mapping[str, str]) -> tuple[int, ...] | None:
        """Return the CPUs of the rank whose environment is ``env``; None if it cannot be bound to them."""
        before = os.sched_getaffinity(0)
        try:
            found = numbers_of(self._cpus[int(env["LOCAL_RANK"])])
            os.sched_setaffinity(0, found)
            os.sched_setaffinity(0, before)
        except (OSError, ValueError, LookupError) as exception:  # the cpuset has changed
            self._tell(f"{type(exception).__name__}: {exception}")
            return None
        return found

    def bind(self) -> None:
        """Have torchrun start each rank on its CPUs."""
        if not POPEN.is_known():
            self._tell("this torch starts them in a way unknown to ddplaunch")
            return

        def start_one(popen: Any, handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self.of(env) or before)
            try:
                return popen(handler, args, env)
            finally:
                os.sched_setaffinity(0, before)

        _replace(POPEN, start_one)

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"ranks are not bound to CPUs: {why}")


def logs_destination(outs: dict[int, str], errs: dict[int, str], errors: dict[int, str]) -> Any:
    """Return torch's ``LogsDest``: where each local rank's stdout, stderr and error file go.

    Filtered logs, new in torch 2.9, get /dev/null, because torch always opens them.
    """
    from torch.distributed.elastic.multiprocessing import api

    destination = api.LogsDest(outs, errs, {}, {}, errors)
    for name in ("filtered_stdout", "filtered_stderr"):
        if hasattr(destination, name):
            setattr(destination, name, os.devnull)
    return destination
