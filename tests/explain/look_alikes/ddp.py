"""What DDP and torch.distributed refuse, and what they only warn of."""

from __future__ import annotations

#: Each of them has a root among the signatures of the family.
CODES = (
    "unused-parameters",
    "parameter-ready-twice",
    "inplace-modification",
    "parameter-mismatch",
    "process-group-not-initialized",
    "not-a-number",
)

#: A line, and the code that it alone is given within the family.
LINES: tuple[tuple[str, str | None], ...] = (
    (
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has "
        "inconsistent 2 params.",
        "parameter-mismatch",
    ),
    (
        "RuntimeError: DDP expects same model across all ranks, but Rank 1 has 4 params, while rank 0 has "
        "inconsistent 0 params.",
        None,
    ),
    (
        "[W reducer.cpp] Warning: find_unused_parameters=True was specified, but did not find any unused parameters",
        None,
    ),
    ("ValueError: cannot convert float NaN to integer", None),
    (
        "NanCheck.cu:157: checkForNaN: block: [0,0,0], thread: [1,0,0] Assertion `!isnan(val)` failed.",
        "not-a-number",
    ),
    ("AssertionError: Rank 3: found NaN in local grad norm in backward pass. Device: 3", "not-a-number"),
    ("RuntimeError: Your training graph has changed in this iteration, e.g., one parameter", "unused-parameters"),
    ("AssertionError: data parallel group is not initialized", "process-group-not-initialized"),
    ("epoch 3 loss nan grad_norm inf", None),
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 32, reducing to 16", None),
    ("AssertionError: Loss is nan at step 4", "not-a-number"),
    (
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.",
        "process-group-not-initialized",
    ),
    ("Warning: destroy_process_group() was not called before program exit", None),
)
