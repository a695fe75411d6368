"""Collectives, barriers and first NCCL calls in which ranks waited in vain, or that ranks called differently."""

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
_STACKS = (
    "while it hangs: `py-spy dump --pid PID` for every rank; the one that is elsewhere than in the "
    "collective is the cause"
)
_RECORDER = (
    "record the collectives: `--env TORCH_FR_BUFFER_SIZE=2000 --env TORCH_NCCL_DUMP_ON_TIMEOUT=1` (before 2.9 "
    "`TORCH_NCCL_TRACE_BUFFER_SIZE`), then `torchfrtrace`"
)
_LONGER = (
    "if one rank has honest work meanwhile (evaluation, checkpoint, download): let all ranks do it, or "
    "`init_process_group(timeout=timedelta(hours=2))`"
)
_WHY = (
    "one rank was late, stuck or gone, or issued another collective; the ranks that waited are the ones that complain"
)
_WATCHDOG = r"(?:\[Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout: "
_RAN = (
    r"OpType=(?P<op>\w+)(?:, NumelIn=\d+, NumelOut=\d+)?,? ?(?:TensorShape=\[.*?\], )?"
    r"Timeout\(ms\)=(?P<timeout_ms>\d+)\) ran for \d+ milliseconds"
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
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(rf"{_WATCHDOG}WorkNCCL\(SeqNum=1, {_RAN}",),
        what="the first collective ({op}, SeqNum=1) did not complete within {timeout_ms} ms",
        why="the GPUs connected but no data arrived: transport between GPUs or nodes (P2P under IOMMU or ACS, a wrong "
        "network interface), or a rank that came late to its first collective",
        fixes=(
            "tell transport from a late rank: run once with `--env NCCL_P2P_DISABLE=1`, between nodes with "
            "`--no-nccl-ib` and `--socket-ifname NAME`",
            "see which transport NCCL chose: `--nccl-debug INFO`",
            _STACKS,
            _LONGER,
        ),
        examples=(
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, "
            "NumelOut=1, Timeout(ms)=600000) ran for 600031 milliseconds before timing out.",
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST, "
            "Timeout(ms)=1800000) ran for 1800655 milliseconds before timing out.",
        ),
        near_misses=("WorkNCCL(SeqNum=12, OpType=ALLREDUCE, Timeout(ms)=600000)",),
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
    ),
    Signature(  # OpType alone 1.9-1.11, SeqNum from 1.12, NumelIn from 2.1
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(rf"{_WATCHDOG}Work\w+\((?:SeqNum=\d+, )?{_RAN}", rf"^Work\w+\((?:SeqNum=\d+, )?{_RAN}"),
        what="{op} did not complete within {timeout_ms} ms",
        why=_WHY,
        fixes=(_STACKS, _RECORDER, _LONGER),
        examples=(
            "[E ProcessGroupNCCL.cpp:587] [Rank 1] Watchdog caught collective operation timeout: "
            "WorkNCCL(OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800904 milliseconds before timing out.",
            "[Rank 4] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, "
            "NumelIn=544997376, NumelOut=68124672, Timeout(ms)=600000) ran for 600099 milliseconds before timing out.",
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, "
            "Timeout(ms)=1800000) ran for 25624887 milliseconds before timing out.",
            "[Rank 0] Watchdog caught collective operation timeout: WorkXCCL(SeqNum=4, OpType=GATHER, "
            "Timeout(ms)=600000) ran for 600001 milliseconds",
            "WorkNCCL(SeqNum=207, OpType=REDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600034 "
            "milliseconds before timing out.",
            "Watchdog caught collective operation timeout: WorkHCCL(SeqNum=9, OpType=ALLREDUCE, Timeout(ms)=1800000) "
            "ran for 1800100 milliseconds before timing out.",
        ),
        near_misses=("NCCL INFO Watchdog started, Timeout(ms)=600000",),
        source="https://github.com/pytorch/pytorch/issues/118369",
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.HINT,
        patterns=(
            r"Rank (?P<rank>\d+)\].*"
            r"(?:Timeout at NCCL work|detected by watchdog at work|failure detected by watchdog at work sequence id): "
            r"(?P<seq>\d+),?.*?"
            r"last enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
        ),
        what="rank {rank} stopped at collective {seq} (last enqueued {enqueued}, last completed {completed})",
        why=_WHY,
        fixes=(_STACKS, _RECORDER),
        examples=(
            "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 7753, last enqueued "
            "NCCL work: 7755, last completed NCCL work: 7752.",
            "[PG ID 2 PG GUID 9 Rank 4] Timeout at NCCL work: 610, last enqueued NCCL work: 616, last completed "
            "NCCL work: 609.",
            "[PG ID 0 PG GUID 0(default_pg) Rank 2]  failure detected by watchdog at work sequence id: 1248 PG status: "
            "last enqueued work: 1248, last completed work: 1247",
        ),
        near_misses=("[Rank 0] Some NCCL operations have failed or timed out.",),
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"(?:Rank (?P<rank>\d+)\] ?)?\w*(?:'s)? ?watchdog got (?P<line>stuck for \d+ seconds)",
            r"Rank (?P<rank>\d+)\].*(?P<line>Heartbeat monitor timed out)",
            r"Heartbeat monitor timed out",
            r"Rank (?P<rank>\d+)\].*(?P<line>Received a (?:global timeout|dump signal due to a (?!coll)\w+ ?timeout))",
        ),
        what="NCCL's watchdog saw no progress ({line})",
        why="a CUDA or NCCL call never returned, or a thread held the GIL inside one; a longer heartbeat only hides it",
        fixes=(
            _STACKS,
            _RECORDER,
            "if a checkpoint or compilation honestly takes that long: `--env TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800`",
        ),
        examples=(
            "[PG ID 0 PG GUID 0(default_pg) Rank 2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without "
            "making progress in monitoring enqueued collectives.",
            "[rank1]:[E ProcessGroupNCCL.cpp:1316] [PG 0 Rank 1] Heartbeat monitor timed out! Process will be "
            "terminated after dumping",
            "Heartbeat monitor timed out! Process will be terminated after dumping debug info. workMetaList_.size()=1",
            "[PG 0 Rank 3] Received a global timeout from another rank and will start to dump the debug info.",
        ),
        near_misses=("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=480",),
    ),
    Signature(  # every rank prints it when one of them times out, which need not be the one that is to blame
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(r"Received a dump signal due to a collective timeout (?P<from>from +(?:rank \d+|this local rank))",),
        what="a collective timed out; the first report came {from}",
        why=_WHY,
        fixes=(_STACKS, _RECORDER, _LONGER),
        examples=(
            "[PG ID 0 PG GUID 0 Rank 5] Received a dump signal due to a collective timeout from this local rank",
            "[PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump signal due to a collective timeout from  rank 2",
        ),
        near_misses=("[PG 0 Rank 3] Received a global timeout from another rank",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"^(?:\w+Error: )?(?P<op>NCCL) communicator was aborted on rank (?P<rank>\d+)\..*Original reason for "
            r"failure was: .*WorkNCCL.*(?:[Tt]imeout|timed out)",
            r"^(?:\S+ )?WorkNCCL\(.*OpType=(?P<op>\w+).*Timeout\(ms\)=\d+\) timed out in blocking wait",
        ),
        what="{op} timed out",
        why=_WHY,
        fixes=(_STACKS, _RECORDER, _LONGER),
        examples=(
            "RuntimeError: NCCL communicator was aborted on rank 2.  Original reason for failure was: [Rank 2] "
            "WorkNCCL timeout: ran for 1800 s",
            "RuntimeError: WorkNCCL(SeqNum=4, OpType=BROADCAST, Timeout(ms)=60000) timed out in blocking wait "
            "(TORCH_NCCL_BLOCKING_WAIT=1).",
            "c10::DistBackendError: WorkNCCL(SeqNum=2, OpType=ALLGATHER, Timeout(ms)=60000) timed out in "
            "blocking wait.",
        ),
        near_misses=("NCCL communicator was aborted on rank 1.",),
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"\[(?P<waiting>\d+)\] is setting up NCCL communicator and retrieving ncclUniqueId from "
            r"\[(?P<culprit>\d+)\].*store->get\('[^']*'\) got error: (?:Socket Timeout|wait timeout|Timeout)",
        ),
        what="rank {waiting} waited in vain for rank {culprit} to begin the first collective",
        why="rank {culprit} makes the id of the communicator when it comes to its first collective; it was still busy "
        "(download, tokenising, compiling) or had failed",
        fixes=(
            "let rank {culprit} do that work before `init_process_group`, or give it time: "
            "`init_process_group(timeout=timedelta(hours=2))`",
            "look at the output of rank {culprit}: `--show {culprit}`",
            _STACKS,
        ),
        examples=(
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from "
            "[0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
            "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: wait timeout after 1800000ms",
        ),
        near_misses=(
            "[1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key "
            "'0', but store->get('0') got error: Connection reset by peer",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"Timed out waiting \d+ms for (?P<op>\w+) operation",
            r"(?P<op>Application) timeout caused pair closure",
        ),
        what="gloo: a {op} operation was not answered in time",
        why="gloo waits for the other ranks of the collective; " + _WHY,
        fixes=(_STACKS, _LONGER),
        examples=(
            "RuntimeError: [/__w/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
            "15000ms for recv operation to complete",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:136] Timed out waiting 1800000ms "
            "for send operation to complete",
            "terminate called after throwing an instance of 'gloo::IoException' what(): Application timeout "
            "caused pair closure",
        ),
        near_misses=(
            "Timed out waiting for clients",
            "Timed out after 31 seconds waiting for clients. 1/2 clients joined.",
        ),
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"Rank 0 timed out in monitoredBarrier after (?P<timeout_ms>\d+) ms(?P<nobody>\. No ranks successfully)?",
        ),
        what="rank 0 waited {timeout_ms} ms in monitored_barrier, and not all ranks came",
        why="rank 0 asks each rank in turn; the others were late, stuck or gone",
        fixes=("look at the output of the other ranks: `--show all`", _STACKS, _LONGER),
        examples=(
            "RuntimeError: Rank 0 timed out in monitoredBarrier after 60000 ms. No ranks successfully processed in it.",
        ),
        near_misses=("Rank 1 failed to pass monitoredBarrier in 8000 ms",),
        source="https://pytorch.org/docs/stable/distributed.html#torch.distributed.monitored_barrier",
    ),
    Signature(
        code="collective-timeout",
        tier=Tier.SYMPTOM,
        patterns=(
            r"Rank(?:s|\(s\))? (?P<culprit>\d+(?:, ?\d+)*),? failed to pass monitored(?:_b|B)arrier in "
            r"(?P<timeout_ms>\d+) ms",
        ),
        what="rank {culprit} did not come to monitored_barrier within {timeout_ms} ms",
        why="rank 0 asks each rank in turn; the ones that it names were late, stuck or gone",
        fixes=("look at the output of rank {culprit}: `--show {culprit}`", _STACKS, _LONGER),
        examples=(
            "[rank0]: RuntimeError: [Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms",
            "RuntimeError: Rank 1 failed to pass monitoredBarrier in 300000 ms",
            "[Rank 0]: Rank 2, 3 failed to pass monitored_barrier in 60000 ms",
        ),
        near_misses=(
            "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
            "rank 0.",
        ),
        source="https://pytorch.org/docs/stable/distributed.html#torch.distributed.monitored_barrier",
    ),
)
