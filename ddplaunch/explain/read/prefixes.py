"""Strips prefixes of launchers and services from a log's lines, and finds the rank and host that they name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any, NamedTuple

from ddplaunch.explain.signatures import patterns


class Speaker(NamedTuple):
    """Who printed a line, as far as its prefix tells. ``rank`` is global, ``local`` is from torchrun's ``[default3]:``.

    ``quoted``: the line is in a recorded file of this rank, but its prefix names another rank.
    """

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    local: int | None = None
    quoted: bool = False


NOBODY = Speaker()
_HOST, _TASK, _TASK_TELLS, _STAMP, _ACTOR, _NCCL, _CPP, _BEGINS, _COLUMN, _VARIES, _NAME = patterns("prefixes")
_BRACKETS = patterns("brackets")
_IN_FRONT = (_STAMP, *patterns("in-front"))
#: All of these in one, which tells twice as fast that a line begins with none of them.
_ANY_IN_FRONT = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", row.pattern) for row in _IN_FRONT))
_MOSTLY_ALL = 0.9
_MOST_COLUMNS = 8
_MOST_PREFIXES = 6
_OFTEN = 4  # lines per rank on average
_WIDEST_FRONT = 120  # characters
_MOST_FRONTS, _FEWEST_LINES = 3, 3
_MOST_LINES = 0.8  # of the nonempty lines: a prefix of a service is before all of them


class Prefixes:
    """The prefixes of one file's lines: host names, task numbers of srun, and an indent that all lines share."""

    def __init__(self, sample: Sequence[str]) -> None:
        timeless = [_STAMP.sub("", line, count=1) for line in sample]
        hosts = Counter(match[1] for line in timeless if (match := _HOST.match(line)))
        filled = [line for line in sample if line.strip()]
        matches = [match for line in sample if (match := _COLUMN.match(line))]
        columns, numbered_all = Counter(match[1] for match in matches), all(match[2] for match in matches)
        if len(matches) >= _MOSTLY_ALL * len(filled) and (numbered_all or 1 < len(columns) <= _MOST_COLUMNS):
            hosts.update(columns)
        self._host = re.compile(rf"^\[?({'|'.join(map(re.escape, hosts))})(?:: ?|\] ?|\s*\|(?: |$))") if hosts else None
        bare = [_STAMP.sub("", self._without_host(line, NOBODY)[0], count=1) for line in timeless]
        numbered = sum(bool(_TASK.match(line)) for line in bare)
        indents = [line[: len(line) - len(line.lstrip(" \t"))] for line in filled]
        self._indent = len(commonprefix(indents))  # noqa: RUF071 - by character; of a log that was pasted as a block
        task_lines = sum(bool(_TASK_TELLS.match(line)) for line in bare)
        ranks = Counter(match[1] for line in bare if line[:1] == "[" and (match := _TASK.match(line)))
        few = "0" in ranks and len(ranks) * _OFTEN <= ranks.total()  # other counters have other numbers
        self._tasks = numbered > 2 and (task_lines > 1 or numbered * 5 > 3 * len(filled) or few)
        self._front: re.Pattern[str] | None = None
        self._front = self._learned(sample) if len(filled) >= _FEWEST_LINES else None

    def _learned(self, sample: Sequence[str]) -> re.Pattern[str] | None:
        """Return a pattern for an unknown prefix that nearly all lines have, or None.

        It is found before lines that begin like a traceback. Words and numbers in it may differ from line to line.
        """
        fronts: Counter[str] = Counter()
        for line in sample:
            if _BEGINS.search(line) is None:
                continue
            text, _ = self.strip(line, NOBODY)
            if (match := _BEGINS.search(text)) and 0 < match.start() <= _WIDEST_FRONT and text[: match.start()].strip():
                fronts[_shape(text[: match.start()])] += 1
        if not fronts:
            return None
        lines = [self.strip(line, NOBODY)[0] for line in sample if line.strip()]
        for shape, lines_with_it in fronts.most_common(_MOST_FRONTS):
            front = re.compile(shape)
            if lines_with_it > 1 and sum(bool(front.match(line)) for line in lines) >= _MOST_LINES * len(lines):
                return front
        return None

    def _without_host(self, text: str, who: Speaker) -> tuple[str, Speaker]:
        if self._host is None or (match := self._host.match(bare := _STAMP.sub("", text, count=1))) is None:
            return text, who
        return bare[match.end() :], who._replace(host=match[1])

    def strip(self, text: str, who: Speaker) -> tuple[str, Speaker]:
        """Return the text without its prefixes, and the speaker that they name."""
        text, who = self._without_host(text[self._indent :], who)
        if self._tasks and (match := _TASK.match(bare := _STAMP.sub("", text, count=1))):
            text, who = bare[match.end() :], who if who.rank is not None else who._replace(rank=int(match[1]))
        text, who = without_known(text, who)
        if self._front is not None and (match := self._front.match(text)):
            name = _NAME.search(match[0])
            who = who if name is None or who.host is not None else who._replace(host=name[0])
            text, who = without_known(text[match.end() :], who)
        return text, _native(text, who)


def without_known(text: str, who: Speaker) -> tuple[str, Speaker]:
    """Return the text without the prefixes that are known in any file, and the speaker that they name."""
    for _ in range(_MOST_PREFIXES):
        if (first := text[:1]) not in ("[", "(") and not _ANY_IN_FRONT.match(text):
            break
        rows = _BRACKETS if first == "[" else (_ACTOR,) if first == "(" else _IN_FRONT
        match = next((match for pattern in rows if (match := pattern.match(text))), None)
        if match is None:
            break
        text, who = text[match.end() :], _named(match, who)
    return text, who


def _named(match: re.Match[str], who: Speaker) -> Speaker:
    """Return the speaker that a prefix names; in a recorded file, whose rank is known, another rank means a quote."""
    parts = {name: value for name, value in match.groupdict().items() if value}
    rank, weak = parts.get("rank"), parts.get("weak")
    if rank and who.rank is not None and who.host is not None and who.rank != int(rank):
        return who._replace(quoted=True)
    if weak and who.rank is None:
        parts.setdefault("rank", weak)
    numbers: dict[str, Any] = {name: int(parts[name]) for name in ("rank", "pid", "local") if name in parts}
    return who._replace(host=who.host or parts.get("host"), **numbers)


def _shape(front: str) -> str:
    """Return a pattern for prefixes like this one, with any words, numbers and spaces."""
    head = r"\s*" if front[:1].isspace() else ""
    space = front[len(front.rstrip()) :]
    ends = f"(?:{re.escape(space)}|$)" if space else ""
    inner = _VARIES.sub(
        lambda field: r"\d+" if field[0].isdigit() else r"\s+" if field[0][0] == "\\" else r"\w+",
        re.escape(front.strip()),
    )
    return f"{head}{inner}{ends}"


def _native(text: str, who: Speaker) -> Speaker:
    """Return the speaker that NCCL's and c10d's own lines name; the lines are not changed."""
    if "NCCL" in text and (match := _NCCL.match(text)):
        who = who._replace(host=who.host or match[1], pid=int(match[2]))
    if (
        who.rank is None
        and "ank " in text
        and (match := _CPP.search(text, 0, 200))
        and (".cpp:" in text[:80] or text.startswith(("  what():  [", "[Rank ", "[PG ")))
    ):
        who = who._replace(rank=int(match[1]))
    return who
