"""One pass over the lines of all logs: what signatures match, tracebacks, and how ranks ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.traceback import Traceback, Tracebacks
from ddplaunch.explain.read.trailer import RankExit, Trailer
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.explain.signatures.signature import Signature
from ddplaunch.values.frozen import dataclass

_DIGITS = re.compile(r"\d+")
_TEMPLATES = 50_000  # remembered shapes of lines; a training prints few


class Hit(NamedTuple):
    """A signature that a line shows, and the named groups of its pattern."""

    signature: Signature
    line: Line
    groups: dict[str, str]


class _Compiled:
    """A signature with its expressions compiled when first needed."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._patterns: list[re.Pattern[str]] | None = None
        self._unless: list[re.Pattern[str]] = []

    def match(self, text: str) -> dict[str, str] | None:
        """Return the named groups if ``text`` shows this signature."""
        if self._patterns is None:
            self._patterns = [_compile(each) for each in self.signature.patterns]
            self._unless = [_compile(each) for each in self.signature.unless]
        for pattern in self._patterns:
            if match := pattern.search(text):
                if any(near.search(text) for near in self._unless):
                    return None
                return {name: value for name, value in match.groupdict().items() if value is not None}
        return None


@cache
def _compile(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


class Matcher:
    """Matches all signatures; remembers which are worth trying for lines that differ only in their numbers."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._by_literal: dict[str, list[_Compiled]] = {}
        self._always: list[_Compiled] = []
        self._shapes: dict[str, tuple[_Compiled, ...]] = {}
        for signature in signatures:
            compiled = _Compiled(signature)
            for literal in signature.literals:
                self._by_literal.setdefault(_DIGITS.sub("0", literal), []).append(compiled)
            if not signature.literals:
                self._always.append(compiled)

    def candidates(self, text: str) -> tuple[_Compiled, ...]:
        """Return the signatures one of whose literals stands in ``text``, numbers aside."""
        shape = _DIGITS.sub("0", text)
        known = self._shapes.get(shape)
        if known is None:
            found = dict.fromkeys(self._always)
            for literal, compiled in self._by_literal.items():
                if literal in shape:
                    found.update(dict.fromkeys(compiled))
            known = tuple(found)
            if len(self._shapes) >= _TEMPLATES:
                self._shapes.clear()
            self._shapes[shape] = known
        return known

    def hits(self, line: Line) -> list[Hit]:
        """Return the signatures that ``line`` shows: by tier, and within a tier as they are listed."""
        found = []
        for compiled in self.candidates(line.text):
            groups = compiled.match(line.text)
            if groups is not None:
                found.append(Hit(compiled.signature, line, groups))
        found.sort(key=lambda hit: hit.signature.tier)
        return found


def spoken_against(signature: Signature, texts: Sequence[str]) -> bool:
    """Return whether one of ``texts``, lines of the same rank, matches the signature's ``log_unless``."""
    return any(_compile(expression).search(text) for expression in signature.log_unless for text in texts)


@dataclass(frozen=True)
class Scanned:
    """All lines that were read, and what they hold; ``summary`` is the first line of torchrun's."""

    lines: tuple[Line, ...]
    hits: tuple[Hit, ...]
    tracebacks: tuple[Traceback, ...]
    exits: tuple[RankExit, ...]
    summary: Line | None


@cache
def matcher() -> Matcher:
    """Return the matcher of all signatures; its memory of line shapes lasts as long as the process."""
    return Matcher(all_signatures())


def scan(lines: Iterable[Line]) -> Scanned:
    """Read ``lines`` once, in their order."""
    tracebacks, trailer, find = Tracebacks(), Trailer(), matcher()
    kept: list[Line] = []
    hits: list[Hit] = []
    for line in lines:
        line = trailer.feed(line)
        kept.append(line)
        tracebacks.feed(line)
        if line.text:
            hits.extend(find.hits(line))
    return Scanned(
        tuple(kept), tuple(hits), tuple(tracebacks.finish()), tuple(trailer.finish()), trailer.failed_summary
    )
