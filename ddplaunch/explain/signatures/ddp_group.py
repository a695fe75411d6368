"""How a missing process group and models that differ between ranks show; refuses the echo of a rank that had died."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="parameter-mismatch",
        role="root",
        literals=("appears not to match",),
        patterns=(
            r"(?:\[(?P<rank>\d+)\]: )?(?:params|replicas\[\d+\])\[(?P<index>\d+)\] in this process with sizes "
            r"\[(?P<sizes>[\d, ]*)\] "
            r"appears not to match "
            r"(?P<property>sizes|strides) of the same param in process 0",
        ),
        what="DDP: parameter {index} has {property} unlike rank 0's (sizes [{sizes}] here)",
        why="DDP needs the same model on every rank; here it was built from something that differs between ranks",
        fixes=(
            "build the model from the same configuration, vocabulary and checkpoint on every rank: print "
            "`[tuple(p.shape) for p in model.parameters()]` on each",
            "strides only: call `.contiguous()` on the parameters, or `model.to(memory_format=…)` on all ranks alike",
        ),
        examples=(
            "RuntimeError: [1]: params[0] in this process with sizes [10, 8] appears not to match sizes of the "
            "same param in process 0.",
            "RuntimeError: params[3] in this process with sizes [64, 3, 7, 7] appears not to match strides of "
            "the same param in process 0.",
            "RuntimeError: replicas[0][0] in this process with sizes [30522, 768] appears not to match sizes of the "
            "same param in process 0.",
        ),
        near_misses=("size mismatch for fc.weight: copying a param with shape [10, 8] from checkpoint",),
        priority=70,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="parameter-mismatch",
        role="root",
        literals=("DDP expects same model across all ranks",),
        patterns=(
            r"DDP expects same model across all ranks, but Rank (?P<one>\d+) has (?P<count>\d+) params, while "
            r"rank (?P<other>\d+) has "
            r"inconsistent (?P<other_count>[1-9]\d*) params",
        ),
        what="DDP: rank {one} has {count} parameters, rank {other} has {other_count}",
        why="DDP needs the same model on every rank; here layers or frozen parameters differ between ranks",
        fixes=(
            "build the model alike on every rank: no `if rank == 0:` around layers, the same `requires_grad` "
            "before DDP wraps it",
            "compare `[n for n, p in model.named_parameters() if p.requires_grad]` between the ranks",
        ),
        examples=(
            "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has "
            "inconsistent 2 params.",
        ),
        near_misses=(
            "DDP expects same model across all ranks, but Rank 1 has 62 params, while rank 0 has inconsistent 0 "
            "params.",
        ),
        priority=70,
    ),
    Signature(
        code="process-group-not-initialized",
        role="root",
        literals=(
            "process group is not initialized",
            "process group has not been initialized",
            "not initialized",
            "init_process_group",
            "process group is not available",
            "has not been initialized",
        ),
        patterns=(
            r"(?P<message>Default process group (?:is not|has not been) initialized)",
            r"(?P<message>[Pp]rocess group has not been initialized.*init_process_group)",
            r"(?:Error|Exception): (?P<message>.{0,60}?(?:[Dd]istributed|[Pp]rocess group)\b[^.]{0,60}\bnot "
            r"(?:been )?initialized)",
            r"(?P<message>default process group is not available)",
            r"(?P<message>DeepSpeed backend not set, please initialize it using init_process_group)",
            r"Error: (?P<message>.*\bparallel group is not initialized)",
        ),
        unless=(r"[Ww]arning", r"^\s*(?:raise|assert|if|#)\b"),
        what="torch.distributed was used before or without `init_process_group` (`{message}`)",
        why="collectives, DDP and DistributedSampler need the process group that `init_process_group` makes in "
        "the same process",
        fixes=(
            "call `torch.distributed.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')` first, "
            "once, at the top "
            "of `main()`",
            "start it under the launcher: `ddplaunch run N -- train.py`",
            "in code that also runs alone: `if torch.distributed.is_initialized():` around collectives; "
            "SyncBatchNorm needs DDP",
        ),
        examples=(
            "AssertionError: Default process group is not initialized",
            "RuntimeError: Default process group has not been initialized, please make sure to call "
            "init_process_group.",
            "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
            "RuntimeError: Process group has not been initialized, call init_process_group first",
            "RuntimeError: torch.distributed is not initialized",
            "AssertionError: DeepSpeed backend not set, please initialize it using init_process_group()",
            "AssertionError: data parallel group is not initialized",
            "RuntimeError: default process group is not available",
        ),
        near_misses=(
            "RuntimeError: CUDA driver error: system not yet initialized",
            "    raise RuntimeError('Default process group is not initialized')",
            "UserWarning: Default process group has not been initialized, please make sure to call init_process_group.",
        ),
        priority=66,
    ),
)
