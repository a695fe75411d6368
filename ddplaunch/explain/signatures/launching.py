"""Signatures of commands that could not become ranks: environment, arguments, paths; refuses later exceptions."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.launching_commands import COMMANDS
from ddplaunch.explain.signatures.launching_imports import IMPORTS

_NAMES = (
    r"RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|"
    r"SLURM_(?:PROCID|LOCALID|NTASKS|NPROCS|NODEID|NODELIST|JOB_NODELIST)|OMPI_COMM_WORLD_(?:RANK|SIZE|LOCAL_RANK)"
)
_LOCAL_RANK_WHY = (
    "torch.distributed.launch passes `--local-rank` (since torch 2.0; `--local_rank` before) as an argument; torchrun "
    "and "
    "ddplaunch set the variable LOCAL_RANK instead. Launcher and script speak different ones of these."
)
_LOCAL_RANK_FIXES = (
    'Read it from the environment: `local_rank = int(os.environ["LOCAL_RANK"])`, and start with '
    "`ddplaunch run 4 -- train.py`.",
    'To work with every launcher: `parser.add_argument("--local-rank", "--local_rank", type=int, '
    'default=int(os.environ.get("LOCAL_RANK", 0)))`.',
)

SIGNATURES: tuple[Signature, ...] = (
    *COMMANDS,
    *IMPORTS,
    Signature(
        code="missing-rank-environment",
        role="root",
        literals=("expected, but not set", "KeyError: '", "nvironment variable", "is not set"),
        patterns=(
            rf"environment variable (?P<name>{_NAMES}) expected, but not set",
            rf"KeyError: '(?P<name>{_NAMES})'",
            rf"[Ee]nvironment variables? [`'\"]?(?P<name>{_NAMES})[`'\"]? (?:is |are |was )?(?:not "
            rf"set|missing|undefined|required)",
            rf"\b(?P<name>{_NAMES})\b[`'\"]? (?:environment variable )?is not set",
        ),
        what="the variable {name} is not set in this process",
        why="RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR come from a launcher; this process was started without one",
        fixes=(
            "start the script with a launcher: `ddplaunch run 4 -- train.py` (or `ddplaunch run 1 -- train.py` for "
            "one process)",
            "in a notebook or test set them for one process: RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 "
            "MASTER_PORT=29500",
        ),
        examples=(
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
            "expected, "
            "but not set",
            "KeyError: 'LOCAL_RANK'",
            "KeyError: 'SLURM_PROCID'",
            "RuntimeError: Environment variable WORLD_SIZE is not set",
            "AssertionError: LOCAL_RANK is not set",
        ),
        near_misses=("KeyError: 'rank'", "KeyError: 'WORLD_SIZE_FACTOR'", "MASTER_ADDR is set to 10.0.0.1"),
        priority=68,
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py",
    ),
    Signature(
        code="local-rank-argument",
        role="root",
        literals=("local_rank", "local-rank"),
        patterns=(
            r"unrecognized arguments:.*(?P<option>--local[-_]rank)",
            r"(?:[Nn]o such option:?|[Uu]nknown command line flag|[Uu]nrecognized option:?|unexpected (?:keyword "
            r")?argument) "
            r"[`'\"]?(?P<option>-{0,2}local[-_]rank)",
            r"not used by the HfArgumentParser: .*(?P<option>--local[-_]rank)",
            r"required: (?:.*, )?(?P<option>--local[-_]rank)",
            r"object has no attribute '(?P<option>local[-_]rank)'",
        ),
        what="the script and its launcher disagree about `{option}`",
        why=_LOCAL_RANK_WHY,
        fixes=_LOCAL_RANK_FIXES,
        examples=(
            "baby_train.py: error: unrecognized arguments: --local-rank=0",
            "pretrain.py: error: unrecognized arguments: --local_rank=1",
            "Error: No such option: --local-rank Did you mean --local_rank?",
            "FATAL Flags parsing error: Unknown command line flag 'local-rank'. Did you mean: local_rank ?",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--local-rank=0']",
            "train.py: error: the following arguments are required: --local_rank",
            "AttributeError: 'Namespace' object has no attribute 'local_rank'",
        ),
        near_misses=(
            "If your script expects `--local-rank` argument to be set, please",
            "       [--local_rank LOCAL_RANK]",
            "train.py: error: unrecognized arguments: --epoch",
        ),
        priority=72,
        source="https://pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torc"
        "hrun",
    ),
)
