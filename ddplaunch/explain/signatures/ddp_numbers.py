"""How a run that stopped because of NaN or infinity shows; refuses values that a training prints and goes on from."""

from __future__ import annotations

from ddplaunch.explain.signature import Signature

_CODE = "not-a-number"
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
_RAISED = r"^(?:[\w.]+\.)?(?:\w*Error|\w*Exception|Exception)\b: "
_QUANTITY = r"\b(?i:\w*loss\w*|grad\w*|norm|logits?|outputs?|activations?|weights?|parameters?|values)\b"
#: A line of its own, not in the middle of another sentence.
_SAID = r"^(?:[\w.-]*(?:ERROR|CRITICAL|FATAL)\S* +)?"
_STOPS = r"\b(?i:abort\w*|exit\w*|stop\w*|terminat\w*|quit\w*|halt\w*)\b"
_BAD = r"\b(?:nan|NaN|Nan|NAN|NaNs|nans|inf|Inf|infs|infinite|infinity|non-finite|not finite)\b"

SIGNATURES: tuple[Signature, ...] = (
    Signature(
        code=_CODE,
        role="root",
        literals=("nan", "NaN", "NAN", "inf", "Inf", "FloatingPointError"),
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
            "FloatingPointError: loss is nan at step 312",
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
        priority=66,
    ),
    Signature(
        code=_CODE,
        role="root",
        literals=(
            "nan",
            "NaN",
            "elements of std >= 0",
            "loss scale already at minimum",
            "Minimum loss scale reached",
            "to satisfy the constraint",
            "contains either `inf`, `nan`",
            "Loss is nan",
            "Loss is inf",
            "stopping training",
            "non-finite",
            "Input contains NaN",
        ),
        patterns=(
            r"(?P<message>normal expects all elements of std >= 0(?:\.0)?)",
            r"(?P<message>Current loss scale already at minimum)",
            r"(?P<message>Minimum loss scale reached)",
            r"(?P<message>probability tensor contains either `inf`, `nan` or element < 0)",
            r"^(?P<message>Loss is (?:nan|inf|\{?\S*nan\S*), stopping training)",
            r"(?:Error: |^)(?P<message>The total norm of order \S+ for gradients from `parameters` is non-finite)",
            r"Error: (?P<message>Expected (?:parameter|value argument) .*to satisfy the constraint .*but found "
            r"invalid values)",
            r"Error: (?P<message>Input contains NaN)",
            r"Error: (?P<message>.*Unexpected result (?:nan|inf))",
            rf"{_SAID}(?P<message>.{{0,60}}{_QUANTITY}.{{0,40}}{_BAD}.{{0,40}}{_STOPS}.*)",
            rf"{_SAID}(?P<message>.{{0,60}}{_BAD}.{{0,40}}{_QUANTITY}.{{0,40}}{_STOPS}.*)",
        ),
        unless=(r"[Ss]kip|[Ii]gnor|continu",),
        what="training met a value that is not a number: {message}",
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
            "ValueError: Expected parameter logits (Tensor of shape (4, 2)) of distribution Categorical() to "
            "satisfy the constraint "
            "IndependentConstraint(Real(), 1), but found invalid values: tensor([[nan, nan]])",
            "ValueError: Input contains NaN.",
            "RuntimeError: Unexpected result nan (message='found NaN in local forward loss calculation')",
            "Loss became nan at step 40, aborting",
            "ERROR NaN in gradients, terminating the run",
        ),
        near_misses=(
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32, reducing to 16",
            "grad norm is nan, skipping this step instead of stopping",
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
        ),
        priority=66,
    ),
    Signature(  # TORCH_NCCL_NAN_CHECK=1
        code=_CODE,
        role="root",
        literals=("isnan(",),
        patterns=(r"(?:block: \[.*|NaN ?[Cc]heck.*)Assertion [`'](?P<message>!\w*isnan\(.*?\))[`'] failed",),
        what="NCCL's check found NaN in a tensor that was about to be sent (`{message}`)",
        why=_WHY,
        fixes=_FIXES,
        examples=(
            "/pytorch/torch/csrc/distributed/c10d/NanCheck.cu:157: checkForNaN: block: [0,0,0], thread: [21,0,0] "
            "Assertion "
            "`!isnan(val)` failed.",
            "/pytorch/torch/csrc/distributed/c10d/Utils.cu:15: ProcessGroupNCCL NaN Check Assertion "
            "`!isnan(val)` failed.",
        ),
        near_misses=("    assert not torch.isnan(loss)",),
        priority=75,
        source="https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/NanCheck.cu",
    ),
)
