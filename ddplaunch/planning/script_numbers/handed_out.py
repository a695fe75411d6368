"""The numbers of a launch as the script takes them, and those that its arguments or defaults already fix."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddplaunch.planning.launch import Passed, Target, Topology
from ddplaunch.planning.options import Options
from ddplaunch.scaling.compute import compute
from ddplaunch.scaling.numbers import Numbers, NumbersRequest, format_lr, round_significant
from ddplaunch.script.declared import given
from ddplaunch.script.script_report import LOCAL_WORLD, WORLD, DeclaredOption, LrRule, Meaning, ScriptReport
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.words import nearest

NAMES = ("batch_size", "global_batch_size", "lr", "lr_factor", "warmup_steps", "accum", "world_size", "nproc", "nnodes")
_NAME = r"[A-Za-z][A-Za-z0-9_:-]*"
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|(?<!\$)\{{({_NAME})\}}")
#: The families of numbers that are filled into the script's options without a placeholder, each with the meanings of
#: such options. World size, nproc and nnodes are not filled in, since scripts give these names other meanings.
FAMILIES: dict[str, tuple[Meaning, ...]] = {
    "batch_size": ("batch_size", "node_batch_size", "total_batch_size", "global_batch_size"),
    "accum": ("accum",),
    "lr": ("lr",),
    "warmup_steps": ("warmup_steps", "warmup_epochs", "warmup_ratio"),
}
#: The flags with which the user names the script's option for a number.
OPTION_FLAGS = {
    "batch_size": "--batch-option",
    "accum": "--accum-option",
    "lr": "--lr-option",
    "warmup_steps": "--warmup-option",
}
#: In the powers of an ``LrRule``: the user says that the script itself scales by the plan's factor.
PLAN_FACTOR = "factor of the plan"
FLAGS = {
    "batch_size": "`--batch-size`",
    "global_batch_size": "`--batch-size` or `--global-batch-size`",
    "lr": "`--lr` or `--base-lr`",
    "lr_factor": "`--base-lr`",
    "warmup_steps": "`--warmup` or `--base-warmup`",
    "accum": "`--batch-size`",
}


@dataclass(frozen=True)
class Plan:
    """The numbers of a launch as they are handed out.

    ``given`` are the families of ``FAMILIES`` for which the user gave a number, ``withheld`` those that must not be
    passed (`--lr-option none`). ``automatic`` is False for ``--no-forward``, ``executable`` is True if the target is an
    executable of any kind.
    """

    numbers: Numbers
    nproc: int
    nnodes: int
    given: frozenset[str]
    automatic: bool = True
    withheld: frozenset[str] = frozenset()
    executable: bool = False

    def texts(self) -> dict[str, str]:
        """Return each known number as the text that replaces its placeholder."""
        numbers = self.numbers
        values: dict[str, object] = {"world_size": numbers.world_size.value, "nproc": self.nproc, "nnodes": self.nnodes}
        for name in ("batch_size", "global_batch_size", "warmup_steps", "accum"):
            resolved = getattr(numbers, name)
            values[name] = None if resolved is None else resolved.value
        result = {name: str(value) for name, value in values.items() if value is not None}
        for name in ("lr", "lr_factor"):
            resolved = getattr(numbers, name)
            if resolved is not None:
                result[name] = format_lr(resolved.value)
        return result

    def count(self, meaning: Meaning) -> int | None:
        """Return a number of samples, micro-batches or steps as an option of ``meaning`` takes it."""
        share = _shares(self.numbers.world_size.value, self.nproc).get(meaning)
        resolved: Resolved[int] | None = getattr(self.numbers, meaning if share is None else "batch_size", None)
        return None if resolved is None else resolved.value * (share or 1)


def _shares(world_size: int, nproc: int) -> dict[Meaning, int]:
    """Return, for each meaning that is a total over several ranks, the factor from one rank's number to it."""
    return {"node_batch_size": nproc, "total_batch_size": world_size}


def given_numbers(options: Options, numbers: Numbers) -> frozenset[str]:
    """Return the families of numbers that the user gave or that follow from these; defaults are not among them."""
    found = set()
    if options.batch_size or options.global_batch_size:
        found.add("batch_size")
    computed = numbers.accum and numbers.accum.source.kind == "computed" and numbers.accum.value > 1
    if options.accum or computed:
        found.add("accum")
    if numbers.lr and numbers.lr.source.kind != "script":
        found.add("lr")
    if options.base_warmup or options.warmup:
        found.add("warmup_steps")
    return frozenset(found)


def withheld_numbers(options: Options) -> frozenset[str]:
    """Return the families of numbers that the user wants no option to pass."""
    return frozenset(family for family, said in named_options(options) if said.value == "none")


