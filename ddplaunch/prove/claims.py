"""Claims of a proof, which are right, wrong or open, and arithmetic on sketches of gradients.

``findings.json`` maps the code of each finding to its texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ddplaunch.values.finding import Finding, Severity, error, warning
from ddplaunch.values.frozen import dataclass

Verdict = Literal["right", "wrong", "open"]
Vector = Sequence[float]

#: Relative tolerance: rounding to bfloat16, and compression while gradients are sent, stay below it.
ROUNDED = 1e-2


@dataclass(frozen=True)
class Claim:
    """A claim about ``subject``; ``text`` says what was measured, or why it is open. Wrong ones have a ``finding``."""

    subject: str
    verdict: Verdict
    text: str
    finding: Finding | None = None


@dataclass(frozen=True)
class ProofAnswer:
    """All claims of a proof of ``world`` ranks over ``steps`` steps; ``observed`` are findings of the run itself."""

    claims: tuple[Claim, ...]
    observed: tuple[Finding, ...]
    world: int
    steps: int
    took_s: float

    @property
    def findings(self) -> list[Finding]:
        """The findings of the run itself, then those of wrong claims."""
        return [*self.observed, *(claim.finding for claim in self.claims if claim.finding is not None)]

    @property
    def is_wrong(self) -> bool:
        """Whether there is an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def right(subject: str, text: str) -> Claim:
    """Return a claim that was shown right."""
    return Claim(subject, "right", text)


def still_open(subject: str, text: str) -> Claim:
    """Return a claim that could not be decided."""
    return Claim(subject, "open", text)


def wrong(subject: str, code: str, where: str, *, is_sure: bool = True, **values: Any) -> Claim:
    """Return a wrong claim. Its finding has the texts of ``code``, filled with ``values``.

    The severity is that of ``code`` in ``findings.json``; a claim that is not sure is a warning.
    """
    texts = json.loads(Path(__file__).with_name("findings.json").read_text())[code]
    what, why, fix = (texts[part].format(**values) for part in ("what", "why", "fix"))
    make = error if is_sure and texts["severity"] == "error" else warning
    return Claim(subject, "wrong", what, make(code, what, why=why, fix=fix, where=where or ()))


class Fit(NamedTuple):
    """A vector as ``factor`` times another one; ``residual`` is the rest, relative to the size of the vector."""

    factor: float
    residual: float

    def is_by(self, factor: float) -> bool:
        """Return whether the vector is ``factor`` times the other one, but for rounding."""
        return self.residual < ROUNDED and near(self.factor, factor)


def near(number: float, other: float) -> bool:
    """Return whether two numbers are the same but for rounding."""
    return abs(number / other - 1) < ROUNDED


def fit(target: Vector, model: Vector) -> Fit:
    """Return ``target`` as a least-squares multiple of ``model``; the residual is infinite where none exists."""
    if len(target) != len(model) or not (size := norm(target)):
        return Fit(0.0, math.inf)
    factor = sum(a * b for a, b in zip(target, model, strict=True)) / (sum(b * b for b in model) or math.inf)
    return Fit(factor, norm([a - factor * b for a, b in zip(target, model, strict=True)]) / size)


def norm(vector: Vector) -> float:
    """Return the Euclidean norm."""
    return math.sqrt(sum(value * value for value in vector))


def mean(vectors: Iterable[Vector]) -> list[float]:
    """Return the mean of vectors of one length; empty for none."""
    return [sum(values) / len(values) for values in zip(*vectors, strict=True)]


def equal(vectors: Sequence[Vector], tolerance: float) -> bool:
    """Return whether all vectors are the same, up to ``tolerance`` of the first one's size."""
    first, limit = vectors[0], tolerance * norm(vectors[0]) + 1e-30
    return all(norm([a - b for a, b in zip(first, one, strict=True)]) <= limit for one in vectors)
