"""Every name of torch's internals that ddplaunch replaces or calls, with the versions of torch that had it.

``TORCH_NAMES`` lists them, with what happens if a torch lacks one. Torch is imported when a function is called, not
with this module.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

from ddplaunch.values.frozen import dataclass


def _release(version: str) -> tuple[int, int]:
    """Return (2, 13) for "2.13.0+cpu"; a custom build, whose version is not a number, counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize, 0)


@dataclass(frozen=True)
class TorchName:
    """One name, and the module of https://github.com/pytorch/pytorch that defines it.

    ``since`` is the oldest release of torch that was seen to have it, of 2.4, 2.6, 2.8, 2.13 and 2.15.
    ``parameters`` are those of a function that is replaced or called, None for anything else. ``in_torchrun``: used in
    torchrun's own process, otherwise in the ranks. ``beside`` are private names that are used with it: attributes of
    the class's objects, or names in the same module.
    """

    module: str
    name: str
    since: str
    why: str
    fallback: str
    parameters: tuple[str, ...] | None = None
    in_torchrun: bool = True
    beside: tuple[str, ...] = ()

    def owner(self) -> Any:
        """Return the module or class that contains the name; None in a torch without it."""
        path, _, last = self.name.rpartition(".")
        try:
            owner: Any = importlib.import_module(self.module)
            if path:
                owner = getattr(owner, path)
        except (ImportError, AttributeError):
            return None
        return owner if last in vars(owner) else None

    def value(self) -> Any:
        """Return the value of the name; None in a torch without it."""
        owner = self.owner()
        return None if owner is None else getattr(owner, self.name.rpartition(".")[2])

    def is_known(self) -> bool:
        """Return whether this torch has the name, and with exactly ``parameters`` if it is a function."""
        if self.parameters is None:
            return self.value() is not None
        try:
            return tuple(inspect.signature(self.value()).parameters) == self.parameters
        except (TypeError, ValueError):
            return False

    def expected_in(self, torch: str) -> bool:
        """Return whether the release ``torch`` ("2.16.0+cpu") is at least as new as the first one with the name."""
        return _release(torch) >= _release(self.since)


_ELASTIC = "torch.distributed.elastic"
_PROCESSES = f"{_ELASTIC}.multiprocessing.api"

