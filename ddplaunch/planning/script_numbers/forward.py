"""Puts numbers of the plan into the script's arguments: for placeholders, and as options that the script declares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ddplaunch.planning.launch import Missing, Passed
from ddplaunch.planning.script_numbers.handed_out import (
    FAMILIES,
    FLAGS,
    OPTION_FLAGS,
    PLAN_FACTOR,
    Plan,
    factor_of,
    family_of,
    replace_placeholders,
)
from ddplaunch.scaling.numbers import format_lr, round_significant
from ddplaunch.script.declared import arranged, given, is_same_value, spell
from ddplaunch.script.script_report import DeclaredOption, LrRule, ScriptReport
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable
from ddplaunch.values.variable_names import PLAN
from ddplaunch.values.words import listed

_WHOSE = {
    "node_batch_size": "of all processes on a node",
    "total_batch_size": "of all processes",
    "global_batch_size": "per optimizer step",
}
_UNITS = {"warmup_epochs": "epochs", "warmup_ratio": "a fraction of all steps"}


@dataclass(frozen=True)
class Forwarded:
    """The script's final arguments, the numbers in them that came from the plan, and given numbers that do not arrive.

    ``receives`` are the numbers that would arrive if they were given, ``doubts`` those that the script might not train
    with, each with a clause on what decides it instead.
    """

    args: tuple[str, ...]
    passed: tuple[Passed, ...]
    missing: tuple[Missing, ...] = ()
    receives: tuple[str, ...] = ()
    doubts: tuple[tuple[str, str], ...] = ()


def forward(args: tuple[str, ...], plan: Plan, script: ScriptReport | Unavailable) -> Forwarded:
    """Return ``args`` with placeholders replaced, and with the script's options that the user left out added.

    Only given numbers are filled in. Raises UsageError for a placeholder that does not exist or has no number, and for
    an option that the user passed with another value.
    """
    replaced, passed = replace_placeholders(args, plan.texts())
    placed = {"batch_size" if item.number == "global_batch_size" else item.number for item in passed}
    additions: list[tuple[DeclaredOption, tuple[str, ...]]] = []
    if not isinstance(script, Unavailable) and plan.automatic:
        for option in sorted(script.options, key=lambda each: each.meaning == "lr"):  # lr depends on the batch
            family = family_of(option)
            if family not in plan.given or (family in placed and not given(args, option, script.options)):
                continue
            value, note = _value(option, plan, script, replaced)
            if value is None:
                continue
            if given(args, option, script.options):
                _refuse_contradiction(option, family, value, given(replaced, option, script.options))
            else:
                words = spell(option, value)
                additions.append((option, words))
                shown = (option.after_flag, *words) if option.after_flag else words
                passed.append(Passed(option.meaning or family, value, shown, option.at, note))
    others = list(_by_other_ways(args, plan, script, passed))
    passed += [item for item in others if isinstance(item, Passed)]
    missing = tuple(item for item in others if isinstance(item, Missing))
    receives = tuple(_receives(args, plan, script, placed))
    doubts = _doubts(args, plan, missing, script)
    final = arranged(replaced, additions)
    if plan.executable and not any(item.at is not None and item.at.line for item in passed):
        final = (*replaced, *(word for _, words in additions for word in words))  # `bash train.sh` must stay first
    return Forwarded(final, tuple(passed), missing, receives, doubts)


def _doubts(
    args: Sequence[str], plan: Plan, missing: Sequence[Missing], script: ScriptReport | Unavailable
) -> tuple[tuple[str, str], ...]:
    """Return the plan's numbers that the script might not use, each with a clause on what decides it instead."""
    if isinstance(script, Unavailable):
        path, doubts = "the program", dict.fromkeys(("world_size", "accum"), script.reason)
    else:
        path, doubts = script.path, _doubts_of(args, plan, script)
    if plan.numbers.world_size.value == 1:
        doubts.pop("world_size", None)
    for name in ("lr", "warmup_steps"):
        if "world_size" in doubts and getattr(plan.numbers, f"base_{name.removesuffix('_steps')}"):
            doubts.setdefault(name, doubts["world_size"])
    return tuple((doubts | {item.number: f"not passed, {path} decides" for item in missing}).items())


