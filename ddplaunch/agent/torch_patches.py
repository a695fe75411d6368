"""Every name of torch's internals that ddplaunch replaces or calls, and the code that does it.

``TORCH_NAMES`` lists them, each with the versions of torch that it was seen in and what happens in a torch without it.
Torch is imported when a function is called, not with this module.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ddplaunch.values.frozen import dataclass

_SINCE_2_3 = ("2.3.1", "2.4.1", "2.5.1", "2.6", "2.8", "2.10", "2.13", "2.15")


@dataclass(frozen=True)
class TorchName:
    """One name, and the module of https://github.com/pytorch/pytorch that defines it.

    ``parameters`` are those of a function that is replaced or called, None for anything else.
    """

    module: str
    name: str
    seen: tuple[str, ...]
    why: str
    fallback: str
    parameters: tuple[str, ...] | None = None

    def owner(self) -> Any:
        """Return the module or class that has the name; None in a torch without it."""
        path, _, last = self.name.rpartition(".")
        try:
            owner: Any = importlib.import_module(self.module)
            for part in path.split(".") if path else ():
                owner = getattr(owner, part)
        except (ImportError, AttributeError):
            return None
        return owner if last in vars(owner) else None

    def value(self) -> Any:
        """Return what the name stands for; None in a torch without it."""
        owner = self.owner()
        return None if owner is None else getattr(owner, self.name.rpartition(".")[2])


_ELASTIC = "torch.distributed.elastic"
_AGENT, _EVENTS = f"{_ELASTIC}.agent.server.api", f"{_ELASTIC}.events"
_PROCESSES, _RENDEZVOUS = f"{_ELASTIC}.multiprocessing.api", f"{_ELASTIC}.rendezvous.dynamic_rendezvous"

AGENT_CLOCK = TorchName(
    _AGENT,
    "time",
    _SINCE_2_3,
    "the module whose `sleep` is torchrun's pause between two looks at its ranks (`SimpleElasticAgent._invoke_run`)",
    "torchrun pauses for --monitor-interval also when all ranks have ended",
)
METHOD_NAME = TorchName(
    _RENDEZVOUS,
    "get_method_name",
    _SINCE_2_3,
    "names each event of a rendezvous, for which torch reads the source of the whole stack twice, some 10 ms",
    "torch reads the source",
    ("depth",),
)
SPREAD = TorchName(
    _RENDEZVOUS,
    "_delay",
    _SINCE_2_3,
    'makes the random pause of 0 to 0.3 s before a first rendezvous, "to slightly skew the rendezvous attempts across '
    'the nodes"; 2.15 has a second use of it',
    "a node that waits for no other pauses too",
    ("seconds",),
)
JOIN = TorchName(
    _RENDEZVOUS,
    "DynamicRendezvousHandler.next_rendezvous",
    _SINCE_2_3,
    "knows how many nodes there are when the pause is made",
    "a node that waits for no other pauses too",
    ("self",),
)
START = TorchName(
    _PROCESSES,
    "PContext.start",
    _SINCE_2_3,
    "tells when all ranks of an attempt are started, with their pids, whatever events torch has",
    "torchrun's START events tell",
    ("self",),
)
WAIT = TorchName(
    _PROCESSES,
    "PContext.wait",
    _SINCE_2_3,
    "tells which ranks torchrun has seen fail, in attempts that are followed by another too",
    "the guard knows what it saw itself",
    ("self", "timeout", "period"),
)
ON_SIGNAL = TorchName(
    _PROCESSES,
    "_terminate_process_handler",
    ("2.13",),
    "torchrun's handler of signals, recognised to put ddplaunch's in front of it",
    "a second signal breaks off torchrun's orderly end",
    ("signum", "frame"),
)
EVENT_HANDLERS = TorchName(
    f"{_EVENTS}.handlers",
    "_log_handlers",
    ("2.13",),
    "the destinations of events, of which --event-log-handler names one; START events have each worker's pid "
    "(`SimpleElasticAgent._initialize_workers`)",
    "`PContext.start` tells",
)
EVENT_LOGGER = TorchName(
    _EVENTS,
    "_get_or_create_logger",
    ("2.13",),
    "the logger of a destination",
    "`PContext.start` tells",
    ("destination",),
)
POPEN = TorchName(
    f"{_ELASTIC}.multiprocessing.subprocess_handler",
    "SubprocessHandler._popen",
    _SINCE_2_3,
    "starts one rank. There is no official place for a warm start: entry points choose logs and events, `--run-path "
    "--start-method fork` forks from a process with threads and hides the script's `sys.path`, `atexit` and signals. "
    "Here the command line, the environment and the opened outputs (`_stdout`, `_stderr`) are final",
    "ranks start cold",
    ("self", "args", "env"),
)
PARSE_ARGS = TorchName(
    "torch.distributed.run",
    "parse_args",
    ("2.13",),
    "torchrun's own reading of its command line: what may be preloaded, and whether ranks may start again",
    "as if ranks may start again, and nothing leads their `sys.path`",
    ("args",),
)
FLIGHT_RECORDER = TorchName(
    "torch._C._distributed_c10d",
    "_dump_fr_trace_json",
    ("2.13",),
    "knows when the first collective of a rank was called; `rank_site/ddplaunch_marks.py` asks it, in the rank",
    "the trace has no part for the time until then",
)
DELETE_LIBRARY = TorchName(
    "torch.library",
    "_del_library",
    ("2.13",),
    "withdraws the operators of a library when the interpreter ends, recognised by its module to leave it out",
    "forked ranks take longer to end",
)
TORCH_NAMES = (
    AGENT_CLOCK,
    METHOD_NAME,
    SPREAD,
    JOIN,
    START,
    WAIT,
    ON_SIGNAL,
    EVENT_HANDLERS,
    EVENT_LOGGER,
    POPEN,
    PARSE_ARGS,
    FLIGHT_RECORDER,
    DELETE_LIBRARY,
)


class Pause:
    """torchrun's pause between two looks at its ranks, over as soon as none of them runs any more.

    It is not cut short for a first rank that fails: torchrun ends the others then, who may be about to say why.
    """

    def __init__(self) -> None:
        """No rank runs yet."""
        self._running: list[int] = []

    def watch(self, pids: Iterable[int]) -> None:
        """Take these children for all ranks that run. Without pidfds (Linux before 5.3) pauses stay as they are."""
        self._close()
        try:
            for pid in pids:
                self._running.append(os.pidfd_open(pid))
        except OSError:
            self._close()

    def sleep(self, seconds: float) -> None:
        """Sleep ``seconds``, or until the last rank has ended."""
        if not self._running:
            time.sleep(seconds)
            return
        until = time.monotonic() + seconds
        while self._running:
            poll = select.poll()
            poll.register(self._running[-1], select.POLLIN)
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return
            os.close(self._running.pop())

    def install(self) -> None:
        """Let torchrun's loop pause here."""
        if AGENT_CLOCK.value() is time:
            AGENT_CLOCK.owner().time = _Clock(self)

    def _close(self) -> None:
        while self._running:
            os.close(self._running.pop())


