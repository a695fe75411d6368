"""What is known about a run outside of its logs, and which texts are logs; refuses to find any of it out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ddplaunch.frozen import dataclass


@dataclass(frozen=True)
class LogSource:
    """One log. ``read`` is a path, bytes or an open binary stream; rank and host are known for files of a record."""

    name: str
    read: Path | bytes | BinaryIO
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. ``exit_code`` and ``signal`` ("SIGKILL") exclude each other; ``ended_s`` is an epoch."""

    rank: int
    host: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_s: float | None = None
    ended_by: Literal["itself", "launcher"] | None = None


@dataclass(frozen=True)
class RunFacts:
    """Evidence outside the log; what is not known is None.

    ``state`` is the outcome's, ``signal`` the number that the launcher got, ``plan`` that of ``run.json``, ``argv`` the
    command as typed, ``oom_kills`` the count of the run's cgroup (``memory.events``), ``dmesg`` lines of the kernel
    since the run began.
    """

    ranks: tuple[RankEnd, ...] = ()
    state: str | None = None
    signal: int | None = None
    plan: Mapping[str, Any] | None = None
    argv: tuple[str, ...] | None = None
    oom_kills: int | None = None
    dmesg: tuple[str, ...] = ()
    shm_free_bytes: int | None = None
    shm_size_bytes: int | None = None
