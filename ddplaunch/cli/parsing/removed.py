"""Answers commands and options that were removed, or are another launcher's, with what to use instead.

``removed.toml`` has the names; it is read only for a mistake.
"""

from __future__ import annotations

from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import UsageError, usage


def instead() -> dict[str, str]:
    """Return what to use instead of each name in ``removed.toml``."""
    return {name: row["instead"] for row in toml_beside(__file__, "removed.toml")["removed"] for name in row["names"]}


def removed(command: str, word: str = "") -> UsageError | None:
    """Return the error for a command, or option of ``command``, that is not ddplaunch's; None for any other word."""
    word = word.replace("_", "-")
    fix_by_name = instead()
    name = next((name for name in (f"{command} {word}".strip(), word) if name in fix_by_name), None)
    return None if name is None else usage(f"there is no `{name}`", why="", fix=fix_by_name[name])
