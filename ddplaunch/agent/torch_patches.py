"""What ddplaunch replaces of torch's internals, in torchrun's process; each function leaves another torch alone.

The names are those of ``torch_names.py``. Torch is imported when a function is called, not with this module.
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
    JOIN,
    POPEN,
    SPREAD,
    START,
    WAIT,
    TorchName,
)
from ddplaunch.machine.processes.process_table import own_processes
from ddplaunch.machine.processes.stop_processes import asked_first, send_signal
from ddplaunch.values.words import numbers_of

_SPREAD_S = (0, 0.3)  # 2.15 has another random pause, after it could not write to the store


def skip_the_spread() -> None:
    """Leave out the random pause before a first rendezvous of a node that is alone; all others stay."""
    if not (SPREAD.is_known() and JOIN.is_known()):
        return
    module, handlers = SPREAD.owner(), JOIN.owner()
    pause: Callable[[Any], None] = module._delay
    join = handlers.next_rendezvous

    def all_others(seconds: Any) -> None:
        if seconds != _SPREAD_S:
            pause(seconds)

    def next_rendezvous(handler: Any) -> Any:
        single = getattr(getattr(handler, "settings", None), "max_nodes", None) == 1
        module._delay = all_others if single else pause
        return join(handler)

    handlers.next_rendezvous = next_rendezvous


def _replace(name: TorchName, function: Callable[..., Any]) -> None:
    """Have ``function(theirs, …)`` called in the place of ``theirs``, which ``name`` stands for, if it is known."""
    if not name.is_known():
        return
    theirs = name.value()

    @functools.wraps(theirs)
    def ours(*args: Any, **more: Any) -> Any:
        return function(theirs, *args, **more)

    setattr(name.owner(), name.name.rpartition(".")[2], ours)


def notice_start(tell: Callable[[dict[int, int]], None]) -> None:
    """Call ``tell({local rank: pid})`` as soon as all ranks of an attempt are started."""

    def start(theirs: Any, context: Any) -> None:
        theirs(context)
        pids = getattr(context, "pids", None)
        if pids is not None:
            tell(dict(pids()))

    _replace(START, start)


def notice_failures(tell: Callable[[dict[int, Any]], None]) -> None:
    """Call ``tell({local rank: ProcessFailure})`` for ranks that torchrun has seen fail, in every attempt."""

    def wait(theirs: Any, context: Any, *args: Any, **more: Any) -> Any:
        result = theirs(context, *args, **more)
        if failures := getattr(result, "failures", None):
            tell(dict(failures))
        return result

    _replace(WAIT, wait)


def wait_for_ranks(grace_s: float) -> None:
    """Let ranks that are told to end have ``grace_s`` seconds, for whatever reason they are told to."""

    def close(theirs: Any, context: Any, death_sig: Any = None, timeout: float = grace_s) -> None:
        theirs(context, death_sig, grace_s)

    _replace(CLOSE, close)


def spare_children_of_ranks() -> None:
    """Have torchrun ask each rank alone to end; SIGKILL, after the grace, still goes to all that it has started."""

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

    ``cold()`` starts it as torchrun itself does.
    """

    def start_one(popen: Any, handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        if not (hasattr(handler, "_stdout") and hasattr(handler, "_stderr")):
            return popen(handler, args, env)
        return start(args, env, (handler._stdout, handler._stderr), lambda: popen(handler, args, env))

    _replace(POPEN, start_one)


def limit_files_of_ranks(limit: tuple[int, int]) -> None:
    """Give each rank this soft and hard limit of open files, those it would have had if ddplaunch had raised none.

    Else a leak that ends a script under torchrun would not here, and select(2) would meet descriptors that it cannot
    take. It is set as soon as the rank's program is executed, some 0.1 ms, because to lower this process's own limit
    for that moment would make starting fail where it is short.
    """

    def start_one(popen: Any, *of_rank: Any) -> Any:
        process = popen(*of_rank)
        with contextlib.suppress(OSError):  # it has ended, or has become another user's
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limit)
        return process

    if limit[0] != limit[1]:
        _replace(POPEN, start_one)


class RankCpus:
    """The CPUs of each local rank ("0-15,64-79"), and the starting of ranks on them, however torchrun starts them.

    A new process has the CPUs of the thread that starts it, so they are changed for that moment, in this thread alone:
    nothing of a rank runs anywhere else, and its threads and DataLoader workers have the same.
    """

    def __init__(self, cpus: Sequence[str], say: Callable[[str], None]) -> None:
        """``say`` gets one line if ranks cannot be bound; they run unbound then."""
        self._cpus, self._say, self._told = cpus, say, False

    def of(self, env: Mapping[str, str]) -> tuple[int, ...] | None:
        """Return the CPUs of the rank that would start in ``env``, None if it cannot have them."""
        before = os.sched_getaffinity(0)
        try:
            found = numbers_of(self._cpus[int(env["LOCAL_RANK"])])
            os.sched_setaffinity(0, found)
            os.sched_setaffinity(0, before)
        except (OSError, ValueError, LookupError) as exception:  # the cpuset is another one by now
            self._tell(f"{type(exception).__name__}: {exception}")
            return None
        return found

    def bind(self) -> None:
        """Have torchrun start ranks there."""
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
    """Return torch's own value for where each local rank's stdout, stderr and error file go.

    Torch opens what it calls filtered logs, which exist since 2.9, so that they need a file.
    """
    from torch.distributed.elastic.multiprocessing import api

    destination = api.LogsDest(outs, errs, {}, {}, errors)
    for name in ("filtered_stdout", "filtered_stderr"):
        if hasattr(destination, name):
            setattr(destination, name, os.devnull)
    return destination
