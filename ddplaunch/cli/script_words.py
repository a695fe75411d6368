"""Carries what stands behind ``--`` past Typer, which must not touch it."""

from __future__ import annotations

from typing import Any

from ddplaunch.errors import usage


def script_words(context: Any) -> list[str]:
    """Return the words behind ``--``. Raises UsageError where there is no ``--`` at all."""
    words = optional_script_words(context)
    if words is None:
        raise usage(
            "no script was named",
            why="the script and its arguments go behind `--`",
            fix="`ddplaunch run 4 -- train.py --epochs 20`",
            code="script-missing",
        )
    return words


def optional_script_words(context: Any) -> list[str] | None:
    """Return the words behind ``--``, None without ``--``."""
    found = context.obj
    return None if found is None else list(found)
