"""What every signature promises, checked with its own example, lines of logs and `re` alone, without the engine."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import cache
from string import Formatter

from ddplaunch.explain.signatures import Signature

_compiled = cache(re.compile)  # there are more patterns than `re` keeps


def matched(signature: Signature, line: str) -> re.Match[str] | None:
    """Return the first match of ``signature`` in ``line``, as `Signature` promises it."""
    if any(_compiled(near).search(line) for near in signature.unless):
        return None
    return next((match for each in signature.patterns if (match := _compiled(each).search(line))), None)


def fields(template: str) -> set[str]:
    """Return the names that ``template`` fills in."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def idle(signature: Signature, lines: Sequence[str]) -> list[str]:
    """Return patterns that no line needs."""
    used = {match.re.pattern for line in lines if (match := matched(signature, line))}
    return [each for each in signature.patterns if each not in used]


def unfilled(signature: Signature, lines: Sequence[str]) -> list[str]:
    """Return the sentences that a line leaves with a hole, or that do not format."""
    holes = []
    for match in filter(None, (matched(signature, line) for line in lines)):
        known = {"line": match[0]} | {name: value for name, value in match.groupdict().items() if value is not None}
        known |= {name: name for each in signature.log_with for name in _compiled(each).groupindex}
        for sentence in (signature.what, signature.why):
            if fields(sentence) - known.keys() or "\n" in sentence.format(**known):
                holes.append(sentence)
        holes += [fix for fix in signature.fixes if fields(fix) - _named(signature)]
    return holes


def _named(signature: Signature) -> set[str]:
    return {"line"} | {
        name for each in (*signature.patterns, *signature.log_with) for name in _compiled(each).groupindex
    }


def too_wide(signature: Signature) -> list[str]:
    """Return what is to be typed and does not fit into 80 columns beside ``  fix: ``, in which it is never broken."""
    return [span for fix in signature.fixes for span in re.findall(r"`[^`]*`", fix) if len(span) > 73]


def slow(signature: Signature, seconds: float) -> list[str]:
    """Return the expressions that need more CPU time than ``seconds`` for 8000 characters made of its example."""
    line = (signature.example + " ") * (8000 // len(signature.example) + 1)
    beside = (*signature.log_unless, *signature.log_with, *signature.log_twice)
    return [each for each in (*signature.patterns, *signature.unless, *beside) if _seconds(each, line) > seconds]


def _seconds(expression: str, line: str) -> float:
    pattern = _compiled(expression)
    begun = time.process_time()
    pattern.search(line)
    return time.process_time() - begun