def _doubts_of(args: Sequence[str], plan: Plan, script: ScriptReport) -> dict[str, str]:
    """Return why numbers may not be what trains, as far as the source says."""
    doubts = {family: clause for family, clause in script.doubts if family not in map(family_of, script.options)}
    devices = script.devices
    if devices is not None and devices.differ(plan.nproc):
        doubts["world_size"] = f"{devices.at} sets the devices to {devices.number}"
    doubts |= {family_of(option): option.doubt for option in script.options if option.doubt}
    doubts |= {instead.meaning: instead.clause for instead in script.instead}
    for option in script.options:  # whose default is not known
        known = (option.default or "").isdecimal() or given(args, option, script.options)
        if option.meaning == "accum" and option.meaning not in plan.given and not known:
            doubts["accum"] = f"{option.at} may decide the accumulation"
    return doubts


def _value(option: DeclaredOption, plan: Plan, script: ScriptReport, args: Sequence[str]) -> tuple[str | None, str]:
    """Return the number as the option takes it (None if it cannot), and a clause on how the option was understood."""
    if option.meaning == "lr":
        lr, factor = plan.numbers.lr, factor_of(option.rule, plan, script, args)
        if lr is None or factor is None:
            return None, ""
        value = format_lr(round_significant(lr.value / factor))
        return value, "" if option.rule is None else _scaled_by(option.rule, factor)
    assert option.meaning is not None
    count = None if _in_units(option) else plan.count(option.meaning)
    note = ": ".join(filter(None, (_WHOSE.get(option.meaning), option.because)))
    return None if count is None else str(count), note


def _scaled_by(rule: LrRule, factor: float) -> str:
    if rule.powers == ((PLAN_FACTOR, 1.0),):
        return "the base one: the script scales it"
    return f"{rule.at} multiplies it by {factor:g}"


def _by_other_ways(
    args: tuple[str, ...], plan: Plan, script: ScriptReport | Unavailable, passed: Sequence[Passed]
) -> Iterator[Passed | Missing]:
    """Yield the given numbers that no argument carries: the script reads them from the environment, or not at all."""
    arrived = {item.number for item in passed}
    both = {"batch_size", "global_batch_size"} <= arrived  # the script divides one by the other
    for family, meanings in FAMILIES.items():
        number = plan.count(meanings[0]) if family != "lr" else getattr(plan.numbers.lr, "value", None)
        if family not in plan.given or number is None or arrived & {family, *meanings}:
            continue
        if family == "accum" and (number == 1 or both):
            continue
        value = format_lr(number) if family == "lr" else str(number)
        variable = _variable(family, script)
        if variable:
            yield Passed(family, value, (), None, variable=variable)
        elif not _is_given(family, args, script):
            yield _missing(family, value, plan, script)


def _is_given(family: str, args: tuple[str, ...], script: ScriptReport | Unavailable) -> bool:
    """Return whether the user passes an option of the family that would have been filled in."""
    options = () if isinstance(script, Unavailable) else script.options
    return any(given(args, each, options) for each in options if family_of(each) == family and not _in_units(each))


def _in_units(option: DeclaredOption) -> bool:
    """Return whether an option takes epochs or a fraction instead of optimizer steps: these are not computed."""
    return option.meaning in _UNITS


def _receives(
    args: tuple[str, ...], plan: Plan, script: ScriptReport | Unavailable, placed: Collection[str]
) -> Iterator[str]:
    """Yield the numbers that the script can receive and for which the user has not passed a value of their own."""
    declared = () if isinstance(script, Unavailable) or not plan.automatic else script.options
    meanings = {option.meaning for option in declared if not _in_units(option)}
    divided = {"batch_size", "global_batch_size"} <= meanings
    for family, of_family in FAMILIES.items():
        taken = not meanings.isdisjoint(of_family) or (family == "accum" and divided)
        if family in placed or (taken and not _is_given(family, args, script)) or _variable(family, script):
            yield family


