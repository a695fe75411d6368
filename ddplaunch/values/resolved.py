"""A value that says where it came from, or why it is not there; refuses to know what it is a value of."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from ddplaunch.values.frozen import dataclass

T = TypeVar("T")

SourceKind = Literal[
    "flag",
    "environment",
    "profile",
    "script",
    "detected",
    "computed",
    "default",
    "Slurm",  # this and the rest: an environment that somebody else set up
    "Kubeflow",
    "Open MPI",
    "PMI",
    "SageMaker",
]


@dataclass(frozen=True)
class Source:
    """Who decided a value: ``kind`` is one word for tables, ``detail`` the flag, file:line or formula."""

    kind: SourceKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


DEFAULT = Source("default")


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """A setting together with its source; every setting in a plan is one."""

    value: T
    source: Source


@dataclass(frozen=True)
class Unavailable:
    """A fact that could not be had; ``reason`` is a clause that reads well after "skipped:"."""

    reason: str
