"""Scans the lines of all logs once: for signatures, tracebacks, and how ranks ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice, takewhile
from typing import NamedTuple

from ddplaunch.explain.read.lines import SHAPES, Line, shape_of
from ddplaunch.explain.read.prefixes import Speaker
from ddplaunch.explain.read.traceback import Traceback, Tracebacks
from ddplaunch.explain.read.trailer import RankExit, Trailer
from ddplaunch.explain.signatures import Signature, Tier, all_signatures, patterns
from ddplaunch.values.frozen import dataclass

_OPENED, _LISTS, _GOES_ON = patterns("scan")
#: Echoes that contradict causes; the others only say that something failed.
_SPEAK = frozenset(("step-ended", "store-lost"))
_NOTES = 6  # lines below an exception; if more follow, they are not part of it
_BEGINS = 2  # characters; the shortest needed text has as many


class Hit(NamedTuple):
    """A signature that matches a line, and the named groups of its pattern; group ``line`` is the matched text.

    ``quoted``: the match is inside double quotes that were opened in the line's text.
    """

    signature: Signature
    line: Line
    groups: dict[str, str]
    quoted: bool = False


@cache
def _compile(expression: str) -> re.Pattern[str]:
    return re.compile(expression)


def _shown(signature: Signature, text: str) -> tuple[dict[str, str], bool] | None:
    """Return the groups for the words of ``signature``, and whether the match is quoted; None if it does not match."""
    matches = (match for pattern in signature.patterns if (match := _compile(pattern).search(text)))
    match = next(matches, None)
    if match is None or any(_compile(near).search(text) for near in signature.unless):
        return None
    text_before = text[: match.start()]
    quoted = text_before.count('"') % 2 == 1 and bool(_OPENED.search(text_before)) and not _LISTS.search(text_before)
    return {"line": match[0]} | {name: value for name, value in match.groupdict().items() if value is not None}, quoted


class Matcher:
    """Matches all signatures; remembers which ones to try for lines that differ only in their numbers."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self._signatures = signatures
        self._places: dict[bytes, dict[bytes, set[int]]] = {}  # signatures by the text they need, by how it begins
        self._of_shape = lru_cache(SHAPES)(self._in_shape)
        for place, signature in enumerate(signatures):
            for text in map(shape_of, signature.needed):
                self._places.setdefault(text[:_BEGINS], {}).setdefault(text, set()).add(place)

    def candidates(self, text: str) -> tuple[Signature, ...]:
        """Return the signatures with a needed text in ``text``, ignoring numbers, in listed order."""
        return self._of_shape(shape_of(text))

    def _in_shape(self, shape: bytes) -> tuple[Signature, ...]:
        begins = self._places.keys() & {shape[at : at + _BEGINS] for at in range(len(shape))}
        listed = (places for begin in begins for text, places in self._places[begin].items() if text in shape)
        return tuple(self._signatures[place] for place in sorted(set[int]().union(*listed)))

    def hits(self, line: Line) -> list[Hit]:
        """Return the hits of ``line``: by tier, and within a tier in the order in which signatures are listed."""
        found = ((each, _shown(each, line.text)) for each in self.candidates(line.text))
        hits = [Hit(signature, line, *shown) for signature, shown in found if shown is not None]
        return sorted(hits, key=lambda hit: hit.signature.tier)


def _in_context(hits: Sequence[Hit], lines: Sequence[Line]) -> Iterator[Hit]:
    """Yield the hits that other lines support by their ``log_*`` expressions, with the groups of those lines."""
    silent = {hit.line.at for hit in hits if hit.signature.tier == Tier.ECHO and hit.signature.code not in _SPEAK}
    spoken: dict[Speaker, list[Line]] = {}
    for line in lines:
        if line.at not in silent:
            spoken.setdefault(line.speaker, []).append(line)
    elsewhere: dict[int, dict[str, str] | None] = {}
    contradicted: dict[tuple[int, Speaker], bool] = {}
    for hit in hits:
        signature, who = hit.signature, hit.line.speaker
        if (key := id(signature)) not in elsewhere:
            twice = all(_stands_twice(expression, lines) for expression in signature.log_twice)
            elsewhere[key] = _said_elsewhere(signature.log_with, lines) if twice else None
        if (key, who) not in contradicted:
            own_lines = spoken.get(who, ())
            contradicted[key, who] = any(_first_match(expression, own_lines) for expression in signature.log_unless)
        if (groups := elsewhere[key]) is not None and not contradicted[key, who]:
            yield hit._replace(groups=groups | hit.groups)