def _missing(family: str, value: str, plan: Plan, script: ScriptReport | Unavailable) -> Missing:
    """Return the number that does not reach the script, with the reason and what helps."""
    read = f"read `ddplaunch.current().{family}` in the script"
    placed = f"put `{{{family}}}` after `--` where an option or key takes it; or {read}"
    flag = OPTION_FLAGS[family]
    if family in plan.withheld:
        return Missing(family, value, f"`{flag} none`", asked=True)
    if isinstance(script, Unavailable):
        return Missing(family, value, f"the options of the program cannot be read ({script.reason})", placed)
    option = next((option for option in script.options if option.meaning in FAMILIES[family]), None)
    if option is not None:
        reason, fix = _why_not_in(option, family, plan)
        return Missing(family, value, reason, fix or read)
    shared = next((flags for meaning, flags in script.ambiguous if meaning in FAMILIES[family]), ())
    if shared:
        could = listed([f"`{each}`" for each in shared], last=" and ")
        choices = listed([f"`{flag}={each}`" for each in shared], last=" or ")
        return Missing(family, value, f"{could} could take it", choices)
    stands = next((each for each in script.instead if each.meaning in FAMILIES[family]), None)
    known = script.complete or script.by_file or (stands and stands.no_option)
    helps = read if known else placed  # a named option may have its place before others, or be no option but a key
    if stands:
        return Missing(family, value, stands.clause, stands.fix or helps)
    reason = f"no option for it was recognized{f', and {script.unread} may hide one' if script.unread else ''}"
    if script.configs:
        reason = f"no key for it was recognized in {listed(script.configs, 3)}"
    return Missing(family, value, script.by_file or reason, helps)


def _why_not_in(option: DeclaredOption, family: str, plan: Plan) -> tuple[str, str]:
    """Return why the script's option for a number cannot take it, and what helps, if known."""
    name = f"{option.after_flag} {option.flags[0]}".strip()
    if option.meaning in _UNITS:
        fix = f"pass `{name}` yourself after `--`, if the schedule in use reads it, without {FLAGS[family]}"
        return f"`{name}` takes {_UNITS[option.meaning]} ({option.at})", fix
    if not plan.automatic:
        return f"`--no-forward` leaves `{name}` alone", f"`{name} {{{family}}}` after `--`, or no `--no-forward`"
    if option.rule is None:
        return f"`{name}` cannot take it", ""
    if option.rule.powers == ((PLAN_FACTOR, 1.0),):
        return f"the script scales `{name}`, and nothing says from what", "give `--base-lr` in the place of `--lr`"
    return (
        f"{option.rule.at} scales `{name}` by what cannot be computed here",
        f"pass `{name}` yourself after `--`; or, if it is final all the same, `--lr-option={option.flags[0]}:final`",
    )


def _variable(family: str, script: ScriptReport | Unavailable) -> str:
    """Return the variable from which the script reads the number, itself or through ddplaunch; empty if none."""
    if isinstance(script, Unavailable):
        return ""
    names = [f"DDPLAUNCH_{family.upper()}", *(["DDPLAUNCH_GLOBAL_BATCH_SIZE"] if family == "batch_size" else [])]
    own = next((name for name in (*names, PLAN) if name in script.reads_env), "")
    fields = ("batch_size", "global_batch_size") if family == "batch_size" else (family,)
    asks = not set(fields).isdisjoint(script.asks_for)
    return own or (PLAN if asks else "")


def _refuse_contradiction(option: DeclaredOption, family: str, ours: str, theirs: tuple[str, ...]) -> None:
    for value in theirs:
        if not is_same_value(value, ours):
            raise usage(
                f"two values for `{option.flags[0]}`: {value} after `--`, {ours} from the plan",
                why=f"the script declares it at {option.at}, and the plan's {family.replace('_', ' ')} belongs there"
                + (f", {_WHOSE[option.meaning]}" if option.meaning in _WHOSE else ""),
                fix=f"remove `{option.flags[0]} {value}` after `--`; or remove {FLAGS[family]} before `--`",
                where=str(option.at),
                code="option-given-twice",
            )
