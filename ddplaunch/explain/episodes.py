"""Where the last of several runs begins that were appended to one log: what came before failed on its own account.

A run that a file starts with leaves no mark that is certain; a launch typed at a prompt does, and so does the line of
nohup, of `script`, or of a shell script that writes a ruler with the time around each start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ddplaunch.explain.read.lines import Line

#: A launch typed into a shell, with its prompt, where a whole session was recorded.
_TYPED = re.compile(
    r"(?:\([\w.-]+\) )?(?:\[?[\w.-]+@[\w.-]+[: ][^$#]{0,80}[$#]|[~/][\w./~-]* ?\$|\$) (?:[A-Z_][A-Z0-9_]*=\S* )*"
    r"(?:(?:torchrun|ddplaunch run|deepspeed|accelerate launch|horovodrun|python\S*) \S"
    r"|(?:srun|mpirun) .*(?:torchrun|ddplaunch|deepspeed|accelerate|python|\.(?:py|sh)\b))"
)
#: What nohup, `script` and people's own shell scripts write once as they start a program whose output is appended.
_STARTED = re.compile(
    r"nohup: (?:ignoring input|appending output)|Script started on \d"
    r"|[=#*-]{2,} ?(?!.*\b(?:end|ended|done|exit|status)\b)[^=]"
    r".*(?:\d{4}-\d\d-\d\d[ T]\d\d:\d\d|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d\b.* \d{4}\b)"
)
_FAILS = re.compile(r"Traceback|^E\d{4} |closing signal|\(exitcode|(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?:: |$)")


def last_episode(lines: Sequence[Line], says_something: Callable[[str], bool]) -> int:
    """Return the place in ``lines`` where the last run begins, 0 where one run is all that shows."""
    texts = [line.text for line in lines]
    typed = [at for at, text in enumerate(texts) if _TYPED.match(text)]
    if len(typed) > 1 and any(map(says_something, texts[typed[-1] + 1 :])):
        return typed[-1]
    started = [at for at, text in enumerate(texts) if _STARTED.match(text)]
    earlier = texts[started[0] : started[-1]] if started else []
    return started[-1] if any(map(_FAILS.search, earlier)) else 0