def named_options(options: Options) -> Iterator[tuple[str, Resolved[str]]]:
    """Yield the families for whose number the user names the script's option, each with what was said."""
    for family, flag in OPTION_FLAGS.items():
        said: Resolved[str] | None = getattr(options, flag[2:].replace("-", "_"))
        if said is not None:
            yield family, said


def family_of(option: DeclaredOption) -> str:
    """Return the family of ``FAMILIES`` to which the option belongs, empty if to none."""
    return next((family for family, meanings in FAMILIES.items() if option.meaning in meanings), "")


def factor_of(rule: LrRule | None, plan: Plan, script: ScriptReport, args: Sequence[str]) -> float | None:
    """Return the factor by which the script will multiply its learning rate, None if a part of it is not known.

    An option of the script has the value typed after ``--``, else the one that the plan fills in, else its default.
    """
    if rule is None:
        return 1.0
    values = {WORLD: float(plan.numbers.world_size.value), LOCAL_WORLD: float(plan.nproc)}
    if plan.numbers.lr_factor is not None:
        values[PLAN_FACTOR] = plan.numbers.lr_factor.value
    for option in script.options:
        known = [*given(args, option, script.options), *_filled_in(option, plan)]
        known += [option.default] if option.default is not None else []
        number = _positive(known[0]) if known else None
        if number is not None:
            values[option.dest] = number
    factor = rule.constant
    for name, power in rule.powers:
        if name not in values:
            return None
        factor *= math.pow(values[name], power)
    return factor if math.isfinite(factor) and factor > 0 else None


def _filled_in(option: DeclaredOption, plan: Plan) -> tuple[str, ...]:
    """Return the number of samples or micro-batches that the plan fills into an option, in a tuple; empty if none."""
    family = family_of(option)
    if not plan.automatic or family not in plan.given or option.meaning is None:
        return ()
    count = plan.count(option.meaning) if family in ("batch_size", "accum") else None
    return () if count is None else (str(count),)


def _positive(text: str) -> float | None:
    """Return ``text`` as a number above 0, None for anything else."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def replace_placeholders(args: tuple[str, ...], known: Mapping[str, str]) -> tuple[tuple[str, ...], list[Passed]]:
    """Return the arguments with placeholders replaced by ``known`` numbers, and the numbers that were used.

    Braces around other words, as in a prompt, stay. Raises UsageError for a placeholder whose number is not known, and
    for a misspelt placeholder.
    """
    passed: dict[str, Passed] = {}

    def substitute(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        meant = _meant(name)
        if meant is None:
            return match[0]
        if match[1]:
            return "{" + name + "}"
        if name not in known:
            raise _no_number(name, meant)
        passed[name] = Passed(name, known[name], (), None)
        return known[name]

    return tuple(_PLACEHOLDER.sub(substitute, arg) for arg in args), list(passed.values())


def as_literal(text: str) -> str:
    """Return ``text`` with its placeholders escaped, so that ``replace_placeholders`` turns it back into ``text``."""
    return _PLACEHOLDER.sub(lambda match: match[0] if _meant(match[1] or match[2]) is None else f"{{{match[0]}}}", text)


def _meant(name: str) -> str | None:
    """Return the placeholder that a word in braces is or was meant to be (``batchsize``, ``lr:head``), else None."""
    if name in NAMES:
        return name
    joined = {placeholder.replace("_", ""): placeholder for placeholder in NAMES}
    return joined.get(nearest(re.sub("[_-]|:.*", "", name).lower(), joined, 0.85) or "")


def _no_number(name: str, meant: str) -> UsageError:
    known = name == meant
    return usage(
        f"`{{{name}}}` in the script's arguments {'has no number' if known else 'is no placeholder'}",
        why="a placeholder is replaced by the number of the plan" + (", and nothing gives this one" if known else ""),
        fix=f"{f'add {FLAGS[name]}' if known else f'`{{{meant}}}`'}, or `{{{{{name}}}}}` if the braces are meant",
        code="placeholder-without-number" if known else "unknown-placeholder",
    )


def complete_from_script(
    options: Options, target: Target | None, topology: Topology, script: ScriptReport | Unavailable
) -> Options:
    """Return ``options`` with the numbers that the script will use anyway, and the base from which it scales.

    An argument of the script counts like a flag. The literal default of a declared option fills what is still open,
    unless a number that the user gave will replace it. If the script itself scales the learning rate from a reference
    batch, this batch becomes the base, unless the user gave another one.
    """
    if isinstance(script, Unavailable) or target is None:
        return options
    values: dict[str, Any] = {}
    for option in script.options:
        family = family_of(option)
        if family not in ("batch_size", "accum") or not _open(options, family):
            continue
        adopted = _passed(target, option, script) or _default(options, option)
        name = "global_batch_size" if option.meaning == "global_batch_size" else family
        adopted = _per_rank(adopted, option, topology)
        if adopted is not None and name not in values:
            values[name] = adopted
    if "batch_size" in values:
        values.pop("global_batch_size", None)
    completed = replace(options, **values)
    rate = next((option for option in script.options if option.meaning == "lr"), None)
    if rate is None:
        return completed
    plan = _plan_of_batch(options, completed, topology)
    return replace(completed, **_rates(completed, rate, target, plan, script))


def _open(options: Options, name: str) -> bool:
    if name == "batch_size":
        return options.batch_size is None and options.global_batch_size is None
    return getattr(options, name) is None


def _per_rank(found: Resolved[Any] | None, option: DeclaredOption, topology: Topology) -> Resolved[Any] | None:
    """Return a total of the script as the number per rank; None if it does not divide evenly."""
    shares = _shares(topology.world_size, topology.nproc_per_node.value)
    share = None if option.meaning is None else shares.get(option.meaning)
    if found is None or share is None:
        return found
    return None if found.value % share else Resolved(found.value // share, found.source)


def _rates(options: Options, rate: DeclaredOption, target: Target, plan: Plan, script: ScriptReport) -> dict[str, Any]:
    """Return the options that the script's learning rate adds: the rate if none was given, else its base batch."""
    own = _passed(target, rate, script) or _default(options, rate)
    if options.lr is None and options.base_lr is None:
        if own is None or options.base_batch_size is not None or options.lr_scaling is not None:
            return {} if own is None else {"base_lr": own}
        factor = factor_of(rate.rule, plan, script, target.args)
        if factor is None:
            return {}
        detail = own.source.detail if factor == 1 else f"{own.source.detail}, × {factor:g} at {rate.rule.at}"  # type: ignore[union-attr]
        return {"lr": Resolved(round_significant(own.value * factor), Source("script", detail))}
    if options.base_lr is None or options.base_batch_size is not None or rate.rule is None:
        return {}
    return _base_of(rate.rule, options, {option.dest for option in script.options if family_of(option) == "batch_size"})


