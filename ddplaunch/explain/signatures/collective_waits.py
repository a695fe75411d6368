"""How waiting in vain shows in gloo, barriers and the first NCCL call; refuses waits before there is a group."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures.collective_timeout import LONGER, STACKS, WHY

_CODE = "collective-timeout"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code=_CODE,
        role="root",
        literals=("is setting up NCCL communicator",),
        patterns=(
            r"\[(?P<waiting>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from "
            r"\[(?P<culprit>\d+)\].*"
            r"store->get\('(?P<key>[^']*)'\) got error: (?P<error>Socket Timeout|wait timeout|Timeout)",
        ),
        what="rank {waiting} waited in vain for rank {culprit} to begin the first collective",
        why="rank {culprit} makes the id of the communicator when it comes to its first collective; it was "
        "still busy (download, "
        "tokenising, compiling) or had failed",
        fixes=(
            "let rank {culprit} do that work before `init_process_group`, or give it time: "
            "`init_process_group(timeout=timedelta(hours=2))`",
            "look at the output of rank {culprit}: `--show {culprit}`",
            STACKS,
        ),
        examples=(
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId "
            "from [0] via c10d "
            "key-value store by key '0', but store->get('0') got error: Socket Timeout",
            "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
            "key-value store by key "
            "'0', but store->get('0') got error: wait timeout after 1800000ms",
        ),
        near_misses=(
            "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store "
            "by key '0', but "
            "store->get('0') got error: Connection reset by peer",
        ),
        priority=44,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    Signature(
        code=_CODE,
        role="root",
        literals=("Timed out waiting", "gloo::IoException", "Application timeout caused pair closure"),
        patterns=(
            r"Timed out waiting (?P<timeout_ms>\d+)ms for (?P<op>\w+) operation",
            r"(?P<op>Application) timeout caused pair closure",
        ),
        what="gloo: a {op} operation was not answered in time",
        why="gloo waits for the other ranks of the collective; " + WHY,
        fixes=(STACKS, LONGER),
        examples=(
            "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out "
            "waiting 15000ms for recv "
            "operation to complete",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:136] Timed out waiting "
            "1800000ms for send "
            "operation to complete",
            "terminate called after throwing an instance of 'gloo::IoException' what(): Application timeout "
            "caused pair closure",
        ),
        near_misses=(
            "Timed out waiting for clients",
            "Timed out after 31 seconds waiting for clients. 1/2 clients joined.",
        ),
        priority=42,
    ),
    Signature(
        code=_CODE,
        role="root",
        literals=("failed to pass monitoredBarrier", "failed to pass monitored_barrier"),
        patterns=(
            r"Rank(?:s|\(s\))? (?P<culprit>\d+(?:, ?\d+)*),? failed to pass monitored_?[bB]arrier in "
            r"(?P<timeout_ms>\d+) ms",
        ),
        what="rank {culprit} did not come to monitored_barrier within {timeout_ms} ms",
        why="rank 0 asks each rank in turn; the ones that it names were late, stuck or gone",
        fixes=("look at the output of rank {culprit}: `--show {culprit}`", STACKS, LONGER),
        examples=(
            "[rank0]: RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms",
            "RuntimeError: Rank 1 failed to pass monitoredBarrier in 300000 ms",
            "[Rank 0]: Rank 2, 3 failed to pass monitored_barrier in 60000 ms",
        ),
        near_misses=(
            "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            "rank 0.",
        ),
        priority=46,
        source="https://pytorch.org/docs/stable/distributed.html#torch.distributed.monitored_barrier",
    ),
)
