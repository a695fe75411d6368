"""Words for bytes and the number of DataLoader workers of a launch; refuses to judge whether it is enough."""

from __future__ import annotations

from ddplaunch.launch.plan import Launch
from ddplaunch.script.arguments import given
from ddplaunch.script.report import DeclaredAt, DeclaredOption

MIB = 1024**2
GIB = 1024**3

# What training scripts call it: PyTorch's and timm's examples, Lightning, Hugging Face TrainingArguments.
_WORKER_OPTION = DeclaredOption(
    ("--num-workers", "--num_workers", "--workers", "--dataloader_num_workers", "--dataloader-num-workers"),
    DeclaredAt("", 0),
)


def size(count: int) -> str:
    """Return ``count`` bytes in words: "64 MiB", "1.5 GiB", "512 GiB"."""
    if count >= 1024 * GIB:
        return f"{count / (1024 * GIB):.1f} TiB"
    if count >= GIB:
        return f"{count / GIB:.1f} GiB".replace(".0 ", " ")
    if count >= MIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / 1024:.0f} KiB"


def workers_per_process(launch: Launch | None) -> int | None:
    """Return DataLoader workers per rank from ``--workers`` or the script's arguments; None where nobody said."""
    if launch is None:
        return None
    if launch.options.workers is not None:
        return launch.options.workers.value
    values = given(launch.target.args, _WORKER_OPTION) if launch.target else ()
    return int(values[-1]) if values and values[-1].isascii() and values[-1].isdigit() else None
