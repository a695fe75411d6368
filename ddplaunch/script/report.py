"""What a training script's source says of itself, as frozen values; refuses to read or import anything."""

from __future__ import annotations

from typing import Literal

from ddplaunch.frozen import dataclass

Meaning = Literal["batch_size", "global_batch_size", "lr", "warmup_steps", "accum", "world_size", "nproc", "nnodes"]


@dataclass(frozen=True)
class DeclaredAt:
    """A line of a source file; ``str()`` gives ``train.py:31`` with the path as it is shown to the user."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class DeclaredOption:
    """One command-line option that the script declares.

    ``flags`` are its spellings (``("--batch-size", "-b")``), ``takes_value`` is False for switches,
    ``default`` is the literal default as source text or None, ``meaning`` the number of ours that it stands for.
    """

    flags: tuple[str, ...]
    at: DeclaredAt
    takes_value: bool = True
    required: bool = False
    default: str | None = None
    meaning: Meaning | None = None
    parser: str = "argparse"


@dataclass(frozen=True)
class Import:
    """One absolute import in the script, by top-level package."""

    package: str
    at: DeclaredAt


@dataclass(frozen=True)
class ScriptReport:
    """Everything read from the script and the local modules that it imports.

    ``complete`` is False where options may exist that could not be seen (an unreadable or dynamic part);
    checks that conclude from absence must then stay silent. ``initialises`` says where a process group is set up,
    by the script itself or by a framework that does it (``framework`` names it). ``spawns`` is where the script
    starts its own processes (``mp.spawn``, ``torch.multiprocessing.start_processes``, ``subprocess`` of torchrun).
    ``demands_local_rank`` is a *required* ``--local-rank``/``--local_rank`` option; ``accepts_local_rank`` any.
    ``reads_env`` are the names of environment variables that appear as literals in environment look-ups.
    """

    path: str
    options: tuple[DeclaredOption, ...] = ()
    imports: tuple[Import, ...] = ()
    initialises: DeclaredAt | None = None
    framework: str | None = None
    spawns: DeclaredAt | None = None
    demands_local_rank: DeclaredAt | None = None
    accepts_local_rank: DeclaredAt | None = None
    reads_env: tuple[str, ...] = ()
    syntax_error: str | None = None
    complete: bool = True
