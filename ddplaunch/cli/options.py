"""What was typed as ``Options`` with their sources; refuses to decide what was not said."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from ddplaunch.cli.flags import LAUNCH, Flag
from ddplaunch.errors import usage
from ddplaunch.launch.options import Options
from ddplaunch.values import Resolved, Source

_EXAMPLE = {
    "accum": "4",
    "base_warmup": "500",
    "dataset_size": "50000",
    "global_batch_size": "64",
    "grace": "60",
    "lr_max_factor": "4",
    "master_port": "29500",
    "max_restarts": "3",
    "node_rank": "0",
    "relaunch": "3",
    "workers": "4",
}


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


def _meaning(flag: Flag) -> str:
    return flag.text[:1].lower() + flag.text[1:].partition(" [")[0].rstrip(".")


def _integer(flag: Flag, text: str) -> int:
    try:
        if text.isascii():  # int() takes the digits of every script, and underscores
            return int(text.replace("_", "x"))
    except ValueError:
        pass
    raise usage(
        f"`{flag.flag} {shlex.quote(text)}` is not an integer",
        why=f"it takes a whole number ({_meaning(flag)})",
        fix=f"`{flag.flag} {_EXAMPLE.get(flag.name, '8')}`",
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
        f"`{flag.flag} {shlex.quote(text)}` is not a number",
        why=f"it takes a finite decimal number ({_meaning(flag)})",
        fix=f"`{flag.flag} {_EXAMPLE.get(flag.name, '1e-4')}`",
        where=f"flag: {flag.flag}",
    )
