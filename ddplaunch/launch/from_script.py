"""Numbers that the script's own arguments or defaults already fix; refuses to overrule what the user said."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ddplaunch.launch.options import Options
from ddplaunch.launch.plan import Target
from ddplaunch.script.arguments import given
from ddplaunch.script.report import DeclaredOption, ScriptReport
from ddplaunch.values import Resolved, Source, Unavailable


def complete_from_script(options: Options, target: Target | None, script: ScriptReport | Unavailable) -> Options:
    """Return ``options`` with batch size, accumulation and learning rate that the script will use anyway.

    What stands behind ``--`` counts like a flag; the literal default of a declared option fills what is still open,
    unless a number that the user asked for is going to replace it.
    """
    if isinstance(script, Unavailable) or target is None:
        return options
    values: dict[str, Any] = {}
    for option in script.options:
        name = option.meaning
        if name not in ("batch_size", "accum", "lr") or name in values or not _open(options, name):
            continue
        adopted = _passed(target, option, script) or _default(options, option)
        if adopted is not None:
            values[name] = adopted
    return replace(options, **values)


def _open(options: Options, name: str) -> bool:
    if name == "lr":
        return options.lr is None and options.base_lr is None
    return getattr(options, name) is None


def _passed(target: Target, option: DeclaredOption, script: ScriptReport) -> Resolved[Any] | None:
    values = given(target.args, option, script.options)
    number = _number(option, values[-1]) if values else None
    source = Source("script", f"`{option.flags[0]}` behind `--`")
    return None if number is None else Resolved(number, source)


def _default(options: Options, option: DeclaredOption) -> Resolved[Any] | None:
    """A default of batch size or accumulation holds only if no global batch size is to be reached."""
    if option.meaning != "lr" and options.global_batch_size is not None:
        return None
    number = _number(option, option.default) if option.default is not None else None
    return None if number is None else Resolved(number, Source("script", f"default at {option.at}"))


def _number(option: DeclaredOption, text: str) -> int | float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number) or number <= 0:
        return None
    if option.meaning == "lr":
        return number
    return int(number) if number.is_integer() else None
