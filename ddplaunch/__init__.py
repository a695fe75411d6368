"""The distributed PyTorch launch that works the first time; importing it loads nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddplaunch.launch.current import Current, current, step

__version__ = "0.2.0"
__all__ = ["Current", "__version__", "current", "step"]


def __getattr__(name: str) -> object:
    """Load ``current`` on first use, so that ``import ddplaunch`` costs a training script nothing."""
    if name in ("Current", "current", "step"):
        from importlib import import_module

        return getattr(import_module("ddplaunch.launch.current"), name)
    raise AttributeError(f"module 'ddplaunch' has no attribute {name!r}")