def _plan_of_batch(said: Options, completed: Options, topology: Topology) -> Plan:
    """Return the plan as far as it is known before the learning rate: batch and accumulation."""
    size = Resolved(topology.world_size, topology.nproc_per_node.source)
    batch, accum = completed.batch_size, completed.accum
    try:
        numbers = compute(NumbersRequest(size, batch, accum, completed.global_batch_size))
    except UsageError:  # raised again when all numbers are computed
        numbers = Numbers(size, batch, accum)
    given = given_numbers(said, numbers) - withheld_numbers(said)
    return Plan(numbers, topology.nproc_per_node.value, topology.nnodes.value, given, value_of(said.forward, True))


def _base_of(rule: LrRule, options: Options, batches: Collection[str]) -> dict[str, Any]:
    """Return the reference batch from which the script scales, and its rule if that is the square root."""
    power = next((power for name, power in rule.powers if name in batches and power > 0), 0.0)
    if not power or (options.batch_size is None and options.global_batch_size is None):
        return {}
    found: dict[str, Any] = {}
    reference = math.pow(1 / rule.constant, 1 / power)
    if reference >= 1 and math.isclose(reference, round(reference), rel_tol=1e-6):
        found["base_batch_size"] = Resolved(round(reference), Source("script", f"{rule.at} scales from it"))
    if power == 0.5 and options.lr_scaling is None:
        found["lr_scaling"] = Resolved("sqrt", Source("script", str(rule.at)))
    return found


def _passed(target: Target, option: DeclaredOption, script: ScriptReport) -> Resolved[Any] | None:
    values = given(target.args, option, script.options)
    number = _number(option, values[-1]) if values else None
    source = Source("script", f"`{option.flags[0]}` after `--`")
    return None if number is None else Resolved(number, source)


def _default(options: Options, option: DeclaredOption) -> Resolved[Any] | None:
    """Return an option's default, None if unknown; with a global batch size, batch and accumulation have none."""
    if option.meaning != "lr" and options.global_batch_size is not None:
        return None
    number = _number(option, option.default) if option.default is not None else None
    return None if number is None else Resolved(number, Source("script", f"default at {option.at}"))


def _number(option: DeclaredOption, text: str) -> int | float | None:
    number = _positive(text)
    if number is None or option.meaning == "lr":
        return number
    return int(number) if number.is_integer() else None
