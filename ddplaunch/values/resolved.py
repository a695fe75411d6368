"""A setting with its source, and a fact that is unavailable with its reason."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from ddplaunch.values.frozen import dataclass

T = TypeVar("T")
D = TypeVar("D")

SourceKind = Literal[
    "flag",
    "environment",
    "profile",
    "script",
    "detected",
    "computed",
    "default",
    "Slurm",  # from here on: the environment of another launcher
    "Kubeflow",
]


@dataclass(frozen=True)
class Source:
    """Where a value comes from: ``kind`` is one word for tables, ``detail`` the flag, file:line or formula."""

    kind: SourceKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


DEFAULT = Source("default")


@dataclass(frozen=True)
class Resolved(Generic[T]):
    """A setting with its source."""

    value: T
    source: Source


def value_of(resolved: Resolved[T] | None, default: D) -> T | D:
    """Return the value of the setting, or ``default`` if it is None."""
    return default if resolved is None else resolved.value


@dataclass(frozen=True)
class Unavailable:
    """A fact that could not be read; ``reason`` is a clause that completes "skipped: …"."""

    reason: str


def known(fact: T | Unavailable, default: D) -> T | D:
    """Return the fact, or ``default`` if it could not be read."""
    return default if isinstance(fact, Unavailable) else fact
