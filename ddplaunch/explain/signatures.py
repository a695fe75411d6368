"""What failures look like in a log: the rules in ``families/*.toml``, and how far each can be trusted."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, auto
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import size_text

#: How a code counts, from its table in a family. "at-start": it can only end a rank before its first step. "by-others":
#: printed about ranks by kernels, drivers and schedulers, under their own names. "noise": an echo not about a lost
#: peer, such as launchers' summaries and what interpreters print at their end.
Kind = Literal["", "at-start", "by-others", "noise"]


class Tier(IntEnum):
    """How far a line can be trusted to name the root cause. The best tier wins; within a tier, the earliest failure."""

    #: The line itself says what went wrong: no earlier failure is needed to explain it.
    CAUSE = auto()
    #: The line says that something failed, not why: an exception that no signature knows, a library's error code.
    GENERAL = auto()
    #: The line may name the cause, but other failures lead to the same line: a crash, a mismatch.
    UNCERTAIN = auto()
    #: The rank continued after the error, logged it as a warning, or was stopped by the launcher; not for signatures.
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
    - ``tier``: its rank against other failures. If two signatures of a tier match one line, the first listed wins.
    - ``patterns``: Python regular expressions, searched in one line without its prefix and ANSI codes; the first that
      matches counts. Each needs some plain words: lines without them are skipped. ``unless``: expressions that make the
      line a near-miss. ``log_unless``: expressions that contradict the line if any line of the same rank matches.
      ``log_with``: expressions that each have to match some line of the log; their groups can be used too, and
      one that took no part is the rank of that line.
      ``log_twice``: expressions that each have to match two equal lines, as from two ranks.
    - ``what``, ``why``, ``fixes``: texts that may use named groups of the pattern as ``{name}``; ``{line}`` is the text
      that the whole pattern matched, unless it has a group of that name. A fix whose groups are missing is left out.
      Echoes have no ``why`` and no ``fixes``.
    - ``needed``: texts; every line that matches contains one of them.
    - ``example``: a line that matches.
    - ``name``: for texts that the code asks for by name; they are not matched against log lines.
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


#: A field of a template, filled by a group of the pattern.
FIELD = re.compile(r"\{(\w+)\}")
_BYTES = re.compile(r"(\d{4,18}) ?bytes")


def readable(groups: Mapping[str, str]) -> Mapping[str, str]:
    """Return the groups in readable form: sizes in units, without the frame that rich draws around an error."""
    shown = dict(groups)
    if match := _BYTES.fullmatch(groups.get("size", "")):
        shown["size"] = size_text(int(match[1]))
    if "line" in groups:
        shown["line"] = groups["line"].strip(" │┃")
    return shown


def filled(template: str, groups: Mapping[str, str]) -> str:
    """Return ``template`` with each ``{name}`` replaced by its group, or by "?" if there is none."""
    return FIELD.sub(lambda match: groups.get(match[1], "?"), template)


class Words(NamedTuple):
    """What, why and fixes of a diagnosis."""

    what: str
    why: str
    fixes: tuple[str, ...]


def words_of(signature: Signature, groups: Mapping[str, str]) -> Words:
    """Return the texts of a signature, filled with ``groups``; a fix with a missing group is left out."""
    fixes = (filled(fix, groups) for fix in signature.fixes if None not in map(groups.get, FIELD.findall(fix)))
    return Words(filled(signature.what, groups), filled(signature.why, groups), tuple(fixes))


@cache
def all_signatures() -> tuple[Signature, ...]:
    """Return the signatures for lines of logs; read from disk on the first call, when a log is to be explained."""
    return tuple(signature for signature in _all() if not signature.name)


def named(name: str) -> Signature:
    """Return the texts with this name. Raises KeyError if there are none."""
    return _names()[name]


def say(name: str, **groups: str) -> Words:
    """Return the texts ``name`` of ``families/unsaid.toml``, filled with ``groups``. Raises KeyError like `named`."""
    return words_of(named(name), groups)


def patterns(name: str) -> tuple[re.Pattern[str], ...]:
    """Return the expressions with this name in ``families/reading.toml``. Raises KeyError like `named`."""
    return tuple(map(re.compile, named(f"read-{name}").patterns))


def has_words(name: str) -> bool:
    """Return whether there are texts with this name."""
    return name in _names()


def all_words() -> Iterable[Signature]:
    """Return all texts that are asked for by name; some have patterns for messages."""
    return _names().values()


def words_for(exception: str, message: str) -> Iterator[tuple[Signature, dict[str, str]]]:
    """Yield the texts for an exception with this message, then those for its type, each with the groups to fill in."""
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
    """Return the rules of all families, as compiled by ``python -m scripts.signatures``."""
    rules = json.loads(zlib.decompress(Path(__file__).with_name("families.json.z").read_bytes()))
    return tuple(signature_of(rule) for rule in rules)


def signature_of(rule: dict[str, Any]) -> Signature:
    """Return the signature for a rule of the compiled file."""
    tuples = {name: tuple(value) for name, value in rule.items() if isinstance(value, list)}
    return Signature(**rule | tuples | {"tier": Tier[rule["tier"].upper()]})
