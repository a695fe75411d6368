"""The request that torchrun's process sends to a forked process: which rank to become."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Request:
    """One rank: its complete command line and environment, as Popen would get them.

    ``cpus`` are the CPUs that it may use, None for the same as torchrun.
    """

    args: Sequence[str]
    environ: Mapping[str, str]
    cpus: Sequence[int] | None = None

    @property
    def is_module(self) -> bool:
        """Whether the target is a module's name (``-m``)."""
        return self.args[2] == "-m"

    @property
    def target(self) -> str:
        """The script's path, or the module's name."""
        return self.args[3] if self.is_module else self.args[2]

    @property
    def argv(self) -> list[str]:
        """The initial ``sys.argv``; for a module, runpy later replaces ``-m`` by its file."""
        return ["-m", *self.args[4:]] if self.is_module else list(self.args[2:])


def is_python_command(args: Sequence[str], python: str) -> bool:
    """Return whether ``args`` is torchrun's command line for a script or module: `PYTHON -u [-m] TARGET …`."""
    if len(args) < 3 or args[0] != python or args[1] != "-u":
        return False
    return len(args) > 3 if args[2] == "-m" else not args[2].startswith("-")
