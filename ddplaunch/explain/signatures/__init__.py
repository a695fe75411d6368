"""All signatures, one family per file, listed by hand; refuses to look for any by itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ddplaunch.explain.signature import Signature

FAMILIES = (
    "gpu",
    "nccl",
    "collective",
    "ddp",
    "system",
    "network",
    "data",
    "launching",
    "scheduler",
    "ending",
)


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return the signatures of all families, in the order of the list."""
    found: list[Signature] = []
    for family in FAMILIES:
        try:
            module = import_module(f"ddplaunch.explain.signatures.{family}")
        except ModuleNotFoundError:
            continue
        found.extend(module.SIGNATURES)
    return tuple(found)
