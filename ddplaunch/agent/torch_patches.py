"""Every name of torch's internals that ddplaunch replaces or calls, and the code that does it.

``TORCH_NAMES`` lists them, each with the versions of torch that it was seen in and what happens in a torch without it.
Torch is imported when a function is called, not with this module.
"""

from __future__ import annotations

import importlib
import inspect
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import numbers_of

_SINCE_2_4 = ("2.4.0", "2.4.1", "2.5.1", "2.6", "2.8", "2.10", "2.13", "2.15")


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

    def has_its_parameters(self) -> bool:
        """Say whether it is a function with the ``parameters``."""
        try:
            return tuple(inspect.signature(self.value()).parameters) == self.parameters
        except (TypeError, ValueError):
            return False


_ELASTIC = "torch.distributed.elastic"
_AGENT, _PROCESSES = f"{_ELASTIC}.agent.server.api", f"{_ELASTIC}.multiprocessing.api"
_RENDEZVOUS = f"{_ELASTIC}.rendezvous.dynamic_rendezvous"

AGENT_CLOCK = TorchName(
    _AGENT,
    "time",
    _SINCE_2_4,
    "the module whose `sleep` is torchrun's pause between two looks at its ranks (`SimpleElasticAgent._invoke_run`)",
    "torchrun pauses for --monitor-interval also when all ranks have ended",
)
METHOD_NAME = TorchName(
    _RENDEZVOUS,
    "get_method_name",
    _SINCE_2_4,
    "names each event of a rendezvous, for which torch reads the source of the whole stack twice, some 10 ms",
    "torch reads the source",
    ("depth",),
)
SPREAD = TorchName(
    _RENDEZVOUS,
    "_delay",
    _SINCE_2_4,
    'makes the random pause of 0 to 0.3 s before a first rendezvous, "to slightly skew the rendezvous attempts across '
    'the nodes"; 2.15 has a second use of it',
    "a node that waits for no other pauses too",
    ("seconds",),
)
JOIN = TorchName(
    _RENDEZVOUS,
    "DynamicRendezvousHandler.next_rendezvous",
    _SINCE_2_4,
    "knows how many nodes there are when the pause is made",
    "a node that waits for no other pauses too",
    ("self",),
)
START = TorchName(
    _PROCESSES,
    "PContext.start",
    _SINCE_2_4,
    "tells when all ranks of an attempt are started, with their pids",
    "the guard looks for ranks by the run's id, a second signal breaks off torchrun's orderly end",
    ("self",),
)
WAIT = TorchName(
    _PROCESSES,
    "PContext.wait",
    _SINCE_2_4,
    "tells which ranks torchrun has seen fail, in attempts that are followed by another too",
    "the guard knows what it saw itself",
    ("self", "timeout", "period"),
)
CLOSE = TorchName(
    _PROCESSES,
    "PContext.close",
    ("2.13",),
    "ends the ranks and waits for them; where another rank has died torchrun has it wait 30 s, whatever was asked for",
    "ranks have 30 s to end after another one's death",
    ("self", "death_sig", "timeout"),
)
ON_SIGNAL = TorchName(
    _PROCESSES,
    "_terminate_process_handler",
    ("2.13",),
    "torchrun's handler of signals, recognised to put ddplaunch's in front of it",
    "a second signal breaks off torchrun's orderly end",
    ("signum", "frame"),
)
POPEN = TorchName(
    f"{_ELASTIC}.multiprocessing.subprocess_handler",
    "SubprocessHandler._popen",
    _SINCE_2_4,
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
ENGINE = TorchName(
    "torch.autograd.variable",
    "Variable._execution_engine",
    ("2.13",),
    "runs backward passes; `rank_site/ddplaunch_phases.py` puts one in its place that notes when they begin and end",
    "`--phases` does not know how long forward and backward passes take",
)
FETCH = TorchName(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter.__next__",
    ("2.13",),
    "fetches a batch; `rank_site/ddplaunch_phases.py` notes when it is looked up and let go of",
    "`--phases` does not know how long ranks wait for data",
    ("self",),
)
WORK_WAIT = TorchName(
    "torch._C._distributed_c10d",
    "Work.wait",
    ("2.13",),
    "waits for a collective of the script's own; `rank_site/ddplaunch_phases.py` notes it as the one before",
    "`--phases` does not know how long ranks wait for collectives of the script's own",
)
DDP_TIMES = TorchName(
    "torch.nn.parallel.distributed",
    "DistributedDataParallel._get_ddp_logging_data",
    ("2.13",),
    "knows how long a backward pass waited for gradients of other ranks; `rank_site/ddplaunch_timeline.py` asks it",
    "`--phases` ends at the first step",
    ("self",),
)
DELETE_LIBRARY = TorchName(
    "torch.library",
    "_del_library",
    ("2.13",),
    "withdraws the operators of a library when the interpreter ends, recognised by its module to leave it out",
    "forked ranks take longer to end",
)
TORCH_NAMES = tuple(each for each in list(vars().values()) if isinstance(each, TorchName))


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
            AGENT_CLOCK.owner().time = SimpleNamespace(**{**vars(time), "sleep": self.sleep})

    def _close(self) -> None:
        while self._running:
            os.close(self._running.pop())


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


def wait_for_ranks(grace_s: float) -> None:
    """Let ranks that are told to end have ``grace_s`` seconds, for whatever reason they are told to."""
    contexts = CLOSE.owner()
    if contexts is None or not CLOSE.has_its_parameters():
        return
    theirs = contexts.close

    def close(context: Any, death_sig: Any = None, timeout: float = grace_s) -> None:
        theirs(context, death_sig, grace_s)

    contexts.close = close


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
        handlers = POPEN.owner()
        if handlers is None or not POPEN.has_its_parameters():
            self._tell("this torch starts them in a way unknown to ddplaunch")
            return
        popen = handlers._popen

        def start_one(handler: Any, args: Sequence[str], env: Mapping[str, str]) -> Any:
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, self.of(env) or before)
            try:
                return popen(handler, args, env)
            finally:
                os.sched_setaffinity(0, before)

        handlers._popen = start_one

    def _tell(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"ranks are not bound to CPUs: {why}")


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
