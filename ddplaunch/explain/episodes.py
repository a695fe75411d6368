"""Finds where the last of several runs appended to one log begins; earlier runs failed for reasons of their own.

The start of a run leaves no certain mark in a file, except a launch typed at a prompt, a line of nohup or `script`, or
the rule with a date that shell scripts print around each start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ddplaunch.explain.read.lines import Line

#: A launch typed at a shell prompt, in a recorded session.
_TYPED = re.compile(
    r"(?:\([\w.-]+\) )?(?:\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80}[$#]|[~/][\w./~-]* ?\$|\$) (?:[A-Z_][A-Z0-9_]*=\S* )*"
    r"(?:(?:torchrun|ddplaunch run|deepspeed|accelerate launch|horovodrun|python\S*) \S"
    r"|(?:srun|mpirun) .*(?:torchrun|ddplaunch|deepspeed|accelerate|python|\.(?:py|sh)\b))"
)
#: Lines that nohup, `script` and shell scripts write once when they start a program whose output is appended.
_STARTED = re.compile(
    r"nohup: (?:ignoring input|appending output)|Script started on \d"
    r"|[=#*-]{2,} ?(?!.*\b(?:end|ended|done|exit|status)\b)[^=]"
    r".*(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b.* \d{4}\b)"
)
FAILS = re.compile(r"Traceback|^E\d{4} |closing signal|\(exitcode|(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?:: |$)")


def last_episode(lines: Sequence[Line], says_something: Callable[[str], bool]) -> int:
    """Return the index in ``lines`` where the last run begins; 0 if there is only one run."""
    texts = [line.text for line in lines]
    typed = [at for at, text in enumerate(texts) if _TYPED.match(text)]
    if len(typed) > 1 and any(map(says_something, texts[typed[-1] + 1 :])):
        return typed[-1]
    started = [at for at, text in enumerate(texts) if _STARTED.match(text)]
    earlier = texts[started[0] : started[-1]] if started else []
    return started[-1] if any(map(FAILS.search, earlier)) else 0
