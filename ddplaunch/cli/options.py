"""What was typed as ``Options`` with their sources; refuses to decide what was not said."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ddplaunch.cli.flags import LAUNCH, Flag
from ddplaunch.errors import usage
from ddplaunch.launch.options import Options
from ddplaunch.values import Resolved, Source


def options_from_flags(values: Mapping[str, Any]) -> Options:
    """Return what was said on the command line, each with its flag as source.

    Raises UsageError for a number that is none.
    """
    said: dict[str, Any] = {}
    for flag in LAUNCH:
        value = values[flag.name]
        if value is None or value == []:
            continue
        source = Source("flag", _spelling(flag, value))
        if flag.kind == "many":
            said[flag.name] = tuple(Resolved(item, source) for item in value)
        else:
            said[flag.name] = Resolved(_converted(flag, value), source)
    return Options(**said)


def _spelling(flag: Flag, value: object) -> str:
    if flag.kind == "argument":
        return flag.metavar.strip("[]")
    return "--no-" + flag.flag[2:] if value is False else flag.flag


def _converted(flag: Flag, value: Any) -> Any:
    if flag.kind == "integer":
        return _integer(flag, value)
    return _number(flag, value) if flag.kind == "number" else value


def _integer(flag: Flag, text: str) -> int:
    try:
        if text.isascii():  # int() takes the digits of every script, and underscores
            return int(text.replace("_", "x"))
    except ValueError:
        pass
    raise usage(
        f"`{flag.flag} {text}` is not an integer",
        why=f"{flag.text.rstrip('.')}: a whole number",
        fix=f"`{flag.flag} 8`",
        where=f"flag: {flag.flag}",
    )


def _number(flag: Flag, text: str) -> float:
    try:
        number = float(text.replace("_", "x"))
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    raise usage(
        f"`{flag.flag} {text}` is not a number",
        why=f"{flag.text.rstrip('.')}: a decimal number",
        fix=f"`{flag.flag} 1e-4`",
        where=f"flag: {flag.flag}",
    )
