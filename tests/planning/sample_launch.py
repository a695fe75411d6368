"""Launches as values, for tests of what is shown and recorded."""

from __future__ import annotations

from ddplaunch.checks.check import CheckOutcome, declare
from ddplaunch.machine.facts import CpuFacts, Facts, Gpu, HostFacts, NvmlFacts, PythonFacts, TorchFacts
from ddplaunch.planning.launch import Launch, Passed, Target, Topology, Variable
from ddplaunch.planning.options import Options
from ddplaunch.scaling.numbers import Assumption, Numbers
from ddplaunch.script.script_report import DeclaredAt
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.resolved import Resolved, Source, Unavailable

FLAG = Source("flag", "NPROC")
NOT_HERE = Unavailable("no such thing in this test")


def words_of(line: str) -> tuple[str, ...]:
    return tuple(line.split())


ARGV = words_of(
    "/opt/venv/bin/python -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --rdzv-backend=c10d "
    "--rdzv-endpoint=localhost:0 --rdzv-id=ddplaunch-0123456789ab --max-restarts=0 -- "
    "train.py --epochs 20 --lr 0.0004"
)


def numbers(world_size: int = 4) -> Numbers:
    return Numbers(
        world_size=Resolved(world_size, Source("computed", f"1 x {world_size}")),
        batch_size=Resolved(8, Source("flag", "--batch-size")),
        accum=Resolved(1, Source("default")),
        global_batch_size=Resolved(8 * world_size, Source("computed", f"8 × 1 × {world_size}")),
        base_lr=Resolved(0.0001, Source("flag", "--base-lr")),
        base_batch_size=Resolved(8, Source("default", "one GPU with the same batch")),
        lr_scaling=Resolved("linear", Source("default")),
        lr_factor=Resolved(float(world_size), Source("computed", f"{8 * world_size} / 8")),
        lr=Resolved(0.0001 * world_size, Source("computed", f"0.0001 × {world_size}")),
        base_warmup=Resolved(500, Source("flag", "--base-warmup")),
        warmup_steps=Resolved(500 * world_size, Source("computed", f"500 × {world_size}")),
        dataset_size=Resolved(60000, Source("flag", "--dataset-size")),
        steps_per_epoch=Resolved(60000 // (8 * world_size), Source("computed", f"60000 / {8 * world_size}")),
        assumptions=(
            Assumption(
                "`--base-lr` was tuned for one GPU with a batch of 8; change it with `--base-batch-size`",
                Source("default", "Goyal et al. 2017, https://arxiv.org/abs/1706.02677"),
            ),
        ),
    )


ENVIRONMENT = (
    Variable("PYTHONFAULTHANDLER", "1", Source("default"), "a rank that dies of a signal prints its Python stack"),
    Variable("OMP_NUM_THREADS", "4", Source("detected"), "16 usable CPUs / 4 processes; unset, torchrun would say 1"),
    Variable("CUDA_VISIBLE_DEVICES", "0,1,2,3", Source("flag", "--gpus"), "the GPUs of this launch"),
    Variable("NCCL_IB_DISABLE", "1", Source("detected"), "this machine has no InfiniBand device"),
    Variable("WANDB_API_KEY", "hunter2hunter2", Source("flag", "--env"), "yours"),
    Variable("PET_NNODES", None, Source("default"), "torchrun would read it as an option that is not in this plan"),
)


def launch(**changes: object) -> Launch:
    values: dict[str, object] = {
        "run_id": "20261121-143012-x7k2q9",
        "target": Target("script", "train.py", ("--epochs", "20", "--lr", "0.0004")),
        "topology": Topology(Resolved(1, Source("default")), Resolved(4, FLAG), 1),
        "device": Resolved("cuda", Source("detected")),
        "gpus": ("0", "1", "2", "3"),
        "numbers": numbers(),
        "passed": (Passed("lr", "0.0004", ("--lr", "0.0004"), DeclaredAt("train.py", 31)),),
        "environment": ENVIRONMENT,
        "argv": ARGV,
        "options": Options(),
    }
    return Launch(**{**values, **changes})  # type: ignore[arg-type]


def two_nodes() -> Launch:
    topology = Topology(
        Resolved(2, Source("flag", "--nnodes")),
        Resolved(8, FLAG),
        2,
        Resolved(0, Source("flag", "--node-rank")),
        Resolved("node-1", Source("flag", "--master-addr")),
        Resolved(29500, Source("default")),
    )
    return launch(topology=topology, gpus=tuple("01234567"), numbers=numbers(16))


def cpu_only() -> Launch:
    """A launch about whose numbers nothing was said."""
    topology = Topology(Resolved(1, Source("default")), Resolved(2, FLAG), 1)
    world = Numbers(world_size=Resolved(2, FLAG))
    return launch(
        topology=topology,
        gpus=None,
        device=Resolved("cpu", Source("flag", "--device")),
        numbers=world,
        passed=(),
        environment=ENVIRONMENT[:2],
    )


def facts(gpus: int = 4, environment: dict[str, str] | None = None) -> Facts:
    h100 = tuple(Gpu(index, f"GPU-{index:08x}", "NVIDIA H100 80GB HBM3") for index in range(gpus))
    return Facts(
        host=HostFacts("node-1", ("10.0.0.1",), "6.8.0", "docker", "ada"),
        python=PythonFacts("/opt/venv/bin/python", "3.11.9"),
        torch=TorchFacts("2.13.0+cu128", "/opt/venv/lib/torch", "12.8", None, frozenset({"--nnodes", "--rdzv-id"})),
        torch_import=NOT_HERE,
        nvidia=NOT_HERE,
        nvml=NvmlFacts("570.86.15", (12, 8), h100),
        cpu=CpuFacts(16, 16, None, 16),
        memory=NOT_HERE,
        shm=NOT_HERE,
        limits=NOT_HERE,
        network=NOT_HERE,
        environment={} if environment is None else environment,
    )


SHM: Finding = error(
    "shm-too-small",
    "/dev/shm is 64 MiB",
    where=("node-1", "node-2", "node-3", "node-4"),
    why="NCCL and DataLoader workers allocate from it and die with SIGBUS when it is full",
    fix="restart the container with `--ipc=host` or `--shm-size=16g`",
)

FILES: Finding = warning(
    "open-files-low",
    "the limit of open files is 1024",
    where="node-1",
    why="each DataLoader worker of each rank holds descriptors for the tensors that it shares",
    fix="run `ulimit -n 65536` in this shell, then the same command again",
)


def shm_too_small(shm: object) -> list[Finding]:
    """/dev/shm is large enough.

    NCCL and the workers of a DataLoader share memory through it.
    A container gets 64 MiB unless told otherwise.

    Where it is full, a rank dies with SIGBUS.
    """
    return []


def open_files_low(limits: object) -> list[Finding]:
    """Enough files can be open."""
    return []


def gpu_busy(nvml: object) -> list[Finding]:
    """No other process holds memory on the GPUs."""
    return []


SHM_CHECK = declare("host", shm_too_small)
FILES_CHECK = declare("host", open_files_low)
BUSY_CHECK = declare("gpu", gpu_busy)
CHECKS = (SHM_CHECK, FILES_CHECK, BUSY_CHECK)

HEALTHY = tuple(CheckOutcome(check, "passed") for check in CHECKS)
MIXED = (
    CheckOutcome(SHM_CHECK, "found", (SHM,)),
    CheckOutcome(FILES_CHECK, "found", (FILES,)),
    CheckOutcome(BUSY_CHECK, "skipped", reason="no NVIDIA driver is loaded"),
)
