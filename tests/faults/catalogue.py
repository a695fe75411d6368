"""Faults that really happen: a training script, how it is launched, and what has to be said of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

#: In front of each script. A short timeout of the process group keeps the waiting ranks' part of a fault short. Before
#: it begins to count, the ranks wait for each other: on a busy machine one imports torch long after another.
INIT = """
import datetime, os, signal, sys, time
import torch
import torch.distributed as dist

def init(backend="gloo"):
    open("imported-" + os.environ["RANK"], "w").close()
    while not all(os.path.exists(f"imported-{rank}") for rank in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=float(os.environ.get("PG_TIMEOUT", "60"))))
    return dist.get_rank(), dist.get_world_size()

def reduce(n=4):
    t = torch.ones(n)
    dist.all_reduce(t)
    return t
"""

DATASET = """
from torch.utils.data import DataLoader, Dataset
class Images(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return item(i)
"""

#: What DistributedDataParallel imports, for two seconds, is imported once for both ranks.
IMPORTED = ("--start", "warm", "--preload", "torch._dynamo")
ANY = -1  # also where all ranks fail alike: torchrun may end the others before they say so


@dataclass(frozen=True)
class Fault:
    """``codes`` are the right ones, best first; ``rank`` the guilty one (None: none, or all alike; ANY: not decidable).

    ``status`` is the exit status of the launcher. ``wrap`` comes in front of the command.
    """

    name: str
    body: str
    codes: tuple[str, ...]
    rank: int | None
    status: int
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    wrap: tuple[str, ...] = ()
    says: str = ""  # has to be on the console
    holds_port: int | None = None
    root: bool = False

    @property
    def statuses(self) -> set[int]:
        """The exit statuses that are right.

        134 as well where Python ends a rank while gloo's threads run: ``std::terminate`` is faster now and then, under
        plain torchrun too.
        """
        return {self.status, 134} if self.status == 1 else {self.status}


def small_mount(path: str, size: str) -> tuple[str, ...]:
    """Return the words that run a command with a file system of ``size`` at ``path``, which only it sees."""
    mount = f'mkdir -p {path} && mount -t tmpfs -o size={size} tmpfs {path} && exec "$@"'
    return ("unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh")


def little_memory(mib: int) -> tuple[str, ...]:
    """Return the words that run a command in a cgroup of its own with so much memory, version 1 or 2."""
    join = (
        "d=/sys/fs/cgroup/memory/ddplaunch-test-$$; limit=memory.limit_in_bytes; "
        "[ -d /sys/fs/cgroup/memory ] || { d=/sys/fs/cgroup/ddplaunch-test-$$; limit=memory.max; }; "
        f'mkdir $d && echo {mib}M > $d/$limit && echo $$ > $d/cgroup.procs && exec "$@"'
    )
    return ("sh", "-c", join, "sh")


TWO_NODES = ("--nnodes", "2", "--join-timeout", "0", "--torchrun-arg", "--rdzv-conf=timeout=2")
FIRST = (*TWO_NODES, "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "29662")
SECOND = (*TWO_NODES, "--node-rank", "1", "--master-addr", "no-such-host.invalid", "--master-port", "29663")
FAULTS = (
    Fault(
        "killed",
        "r, w = init()\nfor s in range(50):\n    reduce()\n    if r == 1 and s == 20: os.kill(os.getpid(), 9)\n",
        ("killed",),
        1,
        137,
    ),
    Fault(
        "segmentation_fault",
        "import ctypes\nr, w = init()\nreduce()\nif r == 1:\n    ctypes.string_at(0)\nreduce()\n",
        ("segmentation-fault",),
        1,
        139,
    ),
    Fault("nccl_on_cpu", "r, w = init('nccl')\nreduce()\n", ("nccl-unavailable",), ANY, 1),
    Fault("no_process_group", "reduce()\n", ("process-group-not-initialized",), ANY, 1),
    Fault(
        "shapes_differ",
        "r, w = init()\nreduce(4 if r == 0 else 5)\nreduce()\n",
        ("collective-mismatch",),
        ANY,
        1,
        environment={"PG_TIMEOUT": "15"},
    ),
    Fault(
        "unused_parameters",
        "from torch.nn.parallel import DistributedDataParallel as DDP\nr, w = init()\nclass Net(torch.nn.Module):\n    "
        "def __init__(self):\n        super().__init__()\n        self.a, self.b = torch.nn.Linear(8, 8), "
        "torch.nn.Linear(8, 2)\n    def forward(self, x): return self.a(x)\nm = DDP(Net())\nfor i in range(3):\n    "
        "m(torch.randn(2, 8)).sum().backward()\n",
        ("unused-parameters",),
        ANY,
        1,
        options=IMPORTED,
    ),
    Fault(
        "parameters_differ",
        "from torch.nn.parallel import DistributedDataParallel as DDP\nr, w = init()\n"
        "m = DDP(torch.nn.Linear(8, 8 if r == 0 else 10))\n",
        ("parameter-mismatch",),
        1,
        1,
        options=IMPORTED,
        environment={"PG_TIMEOUT": "15"},
    ),
    Fault(
        "passes_sigterm_on",
        "def pass_on(number, frame):\n    os.kill(os.getppid(), number)\n    os._exit(0)\n"
        "signal.signal(signal.SIGTERM, pass_on)\nr, w = init()\nreduce()\n"
        "if r == 1: raise ValueError('bad sample 1234')\ntime.sleep(60)\n",
        ("script-exception",),
        1,
        1,
        says="ValueError: bad sample 1234",
    ),
    Fault(
        "worker_left",
        DATASET + "def item(i): os._exit(3)\nr, w = init()\nreduce()\nif r == 1:\n"
        "    for b in DataLoader(Images(), batch_size=8, num_workers=1):\n        pass\nreduce()\n",
        ("script-exception",),
        1,
        1,
        says="DataLoader worker",
    ),
    Fault(
        "empty_checkpoint",
        "r, w = init()\nreduce()\nopen('last.pt', 'a').close()\nif r == 1:\n    torch.load('last.pt')\nreduce()\n",
        ("checkpoint-corrupt",),
        1,
        1,
    ),
    Fault(
        "left_early",
        "r, w = init()\nfor i in range(3 + r):\n    reduce()\nprint('rank', r, 'is through', flush=True)\n",
        ("rank-left-early",),
        0,
        1,
        says="rank 0 left with status 0",
    ),
    Fault(
        "aborted_at_exit",
        "import ctypes\nr, w = init()\ndist.barrier()\ndist.destroy_process_group()\nlibc = ctypes.CDLL(None)\n"
        "if r == 1: libc.__cxa_atexit(libc.abort, None, None)\n",
        ("aborted-at-exit",),
        1,
        134,
        says="rank 1 aborted after the program was through",
    ),
    Fault(
        "host_memory",
        "r, w = init()\nkeep = []\nfor i in range(4000):\n    if r == 1:\n        keep.append(torch.ones(1 << 21))\n"
        "    else:\n        time.sleep(0.01)\n    if i % 50 == 0:\n        reduce()\n",
        ("host-out-of-memory",),
        1,
        137,
        wrap=little_memory(1000),
        options=("--ignore", "memory-short"),
        root=True,
    ),
    Fault(
        "shm_too_small",
        DATASET + "def item(i): return torch.randn(3, 512, 512)\nr, w = init()\n"
        "for b in DataLoader(Images(), batch_size=8, num_workers=2):\n    print('rank', r, b.shape)\n",
        ("shm-too-small",),
        ANY,
        1,
        wrap=small_mount("/dev/shm", "8m"),
        options=("--ignore", "shm-too-small"),
        root=True,
    ),
    Fault(
        "port_taken",
        "r, w = init()\nreduce()\n",
        ("port-taken",),
        None,
        1,
        options=("--master-port", "29661"),
        holds_port=29661,
    ),
    Fault("node_missing", "r, w = init()\n", ("rendezvous-failed",), None, 1, options=FIRST),
    Fault("master_unresolvable", "r, w = init()\n", ("host-name-unresolvable",), None, 1, options=SECOND),
)
