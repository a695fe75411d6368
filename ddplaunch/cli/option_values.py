"""What was typed as ``Options`` with their sources; refuses to decide what was not said.

Values that no launch can have, whoever said them, flag or profile; refuses to judge values against each other.

Moments as flags spell them; refuses to read a clock.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from ddplaunch.cli.flags import LAUNCH, Flag
from ddplaunch.launch.options import Options
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.words import LENGTH, duration_s

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


#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
_NCCL_LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
_NOT_NEGATIVE = {"workers": "4", "max_restarts": "3", "relaunch": "3", "node_rank": "0", "grace": "60"}
_NOT_EMPTY = {
    "socket_ifname": "eth0",
    "run_dir": "runs",
    "data": "/data/train",
    "output": "out",
    "env_file": "train.env",
    "master_addr": "10.0.0.5",
    "torchrun_arg": "--monitor-interval=1",
}


def refuse_impossible(options: Options) -> None:
    """Raise UsageError for the first value that is out of its option's range, empty or holds a null byte."""
    for field in fields(options):
        value = getattr(options, field.name)
        for item in value if isinstance(value, tuple) else () if value is None else (value,):
            _refuse(field.name, item)


def _refuse(name: str, item: Resolved[Any]) -> None:
    flag = "NPROC" if name == "nproc" else "--" + name.replace("_", "-")
    value = item.value
    if isinstance(value, str) and "\0" in value:
        raise _impossible(
            item, f"`{flag}` holds a null byte", "no argument, path or variable can", f"write `{flag}` anew"
        )
    if name in _NOT_EMPTY and not value.strip():
        raise _impossible(item, f"`{flag}` is empty", "an empty text names nothing", f"`{flag} {_NOT_EMPTY[name]}`")
    if name in _NOT_NEGATIVE and value < 0:
        fix = f"`{flag} {_NOT_NEGATIVE[name]}`, or leave it out"
        raise _impossible(item, f"`{flag}` is {value}, less than 0", "it counts from 0", fix)
    if name == "nccl_debug" and value.upper() not in _NCCL_LEVELS:
        what = f"`--nccl-debug {value}` is not a level of NCCL"
        raise _impossible(item, what, f"it is one of {', '.join(_NCCL_LEVELS)}", "`--nccl-debug INFO`")


def _impossible(item: Resolved[Any], what: str, why: str, fix: str) -> UsageError:
    return usage(what, why=why, fix=fix, where=str(item.source))


def moment_s(flag: str, text: str, now_s: float) -> float:
    """Return ``10m`` (ago) or ``2026-11-21 14:30`` (local unless it says otherwise) in seconds since the epoch.

    Raises UsageError for anything else.
    """
    if LENGTH.fullmatch(text.strip()):
        return now_s - duration_s(flag, text)
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        raise usage(
            f"`{flag} {text}` is neither a length of time nor a moment",
            why="it is a number with s, m, h or d, counted back from now, or a date and time",
            fix=f'`{flag} 10m` or `{flag} "2026-11-21 14:30"`',
            where=f"flag: {flag}",
        ) from None
