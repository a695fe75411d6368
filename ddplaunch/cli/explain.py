"""``ddplaunch explain CODE``: what a check looks at and why; refuses to run it."""

from __future__ import annotations

import difflib
import sys

from ddplaunch.checks.all_checks import ALL, by_code
from ddplaunch.cli.say import answer
from ddplaunch.errors import ExitStatus, usage
from ddplaunch.ui.doctor_view import explain_text
from ddplaunch.ui.streams import styled, width


def explain(code: str | None) -> int:
    """Describe a check by the code of its finding."""
    if code is None:
        raise usage(
            "no code was named",
            why="`explain` describes one check",
            fix="`ddplaunch explain shm-too-small`; `ddplaunch doctor --list` names them all",
        )
    check = by_code(code)
    if check is None:
        near = difflib.get_close_matches(code, [each.code for each in ALL], n=1)
        raise usage(
            f"no check is called `{code}`",
            why="`ddplaunch doctor --list` names all of them",
            fix=f"`ddplaunch explain {near[0]}`" if near else "`ddplaunch doctor --list`",
        )
    answer(explain_text(check, width(sys.stdout), styled(sys.stdout)))
    return ExitStatus.DONE