class _Clock:
    """The module ``time`` with another ``sleep``."""

    def __init__(self, pause: Pause) -> None:
        self.sleep = pause.sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def name_methods_quickly() -> None:
    """Replace ``get_method_name`` by one that reads no files for the same answer."""
    if (module := METHOD_NAME.owner()) is not None:
        module.get_method_name = method_name


def method_name(depth: int = 2) -> str | None:
    """Return the name of the function ``depth`` calls above this one; None if the stack is not that deep."""
    try:
        return sys._getframe(depth).f_code.co_name
    except ValueError:
        return None


def skip_the_spread() -> None:
    """Leave out the random pause before a first rendezvous of a node that is alone; fixed pauses stay."""
    module, handlers = SPREAD.owner(), JOIN.owner()
    if module is None or handlers is None:
        return
    pause: Callable[[Any], None] = module._delay
    join = handlers.next_rendezvous

    def fixed_only(seconds: Any) -> None:
        if not isinstance(seconds, tuple):
            pause(seconds)

    def next_rendezvous(handler: Any) -> Any:
        single = getattr(getattr(handler, "settings", None), "max_nodes", None) == 1
        module._delay = fixed_only if single else pause
        return join(handler)

    handlers.next_rendezvous = next_rendezvous


def notice_start(tell: Callable[[dict[int, int]], None]) -> None:
    """Call ``tell({local rank: pid})`` as soon as all ranks of an attempt are started."""
    if (contexts := START.owner()) is None:
        return
    theirs = contexts.start

    def start(context: Any) -> None:
        theirs(context)
        pids = getattr(context, "pids", None)
        if pids is not None:
            tell(dict(pids()))

    contexts.start = start


