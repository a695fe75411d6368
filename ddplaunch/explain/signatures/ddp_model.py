"""How DistributedDataParallel refuses a model's gradients; refuses what it only warns of."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_NAMES = "name them: `--env TORCH_DISTRIBUTED_DEBUG=INFO`"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code="unused-parameters",
        role="root",
        literals=("Expected to have finished reduction in the prior iteration",),
        patterns=(r"Expected to have finished reduction in the prior iteration before starting a new one",),
        unless=(r"UserWarning",),
        what="DDP: some parameters got no gradient in the iteration before",
        why="DDP waits for a gradient of every parameter; a branch or output that the loss does not use leaves "
        "some without, on "
        "one rank only where the branch depends on the data",
        fixes=(
            "`DistributedDataParallel(model, find_unused_parameters=True)` (or `static_graph=True` if they are "
            "always the same)",
            _NAMES,
            "let every output of `forward` take part in the loss (add `0 * unused.sum()`), or freeze unused parameters "
            "before DDP wraps the model",
        ),
        examples=(
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
            "This error indicates "
            "that your module has parameters that were not used in producing loss.",
            ": Expected to have finished reduction in the prior iteration before starting a new one.",
        ),
        near_misses=(
            "[W reducer.cpp:1251] Warning: find_unused_parameters=True was specified in DDP constructor, but did "
            "not find any unused "
            "parameters in the forward pass.",
        ),
        priority=68,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="unused-parameters",
        role="confirmation",
        literals=("which did not receive grad for rank",),
        patterns=(
            r"(?:Parameter indices|Parameters) which did not receive grad for rank (?P<rank>\d+)(?: ?in prior "
            r"iteration)?: "
            r"(?P<parameters>.+)",
        ),
        what="DDP: rank {rank} got no gradient for {parameters}",
        why="DDP waits for a gradient of every parameter; these took no part in the loss",
        fixes=("`DistributedDataParallel(model, find_unused_parameters=True)`", _NAMES),
        examples=(
            "Parameter indices which did not receive grad for rank 1: 6 7",
            "Parameters which did not receive grad for rank 0: head.weight, head.bias",
        ),
        near_misses=("parameters which did not receive grad: none",),
        priority=68,
    ),
    Signature(
        code="unused-parameters",
        role="root",
        literals=("Your training graph has changed in this iteration",),
        patterns=(r"Your training graph has changed in this iteration",),
        what="DDP: other parameters were used than in the first iteration, which `static_graph=True` forbids",
        why="with `static_graph=True` DDP counts on the same parameters getting gradients in every iteration",
        fixes=("`DistributedDataParallel(model, find_unused_parameters=True)` without `static_graph`", _NAMES),
        examples=(
            "RuntimeError: Your training graph has changed in this iteration, e.g., one parameter is unused in first "
            "iteration, but then got used in the second iteration.",
        ),
        near_misses=("[W reducer.cpp] Warning: static_graph is set, and the graph has not changed",),
        priority=66,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="parameter-ready-twice",
        role="root",
        literals=(
            "Expected to mark a variable ready only once",
            "marked as ready twice",
            "marked ready twice",
        ),
        patterns=(
            r"(?P<message>Expected to mark a variable ready only once)",
            r"(?P<message>(?:Parameter at index|Parameter) \S+(?: with name \S+)? has been marked as ready twice)",
        ),
        what="DDP: {message}",
        why="one parameter's gradient was ready twice in one backward pass: reentrant activation checkpointing, "
        "a module called "
        "twice with shared weights, or two backward passes in one iteration",
        fixes=(
            "`torch.utils.checkpoint.checkpoint(…, use_reentrant=False)` (Hugging Face: "
            "`gradient_checkpointing_kwargs=dict(use_reentrant=False)`)",
            "`DistributedDataParallel(model, static_graph=True)`",
            "leave `find_unused_parameters=True` out where nothing is unused",
            _NAMES,
        ),
        examples=(
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the "
            "following reasons: 1) Use "
            "of a module parameter outside the `forward` function.",
            "Parameter at index 311 with name base.lora_B has been marked as ready twice.",
            "Parameter indices 3 marked ready twice: Parameter at index 3 has been marked as ready twice",
        ),
        near_misses=("[W reducer.cpp:1280] parameter ready hooks installed",),
        priority=68,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp",
    ),
    Signature(
        code="inplace-modification",
        role="root",
        literals=("has been modified by an inplace operation", "a leaf Variable that requires grad"),
        patterns=(
            r"one of the variables needed for gradient computation has been modified by an inplace operation: "
            r"\[(?P<tensor>[\w.]+(?: \[[^\]]*\])?)\],?"
            r".*? is at version (?P<version>\d+); expected version (?P<expected>\d+)",
        ),
        what="a tensor ({tensor}) was changed in place before backward used it: version {version}, expected {expected}",
        why="autograd needs the old values; under DDP the usual change is the broadcast of buffers (BatchNorm) "
        "when `forward` runs "
        "twice before backward",
        fixes=(
            "under DDP with two forward passes: `DistributedDataParallel(model, broadcast_buffers=False)`, "
            "SyncBatchNorm, or one "
            "forward pass of the joined batch",
            "find the operation: `torch.autograd.set_detect_anomaly(True)`; then `x = x + y` for `x += y`, "
            "`relu(inplace=False)`, `.clone()`",
        ),
        examples=(
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation: "
            "[torch.cuda.FloatTensor [64]] is at version 4; expected version 3 instead.",
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation: "
            "[torch.FloatTensor [10, 10]], which is output 0 of AsStridedBackward0, is at version 2; expected "
            "version 1 instead.",
            "RuntimeError: a leaf Variable that requires grad, one of the variables needed for gradient "
            "computation has been modified "
            "by an inplace operation: [CPUFloatType [4]] is at version 1; expected version 0",
        ),
        near_misses=("a view of a leaf is not modified by an inplace operation",),
        priority=66,
    ),
    Signature(  # up to 1.4, without the tensor
        code="inplace-modification",
        role="root",
        literals=("has been modified by an inplace operation",),
        patterns=(r"one of the variables needed for gradient computation has been modified by an inplace operation",),
        what="a tensor was changed in place before backward used it",
        why="autograd needs the old values; under DDP the usual change is the broadcast of buffers (BatchNorm) "
        "when `forward` runs "
        "twice before backward",
        fixes=(
            "`DistributedDataParallel(model, broadcast_buffers=False)` where `forward` runs twice before backward",
            "find the operation: `torch.autograd.set_detect_anomaly(True)`",
        ),
        examples=(
            "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
            "operation",
        ),
        near_misses=("the buffer has been modified by an inplace operation, as intended",),
        priority=64,
    ),
)
