"""The distributed PyTorch launch that works the first time; importing it loads nothing else."""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` would make the start longer in which Ctrl-C prints a traceback of Python's
if TYPE_CHECKING:
    from ddplaunch.api.from_python import LaunchRefused, Outcome, RunFailed, launch
    from ddplaunch.planning.current import Current, current, log_metrics, step

__version__ = "0.2.0"
__all__ = [
    "Current",
    "LaunchRefused",
    "Outcome",
    "RunFailed",
    "__version__",
    "current",
    "launch",
    "log_metrics",
    "step",
]

_API = ("LaunchRefused", "Outcome", "RunFailed", "launch")


def __getattr__(name: str) -> object:
    """Load what is asked for on first use, so that ``import ddplaunch`` costs a training script nothing."""
    if name in __all__:
        from importlib import import_module

        home = "ddplaunch.api.from_python" if name in _API else "ddplaunch.planning.current"
        return getattr(import_module(home), name)
    raise AttributeError(f"module 'ddplaunch' has no attribute {name!r}")