SPREAD = TorchName(
    f"{_ELASTIC}.rendezvous.dynamic_rendezvous",
    "_delay",
    "2.4",
    'makes the random pause of 0 to 0.3 s before a first rendezvous, "to slightly skew the rendezvous attempts across '
    'the nodes"; 2.15 has a second use of it',
    "a node that waits for no other pauses too",
    ("seconds",),
)
START = TorchName(
    _PROCESSES,
    "PContext.start",
    "2.4",
    "tells when all ranks of an attempt are started, with their pids",
    "the guard looks for ranks by the token of their launch, a second signal breaks off torchrun's orderly end",
    ("self",),
)
MONITOR = TorchName(
    f"{_ELASTIC}.agent.server.local_elastic_agent",
    "LocalElasticAgent._monitor_workers",
    "2.13",
    "tells which ranks torchrun has seen fail; `_remaining_restarts` is set to 0 where a restart cannot help",
    "the guard knows what it saw itself, and each failure is followed by a restart until `--max-restarts` is used up",
    ("self", "worker_group"),
    beside=("_remaining_restarts",),
)
CLOSE = TorchName(
    _PROCESSES,
    "PContext.close",
    "2.4",
    "ends the ranks and waits for them; where another rank has died torchrun has it wait 30 s, whatever was asked for",
    "ranks have 30 s to end after another one's death",
    ("self", "death_sig", "timeout"),
)
CLOSE_RANK = TorchName(
    f"{_ELASTIC}.multiprocessing.subprocess_handler",
    "SubprocessHandler.close",
    "2.13",
    "ends one rank by a signal to its whole process group, DataLoader workers included; the rank alone gets it now",
    "a rank with DataLoader workers cannot save on SIGTERM: they die of it first",
    ("self", "death_sig"),
    beside=("_stdout", "_stderr"),
)
ON_SIGNAL = TorchName(
    _PROCESSES,
    "_terminate_process_handler",
    "2.4",
    "torchrun's handler of signals, recognised to put ddplaunch's in front of it",
    "a second signal breaks off torchrun's orderly end",
    ("signum", "frame"),
)
POPEN = TorchName(
    f"{_ELASTIC}.multiprocessing.subprocess_handler",
    "SubprocessHandler._popen",
    "2.4",
    "starts one rank. There is no official place for a warm start: entry points choose logs and events, `--run-path "
    "--start-method fork` forks from a process with threads and hides the script's `sys.path`, `atexit` and signals. "
    "Here the command line, the environment and the opened outputs (`_stdout`, `_stderr`) are final",
    "ranks start cold",
    ("self", "args", "env"),
    beside=("_stdout", "_stderr"),
)
ENGINE = TorchName(
    "torch.autograd.variable",
    "Variable._execution_engine",
    "2.4",
    "runs backward passes; `rank_site/ddplaunch_phases.py` puts one in its place that notes when they begin and end",
    "`--phases` does not know how long forward and backward passes take",
    in_torchrun=False,
)
FETCH = TorchName(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter.__next__",
    "2.4",
    "fetches a batch; `rank_site/ddplaunch_phases.py` notes when it is looked up and let go of",
    "`--phases` does not know how long ranks wait for data",
    ("self",),
    in_torchrun=False,
)
WORK_WAIT = TorchName(
    "torch._C._distributed_c10d",
    "Work.wait",
    "2.4",
    "waits for a collective of the script's own; `rank_site/ddplaunch_phases.py` notes it as the one before",
    "`--phases` does not know how long ranks wait for collectives of the script's own",
    in_torchrun=False,
)
DDP_TIMES = TorchName(
    "torch.nn.parallel.distributed",
    "DistributedDataParallel._get_ddp_logging_data",
    "2.4",
    "knows how long a backward pass waited for gradients of other ranks; `rank_site/ddplaunch_timeline.py` asks it, "
    "and has it measure each pass on the CPU",
    "`--phases` ends at the first step",
    ("self",),
    in_torchrun=False,
    beside=("_set_ddp_runtime_logging_sample_rate",),
)
_NOT_COMPARED = "what ranks train with is not compared with the plan"
ITERATOR = TorchName(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter.__init__",
    "2.4",
    "begins an epoch; `rank_site/ddplaunch_observer.py` notes each iterator, and asks it what it gives",
    _NOT_COMPARED,
    ("self", "loader"),
    in_torchrun=False,
    beside=("_num_yielded", "_num_workers", "_index_sampler", "_auto_collation", "_dataset", "_dataset_kind"),
)
GET_ITERATOR = TorchName(
    "torch.utils.data.dataloader",
    "DataLoader._get_iterator",
    "2.4",
    "begins an epoch, and starts DataLoader's workers; `rank_site/ddplaunch_phases.py` notes how long that takes",
    "`--phases` counts beginning an epoch among the rest of a step",
    ("self",),
    in_torchrun=False,
)
WORKER_SIGNALS = TorchName(
    "torch.utils.data._utils.signal_handling",
    "_set_worker_signal_handlers",
    "2.13",
    "has a DataLoader worker die of SIGTERM; `rank_site/ddplaunch_marks.py` lets only its rank end it",
    "a rank cannot save where a batch system sends SIGTERM to its workers, too",
    in_torchrun=False,
    beside=("_set_worker_pids",),
)
WRAPPED = TorchName(
    "torch.nn.parallel.distributed",
    "DistributedDataParallel.__init__",
    "2.4",
    "wraps a model; `rank_site/ddplaunch_observer.py` compares the parameters of ranks unless a hook sends others",
    "whether ranks have the same parameters is not looked at",
    in_torchrun=False,
    beside=("_comm_hooks",),
)
GROUPS = TorchName(
    "torch.distributed.distributed_c10d",
    "_world",
    "2.4",
    "knows all process groups; `rank_site/ddplaunch_observer.py` asks each how many collectives it has begun",
    "that ranks exchanged nothing in their first steps is not noticed",
    in_torchrun=False,
)
SEQUENCE = TorchName(
    "torch._C._distributed_c10d",
    "ProcessGroup._get_sequence_number_for_group",
    "2.4",
    "counts the collectives that a process group has begun; `rank_site/ddplaunch_observer.py` asks it",
    "that ranks exchanged nothing in their first steps is not noticed",
    in_torchrun=False,
)
TORCH_NAMES = tuple(each for each in list(vars().values()) if isinstance(each, TorchName))


def unknown_names(torch: str) -> list[TorchName]:
    """Return the names used in torchrun's process that are missing or different in this torch, of version ``torch``.

    Call before replacing any of them.
    """
    return [each for each in TORCH_NAMES if each.in_torchrun and each.expected_in(torch) and not each.is_known()]
