"""Claims of a proof, which are right, wrong or open, and arithmetic on sketches of gradients.

``findings.json`` maps the code of each finding to its texts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from operator import mul
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.frozen import dataclass

Vector = Sequence[float]

#: Relative tolerance: rounding to bfloat16, and compression while gradients are sent, stay below it.
ROUNDED = 1e-2
_TEXTS = json.loads(Path(__file__).with_name("findings.json").read_text())


@dataclass(frozen=True)
class Claim:
    """A claim about ``subject``; ``text`` says what was measured, or why it is open. Wrong ones have a ``finding``."""

    subject: str
    text: str
    verdict: Literal["right", "wrong", "open"] = "open"
    finding: Finding | None = None


@dataclass(frozen=True)
class ProofAnswer:
    """All claims of a proof of ``world`` ranks over ``steps`` steps."""

    claims: tuple[Claim, ...]
    world: int
    steps: int
    took_s: float

    @property
    def findings(self) -> list[Finding]:
        """The findings of wrong claims."""
        return [claim.finding for claim in self.claims if claim.finding]

    @property
    def is_wrong(self) -> bool:
        """Whether there is an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def wrong(subject: str, code: str, where: str, **values: Any) -> Claim:
    """Return a wrong claim. Its finding has the texts of ``code``, filled with ``values``.

    ``findings.json`` has these texts in the order of a finding's fields.
    """
    severity, what, why, fix = (text.format(**values) for text in _TEXTS[code].values())
    finding = Finding(code, Severity(severity), what, why, fix, (where,) if where else ())
    return Claim(subject, what, "wrong", finding)


class Fit(NamedTuple):
    """A vector as ``factor`` times another one; ``residual`` is the rest, relative to the size of the vector."""

    factor: float
    residual: float


def near(number: float, other: float) -> bool:
    """Return whether two numbers are the same but for rounding."""
    return abs(number / other - 1) < ROUNDED


def fit(target: Vector, model: Vector) -> Fit:
    """Return ``target`` as a least-squares multiple of ``model``; the residual is infinite where none exists."""
    if len(target) != len(model) or not any(target):
        return Fit(0.0, math.inf)
    (factor,), residual = combined(target, [model])
    return Fit(factor, residual)


def combined(target: Vector, parts: Sequence[Vector]) -> tuple[list[float], float]:
    """Return the factors by which ``parts`` add up to ``target``, and the relative size of what is left ."""
    products = [[dot(one, other) for other in parts] for one in parts]
    goals, factors = [dot(one, target) for one in parts], [0.0] * len(parts)
    for _ in range(1000 if len(parts) > 1 else 1):  # Gauss-Seidel
        for n, row in enumerate(products):
            factors[n] += (goals[n] - dot(row, factors)) / (row[n] or math.inf)
    rest = [value - dot(factors, values) for value, values in zip(target, zip(*parts, strict=True), strict=True)]
    return factors, math.hypot(*rest) / (math.hypot(*target) or math.inf)


def dot(one: Vector, other: Vector) -> float:
    """Return the scalar product."""
    return float(sum(map(mul, one, other)))


def mean(vectors: Iterable[Vector]) -> list[float]:
    """Return the mean of vectors of one length; empty for none."""
    return [*map(fmean, zip(*vectors, strict=True))]


def equal(vectors: Sequence[Vector], tolerance: float) -> bool:
    """Return whether all vectors are the same, up to ``tolerance`` of the first one's size, or are no numbers."""
    return not any(math.dist(vectors[0], one) > tolerance * math.hypot(*vectors[0]) for one in vectors)
