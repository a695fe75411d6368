"""Numbers between the plan and the script's arguments, in both directions.

Numbers of the plan go into placeholders and into options that the script declares; numbers that its arguments or
defaults fix already go into the plan.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from ddplaunch.launch.launch import Passed, Target
from ddplaunch.launch.options import Options
from ddplaunch.scaling.numbers import Numbers, format_lr
from ddplaunch.script.declared import given
from ddplaunch.script.report import DeclaredOption, ScriptReport
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, Unavailable

NAMES = ("batch_size", "global_batch_size", "lr", "warmup_steps", "accum", "world_size", "nproc", "nnodes")
_PLACEHOLDER = re.compile(r"\{\{(" + "|".join(NAMES) + r")\}\}|\{(" + "|".join(NAMES) + r")\}")
#: Filled in without a placeholder; world size, nproc and nnodes are not, since scripts give these names other meanings.
_AUTOMATIC = ("batch_size", "global_batch_size", "accum", "lr", "warmup_steps")
_FLAG = {
    "batch_size": "`--batch-size`",
    "global_batch_size": "`--batch-size` or `--global-batch-size`",
    "lr": "`--lr` or `--base-lr`",
    "warmup_steps": "`--base-warmup`",
    "accum": "`--batch-size`",
}


@dataclass(frozen=True)
class Forwarded:
    """The script's final arguments and what of them came from the plan."""

    args: tuple[str, ...]
    passed: tuple[Passed, ...]


def texts(numbers: Numbers, nproc: int, nnodes: int) -> dict[str, str]:
    """Return each known number as the text that is passed to the script."""
    values: dict[str, object] = {"world_size": numbers.world_size.value, "nproc": nproc, "nnodes": nnodes}
    for name in ("batch_size", "global_batch_size", "warmup_steps", "accum"):
        resolved = getattr(numbers, name)
        values[name] = None if resolved is None else resolved.value
    result = {name: str(value) for name, value in values.items() if value is not None}
    if numbers.lr is not None:
        result["lr"] = format_lr(numbers.lr.value)
    return result


def forward(
    args: tuple[str, ...],
    known: dict[str, str],
    unsaid: dict[str, str],
    script: ScriptReport | Unavailable,
    automatic: bool,
) -> Forwarded:
    """Replace placeholders in ``args`` and put in front the options that the script declares and the user left out.

    ``known`` are all numbers as text, ``unsaid`` those that the script does not have already. Braces that are no
    placeholder stay as they are. Raises UsageError for a placeholder without a number and for an
    option that the user passed with another value.
    """
    replaced, passed = _replace(args, known)
    if isinstance(script, Unavailable) or not automatic:
        return Forwarded(replaced, tuple(passed))
    already = {item.number for item in passed}
    for option in script.options:
        number = option.meaning
        if number not in _AUTOMATIC or number not in unsaid:
            continue
        if given(args, option, script.options):
            _refuse_contradiction(option, number, unsaid[number], given(replaced, option, script.options))
        elif number not in already:
            already.add(number)
            passed.append(Passed(number, unsaid[number], _spell(option, unsaid[number]), option.at))
    appended = tuple(word for item in passed for word in item.arguments)
    # In front: behind a `--` of the script, or a positional that takes all the rest, an option would be none.
    return Forwarded((*appended, *replaced), tuple(passed))


def _spell(option: DeclaredOption, value: str) -> tuple[str, ...]:
    long = [flag for flag in option.flags if flag.startswith("--")]
    flag = (long or list(option.flags))[0]
    return (flag, value)


def _replace(args: tuple[str, ...], known: dict[str, str]) -> tuple[tuple[str, ...], list[Passed]]:
    passed: dict[str, Passed] = {}

    def substitute(match: re.Match[str]) -> str:
        if match[1]:
            return "{" + match[1] + "}"
        name = match[2]
        if name not in known:
            raise _no_number(name)
        passed[name] = Passed(name, known[name], (), None)
        return known[name]

    return tuple(_PLACEHOLDER.sub(substitute, arg) for arg in args), list(passed.values())


def _no_number(name: str) -> UsageError:
    return usage(
        f"`{{{name}}}` stands in the script's arguments, but nothing gives it a value",
        why="a placeholder is replaced by the number of the plan",
        fix=f"add {_FLAG[name]}, or write `{{{{{name}}}}}` if the braces are meant",
        code="placeholder-without-number",
    )


def _refuse_contradiction(option: DeclaredOption, number: str, ours: str, theirs: tuple[str, ...]) -> None:
    for value in theirs:
        if not _same(value, ours):
            raise usage(
                f"two values for `{option.flags[0]}`: {value} behind `--`, {ours} from the plan",
                why=f"the script declares it at {option.at}, and the plan's {number.replace('_', ' ')} belongs there",
                fix=f"leave `{option.flags[0]} {value}` out behind `--`, or say it in {_FLAG[number]}",
                where=str(option.at),
                code="option-given-twice",
            )


def _same(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def complete_from_script(options: Options, target: Target | None, script: ScriptReport | Unavailable) -> Options:
    """Return ``options`` with batch size, accumulation and learning rate that the script will use anyway.

    An argument of the script counts like a flag; the literal default of a declared option fills what is still open,
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
