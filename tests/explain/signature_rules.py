"""What every signature promises, checked with its own examples and `re` alone, without the engine."""

from __future__ import annotations

import re
import time
from functools import cache
from string import Formatter

from ddplaunch.explain.signatures.signature import Signature

_compiled = cache(re.compile)  # there are more patterns than `re` keeps


def matched(signature: Signature, line: str) -> re.Match[str] | None:
    """Return the first match of ``signature`` in ``line``, as `Signature` promises it."""
    if any(_compiled(near).search(line) for near in signature.unless):
        return None
    return next((match for each in signature.patterns if (match := _compiled(each).search(line))), None)


def fields(template: str) -> set[str]:
    """Return the names that ``template`` fills in."""
    return {name for _, name, _, _ in Formatter().parse(template) if name is not None}


def missed(signature: Signature) -> list[str]:
    """Return the examples that do not match."""
    return [line for line in signature.examples if matched(signature, line) is None]


def caught(signature: Signature) -> list[str]:
    """Return the near-misses that match."""
    return [line for line in signature.near_misses if matched(signature, line) is not None]


def idle(signature: Signature) -> list[str]:
    """Return patterns that no example needs."""
    used = {match.re.pattern for line in signature.examples if (match := matched(signature, line))}
    return [each for each in signature.patterns if each not in used]


def unfilled(signature: Signature) -> list[str]:
    """Return the sentences that an example leaves with a hole, or that do not format."""
    holes = []
    for line in signature.examples:
        match = matched(signature, line)
        assert match is not None
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
    """Return the expressions that need more CPU time than ``seconds`` for 8000 characters made of its examples."""
    found = []
    for example in signature.examples:
        line = (example + " ") * (8000 // len(example) + 1)
        beside = (*signature.log_unless, *signature.log_with, *signature.log_by_several)
        for each in (*signature.patterns, *signature.unless, *beside):
            pattern = _compiled(each)
            begun = time.process_time()
            pattern.search(line)
            if time.process_time() - begun > seconds:
                found.append(each)
    return found