def _first_match(expression: str, lines: Iterable[Line]) -> tuple[Line, re.Match[str]] | None:
    return next(((line, match) for line in lines if (match := _compile(expression).search(line.text))), None)


def _stands_twice(expression: str, lines: Sequence[Line]) -> bool:
    texts = [line.text for line in lines if _compile(expression).search(line.text)]
    return len(texts) > len(set(texts))


def _said_elsewhere(expressions: Sequence[str], lines: Sequence[Line]) -> dict[str, str] | None:
    """Return the groups of the first match of each expression; None if any of them matches no line.

    A group that took no part in its match stands for the rank that said the line.
    """
    groups: dict[str, str] = {}
    for expression in expressions:
        if (first := _first_match(expression, lines)) is None:
            return None
        line, match = first
        groups |= match.groupdict(str(line.speaker.rank))
    return groups


@dataclass(frozen=True)
class Scanned:
    """All lines that were read, and what was found in them.

    ``summary`` is the first line of torchrun's; ``cut`` are the first lines of tracebacks whose exception is missing.
    ``hosts`` are those named by lines.
    """

    lines: tuple[Line, ...]
    hits: tuple[Hit, ...]
    tracebacks: tuple[Traceback, ...]
    exits: tuple[RankExit, ...]
    summary: Line | None
    cut: tuple[Line, ...] = ()
    hosts: frozenset[str] = frozenset()


@cache
def matcher() -> Matcher:
    """Return the matcher of all signatures, which is kept, with its line shapes, as long as the process runs."""
    return Matcher(all_signatures())


def scan(lines: Iterable[Line]) -> Scanned:
    """Read ``lines`` once, in order, and return what was found in them."""
    tracebacks, trailer, find = Tracebacks(), Trailer(), matcher()
    kept_lines: list[Line] = []
    hits: list[Hit] = []
    for line in lines:
        line = trailer.feed(line)
        kept_lines.append(line)
        tracebacks.feed(line)
        hits.extend(find.hits(line))
    tracebacks_found = tuple(tracebacks.finish())
    for part in (part for one_traceback in tracebacks_found for part in one_traceback.parts):
        shown = f"{part.raised.type}: {part.raised.message}"
        if part.raised.message and shown not in part.line.text:  # it is on later lines, or lines of ranks were mixed
            hits.extend(find.hits(part.line._replace(text=shown)))
    return Scanned(
        tuple(kept_lines),
        tuple(_in_context(hits, kept_lines)),
        tracebacks_found,
        tuple(trailer.finish()),
        trailer.failed_summary,
        tuple(tracebacks.cut),
        hosts=frozenset(line.speaker.host for line in kept_lines if line.speaker.host),
    )


def notes_below(line: Line, scanned: Scanned) -> tuple[str, ...]:
    """Return the lines that continue the exception at ``line``: the rest of its message, and its notes.

    Only its first paragraph, and only if the lines name their rank: other lines may be another rank's.
    """
    below = (other for other in scanned.lines[line.at - scanned.lines[0].at + 1 :] if other.file == line.file)
    texts = (other.text.strip() for other in below if other.speaker == line.speaker)
    notes = tuple(takewhile(lambda text: text and not _GOES_ON.search(text), islice(texts, _NOTES + 1)))
    return notes if line.speaker.rank is not None and len(notes) <= _NOTES else ()
