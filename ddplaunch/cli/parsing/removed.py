"""Answers commands and options that were removed, or are another launcher's, with what to use instead.

``removed.toml`` has the names; it is read only for a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.cli.target import corrected_line
from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import UsageError, usage


def rows() -> dict[str, dict[str, str]]:
    """Return the row of each name in ``removed.toml``."""
    return {name: row for row in toml_beside(__file__, "removed.toml")["removed"] for name in row["names"]}


def removed(*words: str, script: Sequence[str] | None = None) -> UsageError | None:
    """Return the error for the first word of a line that is not ddplaunch's, for a missing ``run``, or for a line that
    is nearly right; else None.

    The fix is the corrected line, if that is a whole launch and the table knows ddplaunch's words for all of it.
    """
    text, what = "\0".join(words), ""
    for nearly in toml_beside(__file__, "removed.toml")["nearly"]:
        text, changes = re.subn(nearly["pattern"], nearly["instead"], text)
        what = nearly["what"] if changes else what
    row_by_name, rest, line, instead = rows(), text.split("\0"), list[str](), ""
    first = rest[0]
    if first.isdecimal() or first.endswith(".py"):
        line, what = ["run"], f"no such command '{first}'"
    while rest and not rest[0].endswith(".py"):  # what follows is the script's
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        of_command = f"{first} {name}"
        known = of_command if of_command in row_by_name else name
        if known not in row_by_name or (line and word[:1] != "-"):
            line.append(word)
            continue
        row = row_by_name[known]
        what, instead = what or f"there is no `{known}`", instead or row["instead"]
        # without `ours` only the user knows what to type
        line += [*row.get("ours", "…").split(), *[value] * bool(equals)]
    fix = corrected_line([*line, *rest], script)
    if " -- " not in fix or "…" in line:
        fix = instead
    return usage(what, why="", fix=fix) if what and fix else None
