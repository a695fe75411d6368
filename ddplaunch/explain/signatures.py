"""What one failure looks like in a log: rules of the files ``families/*.toml``, and how far each can be trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, auto
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import size_text

#: How a code counts, as its table in a family says. "at-start": it ends a rank before its first step, if it ends it.
#: "by-others": kernels, drivers and schedulers tell it of ranks, and sign for themselves. "noise": an echo of no lost
#: peer, as launchers' summaries and what interpreters print as they end.
Kind = Literal["", "at-start", "by-others", "noise"]


class Tier(IntEnum):
    """How far a line can be trusted to name the root cause. The best tier wins; within a tier, the earliest failure."""

    #: The line itself says what went wrong: no other failure has to come first.
    CAUSE = auto()
    #: The line says how something failed, not why: an exception that no signature knows, a library's error code.
    GENERAL = auto()
    #: The line may name the cause, but other failures lead to the same line: a crash, a mismatch.
    UNCERTAIN = auto()
    #: The rank went on after the error, logged it as a warning, or was stopped by the launcher; not for signatures.
    SURVIVED = auto()
    #: Healthy ranks print this too when another rank fails: timeouts, aborts, nodes that do not meet.
    SYMPTOM = auto()
    #: The line only supports a cause of the same code; with nothing better in the log, it makes that code likely.
    HINT = auto()
    #: A rank or launcher reports a failure elsewhere; never a cause.
    ECHO = auto()


@dataclass(frozen=True)
class Signature:
    """One way in which ``code`` shows: a rule of ``ddplaunch/explain/families/*.toml``.

    - ``kind``: how its code counts.
    - ``tier``: how it ranks against other failures. If two signatures of a tier match one line, the first listed wins.
    - ``patterns``: regular expressions of Python, searched in one line without its prefix and ANSI codes; the first
      that matches counts. Each needs some plain words: lines without them are skipped. ``unless``: expressions that
      make the line a near-miss. ``log_unless``: expressions that contradict the line if any line of the same rank
      matches. ``log_with``: expressions of which each has to match some line of the log; their groups are words too.
      ``log_twice``: expressions of which each matches two equal lines, as of two ranks.
    - ``what``, ``why``, ``fixes``: words that may use named groups of the pattern as ``{name}``; ``{line}`` is what the
      whole pattern matched, unless it names a part so. A fix whose groups are missing is left out. Echoes have no
      ``why`` and no ``fixes``.
    - ``needed``: texts of which every line that matches contains one.
    - ``example``: a line that matches.
    - ``name``: of words that the engine asks for by name; it has no patterns.
    """

    code: str
    tier: Tier
    what: str = ""
    patterns: tuple[str, ...] = ()
    example: str = ""
    why: str = ""
    fixes: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    log_unless: tuple[str, ...] = ()
    log_with: tuple[str, ...] = ()
    log_twice: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    kind: Kind = ""
    name: str = ""

    @property
    def is_root(self) -> bool:
        """Whether a matching line can be the root cause by itself."""
        return self.tier < Tier.HINT


#: A part of a template that a group of the pattern fills.
FIELD = re.compile(r"\{(\w+)\}")
_BYTES = re.compile(r"(\d{4,18}) ?bytes")
_BUS = re.compile(r"([0-9a-f]*)([0-9a-f]{2})([0-9a-f]{2})([0-9a-f])")


def readable(groups: Mapping[str, str]) -> Mapping[str, str]:
    """Return the groups as a person writes them: sizes in units, without the frame that rich draws around an error.

    NCCL leaves the colons and dots of a PCI device out, which `lspci` writes: ``busIdToInt64`` in
    https://github.com/NVIDIA/nccl/blob/master/src/misc/utils.cc
    """
    shown = dict(groups)
    if match := _BUS.fullmatch(groups.get("bus", "").zfill(6)):
        domain, bus, device, function = match.groups()
        shown["bus"] = f"{domain.lstrip('0') and f'{domain}:'}{bus}:{device}.{function}"
    if match := _BYTES.fullmatch(groups.get("size", "")):
        shown["size"] = size_text(int(match[1]))
    if "line" in groups:
        shown["line"] = groups["line"].strip(" │┃")
    return shown


def filled(template: str, groups: Mapping[str, str]) -> str:
    """Return ``template`` with each ``{name}`` replaced by its group, by "?" if there is none."""
    return FIELD.sub(lambda match: groups.get(match[1], "?"), template)


class Words(NamedTuple):
    """What, why and fixes of a diagnosis."""

    what: str
    why: str
    fixes: tuple[str, ...]


def words_of(signature: Signature, groups: Mapping[str, str]) -> Words:
    """Return the words of a signature with its groups; a fix of which one is not known is left out."""
    fixes = (filled(fix, groups) for fix in signature.fixes if set(FIELD.findall(fix)) <= groups.keys())
    return Words(filled(signature.what, groups), filled(signature.why, groups), tuple(fixes))


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return what lines of logs are compared with; read here, when a log is to be explained."""
    return tuple(signature for signature in _all() if not signature.name)


def named(name: str) -> Signature:
    """Return the words of this name. Raises KeyError if there are none."""
    return _names()[name]


def say(name: str, **groups: str) -> Words:
    """Return the words of this name, see ``families/unsaid.toml``, with what is known. Raises KeyError as `named`."""
    return words_of(named(name), groups)


def patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Return the expressions of ``families/reading.toml`` of this name. Raises KeyError as `named`."""
    return tuple(map(re.compile, named(f"read-{name}").patterns))


def has_words(name: str) -> bool:
    """Return whether there are words of this name."""
    return name in _names()


def all_words() -> Iterable[Signature]:
    """Return the words that are asked for by name; some have patterns of messages."""
    return _names().values()


def words_for(exception: str, message: str) -> Iterator[tuple[Signature, dict[str, str]]]:
    """Yield the words for an exception with this message, and for one of this type, with the groups they fill in."""
    for words in (words for words in all_words() if not words.name.startswith("read-")):
        for match in filter(None, (re.search(pattern, message) for pattern in words.patterns)):
            yield words, match.groupdict()
    if has_words(of_type := f"exception-{exception}"):
        yield named(of_type), {}


@cache
def _names() -> dict[str, Signature]:
    return {words.name: words for words in _all() if words.name}


@cache
def _all() -> tuple[Signature, ...]:
    """Return the rules of all families, as ``python -m scripts.signatures`` has compiled them."""
    rules = json.loads(Path(__file__).with_name("families.json").read_bytes())
    return tuple(signature_of(rule) for rule in rules)


def signature_of(rule: dict[str, Any]) -> Signature:
    """Return a rule of the compiled file as it is used."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in rule.items()}
    values["tier"] = Tier[rule["tier"].upper()]
    return Signature(**values)