def notice_failures(tell: Callable[[dict[int, Any]], None]) -> None:
    """Call ``tell({local rank: ProcessFailure})`` for ranks that torchrun has seen fail, in every attempt."""
    if (contexts := WAIT.owner()) is None:
        return
    theirs = contexts.wait

    def wait(context: Any, *args: Any, **more: Any) -> Any:
        result = theirs(context, *args, **more)
        if failures := getattr(result, "failures", None):
            tell(dict(failures))
        return result

    contexts.wait = wait


def forward_started(tell: Callable[[int, int], None]) -> None:
    """Call ``tell(rank, pid)`` for each START event, whatever ``--event-log-handler`` names."""
    destinations, logger_of = EVENT_HANDLERS.value(), EVENT_LOGGER.value()
    for destination in list(destinations or ()) if logger_of is not None else ():
        if destination != "dynamic_rendezvous":
            logger = logger_of(destination)
            for handler in logger.handlers:
                handler.setLevel(max(handler.level, logger.level))  # what LOGLEVEL keeps off the console stays off
            logger.setLevel(logging.INFO)
            logger.addHandler(_Started(tell))


class _Started(logging.Handler):
    def __init__(self, tell: Callable[[int, int], None]) -> None:
        super().__init__(logging.INFO)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on a START event; an event of another shape is none of ours."""
        try:
            event = json.loads(record.getMessage())
            metadata = event["metadata"]
            if metadata.get("state") != "START" or event.get("source") != "WORKER":
                return
            rank, pid = int(metadata["global_rank"]), int(metadata["worker_id"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self._tell(rank, pid)


def popen_parameters() -> tuple[str, ...] | None:
    """Return the parameters of the method with which torchrun starts a rank, None if they are not to be had."""
    with contextlib.suppress(TypeError, ValueError):
        popen = POPEN.value()
        return None if popen is None else tuple(inspect.signature(popen).parameters)
    return None


def start_ranks_by(
    start: Callable[[Sequence[str], Mapping[str, str], Sequence[Any], Callable[[], Any]], Any],
) -> None:
    """Have torchrun start each rank by ``start(args, environment, (stdout, stderr), cold)``.

    ``cold()`` starts it as torchrun itself does.
    """
    handlers = POPEN.owner()
    popen = handlers._popen

    def start_one(handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
        if not (hasattr(handler, "_stdout") and hasattr(handler, "_stderr")):
            return popen(handler, args, env)
        return start(args, env, (handler._stdout, handler._stderr), lambda: popen(handler, args, env))

    handlers._popen = start_one


def torchrun_args() -> Any:
    """Return torchrun's own reading of its command line, None if this is no torchrun."""
    torchrun = sys.modules.get(PARSE_ARGS.module) or sys.modules["__main__"]  # the latter for `python -m`
    parse = getattr(torchrun, "parse_args", None)
    return None if parse is None else parse(sys.argv[1:])


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
