"""``K=V`` of ``--env`` and the lines of ``--env-file`` as pairs; refuses shell syntax beyond quotes."""

from __future__ import annotations

import re
import shlex

from ddplaunch.errors import usage

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def parse_assignment(text: str, where: str = "flag: --env") -> tuple[str, str]:
    """Return (name, value) of ``K=V``, which ``where`` says. Raises UsageError without ``=`` or a possible name."""
    name, equals, value = text.partition("=")
    if not equals or not _NAME.match(name):
        example = name if _NAME.match(name) else "NAME"
        raise usage(
            f"`--env {text}` sets nothing" if not equals else f"`{name}` cannot name an environment variable",
            why="`--env` takes NAME=VALUE; names are letters, digits and `_`",
            fix=f"`--env {example}=VALUE`",
            where=where,
        )
    return name, value


def parse_file(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Return the pairs of an environment file: ``K=V`` lines, comments, ``export``, shell quotes around a value.

    Raises UsageError with file:line for any other line.
    """
    pairs = []
    lines = text.removeprefix("\ufeff").split("\n")  # not splitlines(), which also ends a line at U+2028 and form feeds
    for number, line in enumerate(lines, start=1):
        stripped = line.strip().removeprefix("export ").lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, raw = stripped.partition("=")
        value = _unquote(raw.strip())
        if not equals or not _NAME.match(key) or value is None or "\0" in value:
            raise usage(
                f"{name}:{number} is not NAME=VALUE",
                why="every line of an environment file sets one variable",
                fix=f"correct line {number} of `{name}`, or put `#` in front of it",
                where=f"{name}:{number}",
            )
        pairs.append((key, value))
    return tuple(pairs)


def _unquote(raw: str) -> str | None:
    if raw[:1] not in ("'", '"'):
        return raw
    try:
        words = shlex.split(raw, comments=True)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None
