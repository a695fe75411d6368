"""Answers commands and options that were removed, or are another launcher's, with what to use instead.

``removed.toml`` has the names; it is read only for a mistake.
"""

from __future__ import annotations

from functools import cache

from ddplaunch.values.codec import toml_beside
from ddplaunch.values.finding import UsageError, usage


@cache
def instead(table: str) -> dict[str, str]:
    """Return what to use instead of each name in the table "removed" or "another_launchers"."""
    rows = toml_beside(__file__, "removed.toml")[table]
    return {name: row["instead"] for row in rows for name in row["names"]}


def called_otherwise(option: str) -> UsageError | None:
    """Return the error for another launcher's option; None for any other word."""
    fix = instead("another_launchers").get(option.replace("_", "-"))
    return None if fix is None else usage(f"no such option: `{option}`", why="", fix=fix)


def removed(command: str, word: str = "") -> UsageError | None:
    """Return the error for a removed command, or removed option of ``command``; None for any other word."""
    word = word.replace("_", "-")
    fix_by_name = instead("removed")
    removal = next((name for name in (f"{command} {word}".strip(), word) if name in fix_by_name), None)
    if removal is None:
        return None
    why = "this version of ddplaunch does without it"
    return usage(f"`{removal}` is gone", why=why, fix=fix_by_name[removal], code="removed")
