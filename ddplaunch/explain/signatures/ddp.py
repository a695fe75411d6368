"""Models that differ between ranks, a missing process group, gradients that DDP refuses, and NaN or infinity."""

from __future__ import annotations

from ddplaunch.explain.signatures.signature import Signature, Tier

_NAMES = "name them: `--env TORCH_DISTRIBUTED_DEBUG=INFO`"
_WHY = (
    "the loss or a gradient left the range of the number format, and a check stopped the run; the other ranks "
    "then wait in vain"
)
_FIXES = (
    "lower the learning rate or lengthen the warmup (`--lr X`, `--base-warmup N`, `--lr-scaling sqrt`): more "
    "GPUs had multiplied it",
    "clip: `torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`, and train in bfloat16 instead of float16",
    "find the first bad value: `torch.autograd.set_detect_anomaly(True)`, and look at that step's batch on that rank",
)
#: An exception whose message speaks of NaN or infinity.
_RAISED = r"^(?:[\w.]+\.)?\w*(?:Error|Exception|NonFinite\w*|NaN\w*)\b: "
_QUANTITY = r"\b(?i:\w*loss\w*|grad\w*|norm|logits?|outputs?|activations?|weights?|parameters?|values)\b"
#: A line of its own, not in the middle of another sentence.
_SAID = r"^(?:[\w.-]*(?:ERROR|CRITICAL|FATAL)\S* +)?"
_STOPS = r"\b(?i:abort\w*|exit\w*|stop\w*|terminat\w*|quit\w*|halt\w*)\b"
_BAD = r"\b(?:nan|NaN|NAN|NaNs|nans|inf|Inf|infs|infinite|infinity)\b"
#: "inf" beside a word for stopping is often a best loss so far and early stopping.
_NOT_A_NUMBER = r"\b(?:nan|NaN|NaNs|nans|non-finite|(?:Nan|NAN|inf|Inf|infinite)(?=.*stopping training))\b"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="hang",
        tier=Tier.SYMPTOM,
        patterns=(
            r"(?P<line>One or more tensors were submitted to be reduced, .* for more than (?P<seconds>\d+) seconds)",
        ),
        log_with=(r"^(?P<culprit>\d+): \[\w*(?:all|broad|reduce)\w*[.\w/]*",),
        what="Horovod: rank {culprit} does not come to a collective that the others wait in for {seconds} s",
        why="each rank has to submit the same tensors in the same order; that one skipped a step, or went another way",
        fixes=(
            "let all ranks call `optimizer.step()` for each batch, also for one without samples; "
            "`hvd.join()` where ranks have different numbers of batches",
            "end it: a rank that skipped one does not come any more",
        ),
        examples=(
            "stall_inspector.cc:107] One or more tensors were submitted to be reduced, gathered or broadcasted by "
            "subset of ranks and are waiting for remainder of ranks for more than 60 seconds. This may indicate that",
        ),
        near_misses=("stall_inspector.cc:30] Stall check is off",),
        source="https://horovod.readthedocs.io/en/stable/troubleshooting_include.html",
    ),
    Signature(
        code="parameter-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"(?:\[(?P<rank>\d+)\]: )?(?:params|replicas\[\d+\])\[(?P<index>\d+)\] in this process with sizes "
            r"\[(?P<sizes>[\d, ]*)\] appears not to match (?P<property>sizes|strides) of the same param in process 0",
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
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="parameter-mismatch",
        tier=Tier.CAUSE,
        patterns=(
            r"DDP expects same model across all ranks, but Rank (?P<one>\d+) has (?P<count>\d+) params, while rank "
            r"(?P<other>\d+) has inconsistent (?P<other_count>[1-9]\d*) params",
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
    ),
    Signature(
        code="process-group-not-initialized",
        tier=Tier.CAUSE,
        patterns=(
            r"Default process group (?:is not|has not been) initialized",
            r"[Pp]rocess group has not been initialized.*init_process_group",
            r"(?:Error|Exception): (?P<line>.{0,60}?(?:[Dd]istributed|[Pp]rocess group)\b[^.]{0,60}\b"
            r"(?:has not been|not) initialized)",
            r"default process group is not available",
            r"DeepSpeed backend not set, please initialize it using init_process_group",
            r"Error: (?P<line>.*\bparallel group is not initialized)",
        ),
        unless=(r"[Ww]arning", r"^\s*(?:raise|assert|if|#)\b"),
        what="torch.distributed was used before or without `init_process_group` (`{line}`)",
        why="collectives, DDP and DistributedSampler need the process group that `init_process_group` makes in "
        "the same process",
        fixes=(
            "call `dist.init_process_group()` once, at the top of `main()`, and `destroy_process_group` last",
            "start it under the launcher: `ddplaunch run N -- train.py`",
            "in code that also runs alone: `if torch.distributed.is_initialized():` around collectives; "
            "SyncBatchNorm needs DDP",
        ),
        examples=(
            "AssertionError: Default process group is not initialized",
            "RuntimeError: Default process group has not been initialized, please make sure to call "
            "init_process_group.",
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
    ),
    Signature(
        code="unused-parameters",
        tier=Tier.CAUSE,
        patterns=(
            r"Expected to have finished reduction in the prior iteration before starting a new one",
            r"your LightningModule has parameters that were not used in producing the loss",
        ),
        unless=(r"UserWarning",),
        what="DDP: some parameters got no gradient in the iteration before",
        why="DDP waits for a gradient of every parameter; a branch or output that the loss does not use leaves some "
        "without, on one rank only where the branch depends on the data",
        fixes=(
            "`DistributedDataParallel(model, find_unused_parameters=True)` (or `static_graph=True` if they are "
            "always the same)",
            _NAMES,
            "let every output of `forward` take part in the loss (add `0 * unused.sum()`), or freeze unused parameters "
            "before DDP wraps the model",
        ),
        examples=(
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This "
            "error indicates that your module has parameters that were not used in producing loss.",
            ": Expected to have finished reduction in the prior iteration before starting a new one.",
            "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss "
            "returned by training_step.",
        ),
        near_misses=(
            "[W reducer.cpp:1251] Warning: find_unused_parameters=True was specified in DDP constructor, but did not "
            "find any unused parameters in the forward pass.",
        ),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="unused-parameters",
        tier=Tier.HINT,
        patterns=(
            r"(?:Parameter indices|Parameters) which did not receive grad for rank (?P<rank>\d+)(?: ?in prior "
            r"iteration)?: (?P<parameters>.+)",
        ),
        what="DDP: rank {rank} got no gradient for {parameters}",
        why="DDP waits for a gradient of every parameter; these took no part in the loss",
        fixes=("`DistributedDataParallel(model, find_unused_parameters=True)`", _NAMES),
        examples=(
            "Parameter indices which did not receive grad for rank 1: 6 7",
            "Parameters which did not receive grad for rank 0: head.weight, head.bias",
        ),
        near_misses=("parameters which did not receive grad: none",),
    ),
    Signature(
        code="unused-parameters",
        tier=Tier.CAUSE,
        patterns=(r"Your training graph has changed in this iteration",),
        what="DDP: other parameters were used than in the first iteration, which `static_graph=True` forbids",
        why="with `static_graph=True` DDP counts on the same parameters getting gradients in every iteration",
        fixes=("`DistributedDataParallel(model, find_unused_parameters=True)` without `static_graph`", _NAMES),
        examples=(
            "RuntimeError: Your training graph has changed in this iteration, e.g., one parameter is unused in first "
            "iteration, but then got used in the second iteration.",
        ),
        near_misses=("[W reducer.cpp] Warning: static_graph is set, and the graph has not changed",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="parameter-ready-twice",
        tier=Tier.CAUSE,
        patterns=(
            r"Expected to mark a variable ready only once",
            r"(?:Parameter at index|Parameter) \S+(?: with name \S+)? has been marked as ready twice",
        ),
        what="DDP: {line}",
        why="one parameter's gradient was ready twice in one backward pass: reentrant activation checkpointing, a "
        "module called twice with shared weights, or two backward passes in one iteration",
        fixes=(
            "`torch.utils.checkpoint.checkpoint(…, use_reentrant=False)` (Hugging Face: "
            "`gradient_checkpointing_kwargs=dict(use_reentrant=False)`)",
            "`DistributedDataParallel(model, static_graph=True)`",
            "leave `find_unused_parameters=True` out where nothing is unused",
            _NAMES,
        ),
        examples=(
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following "
            "reasons: 1) Use of a module parameter outside the `forward` function.",
            "Parameter at index 311 with name base.lora_B has been marked as ready twice.",
            "Parameter indices 3 marked ready twice: Parameter at index 3 has been marked as ready twice",
        ),
        near_misses=("[W reducer.cpp:1280] parameter ready hooks installed",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="inplace-modification",
        tier=Tier.CAUSE,
        patterns=(
            r"one of the variables needed for gradient computation has been modified by an inplace operation: "
            r"\[(?P<tensor>[\w.]+(?: \[[^\]]*\])?)\], which is output \d+ of (?!AsStrided)"
            r"(?P<function>\w+), is at version (?P<version>\d+); expected version (?P<expected>\d+)",
        ),
        what="the output of `{function}` ({tensor}) was changed in place before backward used it: version {version}, "
        "expected {expected}",
        why="a gradient is computed from that output; `x += y`, `x[i] = …`, `x.add_(…)` or `inplace=True` behind the "
        "operation overwrote it",
        fixes=(
            "look for what changes it: write `x = x + y` for `x += y`, `inplace=False`, or `x = x.clone()` before",
            "find it: `torch.autograd.set_detect_anomaly(True)` prints the line of the forward pass",
        ),
        examples=(
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [torch.FloatTensor [2, 4]], which is output 0 of ReluBackward0, is at version 1; expected "
            "version 0 instead.",
        ),
        near_misses=("[torch.FloatTensor [10, 10]], which is output 0 of AsStridedBackward0, is at version 2",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/saved_variable.cpp",
    ),
    Signature(
        code="inplace-modification",
        tier=Tier.CAUSE,
        patterns=(
            r"one of the variables needed for gradient computation has been modified by an inplace operation: "
            r"\[(?P<tensor>[\w.]+(?: \[[^\]]*\])?)\],?"
            r".*? is at version (?P<version>\d+); expected version (?P<expected>\d+)",
        ),
        what="a tensor ({tensor}) was changed in place before backward used it: version {version}, expected {expected}",
        why="autograd needs the old values; under DDP the usual change is the broadcast of buffers (BatchNorm) when "
        "`forward` runs twice before backward",
        fixes=(
            "under DDP with two forward passes: `DistributedDataParallel(model, broadcast_buffers=False)`, "
            "SyncBatchNorm, or one forward pass of the joined batch",
            "find the operation: `torch.autograd.set_detect_anomaly(True)`; then `x = x + y` for `x += y`, "
            "`relu(inplace=False)`, `.clone()`",
        ),
        examples=(
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [torch.cuda.FloatTensor [64]] is at version 4; expected version 3 instead.",
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation: [torch.FloatTensor [10, 10]], which is output 0 of AsStridedBackward0, is at version 2; "
            "expected version 1 instead.",
            "RuntimeError: a leaf Variable that requires grad, one of the variables needed for gradient computation "
            "has been modified by an inplace operation: [CPUFloatType [4]] is at version 1; expected version 0",
        ),
        near_misses=("a view of a leaf is not modified by an inplace operation",),
    ),
    Signature(  # up to 1.4, without the tensor
        code="inplace-modification",
        tier=Tier.CAUSE,
        patterns=(r"one of the variables needed for gradient computation has been modified by an inplace operation",),
        what="a tensor was changed in place before backward used it",
        why="autograd needs the old values; under DDP the usual change is the broadcast of buffers (BatchNorm) when "
        "`forward` runs twice before backward",
        fixes=(
            "`DistributedDataParallel(model, broadcast_buffers=False)` where `forward` runs twice before backward",
            "find the operation: `torch.autograd.set_detect_anomaly(True)`",
        ),
        examples=(
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation",
        ),
        near_misses=("the buffer has been modified by an inplace operation, as intended",),
    ),
    Signature(
        code="not-a-number",
        tier=Tier.CAUSE,
        patterns=(r"Error: Function '(?P<function>\w+)' returned nan values in its \d+th output",),
        what="training met a value that is not a number: the gradient of `{function}` is NaN",
        why="anomaly detection looks at the gradients of each function, and ends the run at the first NaN",
        fixes=(
            "look for `Error detected in {function}` above the traceback: the forward call printed there made it",
            "keep the function off the edge of its domain: a square root, logarithm or division of 0 needs an epsilon",
            *_FIXES[:1],
        ),
        examples=("RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.",),
        near_misses=("UserWarning: Error detected in SqrtBackward0. Traceback of forward call that caused the error:",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/autograd/engine.cpp",
    ),
    Signature(
        code="not-a-number",
        tier=Tier.CAUSE,
        patterns=(
            rf"{_RAISED}(?P<message>.*{_QUANTITY}.*?{_BAD}.*)",
            rf"{_RAISED}(?P<message>.*{_BAD}.*?{_QUANTITY}.*)",
            r"^(?:[\w.]+\.)?FloatingPointError\b: (?P<message>.*(?:nan|NaN|inf|Inf|scale|finite).*)",
        ),
        unless=(r"JSON|convert|[Ii]nput contains",),
        what="training met a value that is not a number: {message}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "FloatingPointError: loss is nan at step 1200",
            "FloatingPointError: Loss became infinite or NaN at iteration=166!",
            "ValueError: nan loss encountered",
            "RuntimeError: Function 'PowBackward0' returned nan values in its 0th output.",
            "FloatingPointError: Minimum loss scale reached (0.0001).",
            "AssertionError: found NaN in gradient of layer 3; NAN, inf or Inf are not allowed in the loss",
        ),
        near_misses=(
            "{'loss': nan, 'grad_norm': nan, 'step': 312}",
            "ValueError: cannot convert float NaN to integer",
            "KeyError: 'information'",
        ),
    ),
    Signature(
        code="not-a-number",
        tier=Tier.CAUSE,
        patterns=(
            r"normal expects all elements of std >= 0(?:\.0)?",
            r"Current loss scale already at minimum",
            r"Minimum loss scale reached",
            r"Error: (?P<line>grad_scale is too small, exiting)",
            r"probability tensor contains either `inf`, `nan` or element < 0",
            r"^(?P<line>Loss is (?:nan|inf|\{?\S*nan\S*), stopping training)",
            r"(?:Error: |^)(?P<line>The total norm of order \S+ for gradients from `parameters` is non-finite)",
            r"Error: (?P<line>Expected (?:parameter|value argument) .*to satisfy the constraint .*but found "
            r"invalid values)",
            r"Error: (?P<line>Input contains NaN)",
            r"(?P<line>Monitored metric \S+ = \S+ is not finite|loss become infinite or NaN)",
            r"^ +(?P<line>assert (?:not )?(?:torch|math|np)\.is(?:finite|nan|inf)\(.+)",
            r"Error: (?P<line>.*Unexpected result nan)",
            rf"{_SAID}(?P<line>.{{0,60}}{_QUANTITY}.{{0,40}}{_NOT_A_NUMBER}.{{0,40}}{_STOPS}.*)",
            rf"{_SAID}(?P<line>.{{0,60}}{_NOT_A_NUMBER}.{{0,40}}{_QUANTITY}.{{0,40}}{_STOPS}.*)",
        ),
        unless=(r"[Ss]kip|[Ii]gnor|continu",),
        what="training met a value that is not a number: {line}",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "RuntimeError: normal expects all elements of std >= 0.0",
            "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
            "Exception: Minimum loss scale reached (0.0001). Your loss is probably exploding.",
            "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
            "Loss is nan, stopping training",
            "Loss is inf, stopping training",
            "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it "
            "cannot be clipped.",
            "ValueError: Expected parameter logits (Tensor of shape (4, 2)) of distribution Categorical() to satisfy "
            "the constraint IndependentConstraint(Real(), 1), but found invalid values: tensor([[nan, nan]])",
            "ValueError: Input contains NaN.",
            "RuntimeError: Unexpected result nan (message='found NaN in local forward loss calculation')",
            "Loss became nan at step 40, aborting",
            "ERROR NaN in gradients, terminating the run",
            "    assert torch.isfinite(outputs['loss']), \\",
            "Monitored metric val_loss = nan is not finite. Previous best value was 0.700. Signaling Trainer to stop.",
            "RuntimeError: grad_scale is too small, exiting: 4.76837158203125e-07",
        ),
        near_misses=(
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32, reducing to 16",
            "grad norm is nan, skipping this step instead of stopping",
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
        ),
    ),
    Signature(  # TORCH_NCCL_NAN_CHECK=1
        code="not-a-number",
        tier=Tier.CAUSE,
        patterns=(r"(?:block: \[.*|NaN ?[Cc]heck.*)Assertion [`'](?P<message>!\w*isnan\(.*?\))[`'] failed",),
        what="NCCL's check found NaN in a tensor that was about to be sent (`{message}`)",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "/pytorch/torch/csrc/distributed/c10d/NanCheck.cu:157: checkForNaN: block: [0,0,0], thread: [21,0,0] "
            "Assertion `!isnan(val)` failed.",
            "/pytorch/torch/csrc/distributed/c10d/Utils.cu:15: ProcessGroupNCCL NaN Check Assertion "
            "`!isnan(val)` failed.",
        ),
        near_misses=("    assert not torch.isnan(loss)",),
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/NanCheck.cu",
    ),
)
