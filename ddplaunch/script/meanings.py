"""Says which of our numbers an option's name stands for; refuses to guess from anything but the exact name."""

from __future__ import annotations

from collections.abc import Iterable

from ddplaunch.script.report import Meaning

# `train-batch-size` is missing on purpose: DeepSpeed's is global, other programs' is per GPU.
_MEANINGS: dict[str, Meaning] = {
    "batch-size": "batch_size",
    "per-device-train-batch-size": "batch_size",
    "micro-batch-size": "batch_size",
    "train-micro-batch-size-per-gpu": "batch_size",
    "batch-size-per-gpu": "batch_size",
    "bs": "batch_size",
    "global-batch-size": "global_batch_size",
    "effective-batch-size": "global_batch_size",
    "lr": "lr",
    "learning-rate": "lr",
    "warmup-steps": "warmup_steps",
    "num-warmup-steps": "warmup_steps",
    "warmup": "warmup_steps",
    "gradient-accumulation-steps": "accum",
    "grad-accum": "accum",
    "grad-accum-steps": "accum",
    "accum": "accum",
    "accumulation-steps": "accum",
    "accumulate-grad-batches": "accum",
    "accum-iter": "accum",
    "world-size": "world_size",
}


def meaning_of(flags: Iterable[str], kind: str | None, default: str | None) -> Meaning | None:
    """Return the number that ``flags`` stand for, or None.

    ``kind`` is the declared type's name (``int``) where the source shows it. A count whose type or default is a
    fraction is a ratio, and text is neither, so both are None.
    """
    for flag in flags:
        name = flag.lstrip("-").replace("_", "-").lower()
        meaning = _MEANINGS.get(name) if flag.startswith("--") or len(name) > 1 else None
        if meaning is not None:
            return meaning if _fits(name, meaning, kind, default) else None
    return None


def _fits(name: str, meaning: Meaning, kind: str | None, default: str | None) -> bool:
    integral = default is not None and default.replace("_", "").lstrip("+-").isdigit()
    if kind in ("str", "bool", "Path"):
        return False
    if meaning == "lr":
        return kind != "int"
    if name == "warmup":
        return kind == "int" or (kind is None and integral)
    fraction = default is not None and _is_number(default) and not integral
    return kind != "float" and not fraction


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
