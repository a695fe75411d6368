"""Ranks that issued different collectives, sizes or numbers of batches."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_SAME = (
    "every rank must call the same collectives in the same order with the same sizes: look for `if rank == "
    "0:` around one"
)
_DETAIL = (
    "find the two calls on a short run: `--env TORCH_DISTRIBUTED_DEBUG=DETAIL` (some versions crash with it under DDP)"
)
_UNEVEN = (
    "uneven numbers of batches: `DistributedSampler` with `drop_last=True` in the DataLoader, or "
    "`with model.join():` (torch.distributed.algorithms.join)"
)

SIGNATURES: tuple[Signature, ...] = (
    Signature(  # first of its code: what the comparison of all ranks' time-outs is told with
        code="collective-mismatch",
        tier=Tier.HINT,
        patterns=(r"Watchdog caught collective operation timeout: Work\w+\(",),
        what="ranks waited in different collectives, or one had issued fewer of them than the others",
        why="a collective pairs with whatever the other ranks call next; what has no partner never completes",
        fixes=(_SAME, _UNEVEN, _DETAIL),
        examples=("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",),
        near_misses=("[Rank 0] Some NCCL operations have failed or timed out.",),
    ),
    Signature(
        code="collective-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"Detected mismatch between collectives on ranks\. Rank (?P<one>\d+) is running (?:collective: )?.{0,80}?"
            r"OpType=(?P<op>\w+(?:, TensorShape=\[[\d, ]*\])?).{0,600}?but Rank (?P<other>\d+) is running "
            r"(?:collective: )?.*?OpType=(?P<other_op>\w+(?:, TensorShape=\[[\d, ]*\])?)",
        ),
        what="ranks called different collectives: rank {one} {op}, rank {other} {other_op}",
        why="a collective pairs with whatever the other ranks call next; different operations, shapes or numbers "
        "never complete",
        fixes=(_SAME, _UNEVEN),
        examples=(
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=0, OpType=BROADCAST, TensorShape=[4]), but Rank 0 is running "
            "collective: CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[4]).",
        ),
        near_misses=("Detected mismatch between the checkpoint and the model",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
    ),
    Signature(  # up to 1.12 the other rank is not told
        code="collective-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"Detected mismatch between collectives on ranks\. Rank (?P<one>\d+) is running (?:inconsistent )?"
            r"collective: .{0,80}?OpType=(?P<op>\w+(?:, TensorShape=\[[\d, ]*\])?)",
        ),
        what="rank {one} called another collective than the others: {op}",
        why="a collective pairs with whatever the other ranks call next; different operations or shapes never complete",
        fixes=(_SAME, _UNEVEN),
        examples=(
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running inconsistent collective: "
            "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[20, 10])",
        ),
        near_misses=("Detected mismatch between the checkpoint and the model",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp",
    ),
    Signature(
        code="collective-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"ProcessGroupWrapper: Monitored Barrier encountered error running collective: .*?OpType=(?P<op>\w+)",
        ),
        what="not every rank called {op}",
        why="with TORCH_DISTRIBUTED_DEBUG=DETAIL a barrier runs before each collective; some rank never came to "
        "this one",
        fixes=(_SAME, _UNEVEN),
        examples=(
            "RuntimeError: ProcessGroupWrapper: Monitored Barrier encountered error running collective: "
            "CollectiveFingerPrint(SequenceNumber=12, OpType=ALLREDUCE, TensorShape=[4]). Error: [Rank 1] Rank 0 "
            "failed to pass monitoredBarrier in 9000 ms",
        ),
        near_misses=("Rank 0 failed to pass monitoredBarrier in 9000 ms",),
    ),
    Signature(
        code="collective-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<expected>\d+)",
            r"(?P<got>\d+) vs (?P<expected>\d+)\. Received data size doesn't match expected size",
        ),
        what="gloo: a rank sent {got} bytes where another expected {expected}",
        why="ranks gave tensors of different sizes (or different collectives) to one call",
        fixes=(
            "print `tensor.shape` on every rank before the call; sizes that may differ need `all_gather_object` "
            "or padding",
            _SAME,
            _UNEVEN,
        ),
        examples=(
            "terminate called after throwing an instance of 'gloo::EnforceNotMet' what(): [enforce fail at "
            "../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 40 vs 16",
            "[enforce fail at pair.cc:494] 32 vs 16. Received data size doesn't match expected size. Is there a "
            "distributed collective mismatch in your code?",
        ),
        near_misses=("checkpoint: received data size 40 vs 16",),
    ),
    Signature(
        code="collective-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"Received data size doesn't match expected size",
            r"NCCL WARN (?P<line>Mismatched collective detected.*? rank \d+)",
            r"NCCL WARN .*(?P<line>collective mismatch error, local size \d+ remote size \d+)",
            r"NCCL WARN .*(?P<line>message truncated : receiving \d+ bytes instead of \d+)",
        ),
        what="ranks issued different collectives or sizes: `{line}`",
        why="a collective pairs with whatever the other ranks call next; NCCL or gloo noticed that the sizes do "
        "not fit",
        fixes=(
            _SAME,
            _DETAIL,
            _UNEVEN,
            "the NCCL settings (NCCL_ALGO, NCCL_PROTO, version) must be equal on all nodes too",
        ),
        examples=(
            "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?",
            "init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and "
            "around rank 39.",
            "NCCL WARN NET/IB : req 0/1 tag 0 peer 10.10.23.6<58683> collective mismatch error, local size "
            "496640 remote size 65536",
            "NCCL WARN NET/Socket : peer 10.1.2.3<47> message truncated : receiving 524288 bytes instead of 65536",
        ),
        near_misses=("UserWarning: message truncated to 100 characters",),
        source="https://github.com/NVIDIA/nccl/pull/605",
    ),
    Signature(
        code="collective-mismatch",
        tier=Tier.UNCERTAIN,
        patterns=(
            r"Detected at least one rank that exhausted inputs",
            r"\branks? .{0,40}different number of batches.*",
            r"Cannot apply desired operation due to shape mismatches",
        ),
        what="ranks came with different numbers or shapes of batches: `{line}`",
        why="the last batch, or the number of batches, differs between ranks, and a collective needs all of them alike",
        fixes=(_UNEVEN, "accelerate: `accelerator.pad_across_processes` before `gather`, or `gather_for_metrics`"),
        examples=(
            "RuntimeError: Detected at least one rank that exhausted inputs. Throwing across all ranks.",
            "RuntimeError: ranks have a different number of batches (313 and 312)",
            "accelerate.utils.operations.DistributedOperationException: Cannot apply desired operation due to shape "
            "mismatches. All shapes across devices must be valid.",
        ),
        near_misses=("each rank draws from a different number of files",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/algorithms/join.py",
    ),
)
