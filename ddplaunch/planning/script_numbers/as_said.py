"""Corrects the report on the script's options by what the user says: which option takes a number, and as what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from ddplaunch.planning.flag import named_option
from ddplaunch.planning.launch import Target
from ddplaunch.planning.options import Options
from ddplaunch.planning.script_numbers.handed_out import (
    FAMILIES,
    OPTION_FLAGS,
    PLAN_FACTOR,
    family_of,
    named_options,
)
from ddplaunch.script.declared import as_one_word, bare
from ddplaunch.script.names import destination
from ddplaunch.script.script_report import DeclaredAt, DeclaredOption, LrRule, Meaning, ScriptReport
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.resolved import Resolved, Unavailable
from ddplaunch.values.words import listed

#: What an option takes, by the word after its name; ``final`` and ``base`` are about the script, not the number.
_MEANINGS: dict[str, Meaning] = {
    "rank": "batch_size",
    "node": "node_batch_size",
    "total": "total_batch_size",
    "step": "global_batch_size",
    "steps": "warmup_steps",
}


def understood_as_said(
    script: ScriptReport | Unavailable, options: Options, target: Target
) -> ScriptReport | Unavailable:
    """Return the report with what `--batch-option` and similar flags say about the script's options.

    The named option is the only one left for its number. An option that is not in the report is accepted unless the
    report is complete. Raises UsageError for an option that the script does not declare, or that does not take exactly
    one value.
    """
    for family, said in named_options(options):
        report = ScriptReport(PurePath(target.name).name, complete=False) if isinstance(script, Unavailable) else script
        left = tuple(replace(each, meaning=None) if family_of(each) == family else each for each in report.options)
        named = None if said.value == "none" else _named(family, said, report)
        if named is not None:
            placed = dict.fromkeys(named if each.flags == named.flags else each for each in left)  # once
            left = tuple(placed) if named in placed else (*left, named)
        others = tuple(each for each in report.ambiguous if each[0] not in FAMILIES[family])
        script = replace(report, options=tuple(as_one_word(left, target.args)), ambiguous=others)
    return script


def _named(family: str, said: Resolved[str], report: ScriptReport) -> DeclaredOption:
    """Return the named option with its meaning. Raises UsageError."""
    name, word = named_option(said.value)
    option = next((each for each in report.options if _is_called(each, name)), None)
    if option is None and not report.complete:
        option = _unread(name, report)
    if option is None or not option.takes_value or not option.fillable:
        raise _unfit(family, name, said, report)
    read = next((meaning for meaning, flags in report.ambiguous if option.flags[0] in flags), option.meaning)
    known = read if read in FAMILIES[family] else None
    rule = option.rule
    if word in ("final", "base"):
        rule = LrRule(1.0, ((PLAN_FACTOR, 1.0),), option.at) if word == "base" else None
    meaning = _MEANINGS.get(word) or known or FAMILIES[family][0]
    return replace(option, meaning=meaning, because="" if word else option.because, rule=rule)


def _unread(name: str, report: ScriptReport) -> DeclaredOption:
    """Return an option that is not in the report: a key like those in it, a key with a dot in it, or a flag."""
    at = DeclaredAt(report.path, 0)
    keys = (each for each in report.options if each.spelling not in ("--k v", "--k=v"))
    key = next(keys, DeclaredOption((), at, spelling="k=v", comes_first=False) if "." in name else None)
    if key is None or name.startswith("-"):
        flags = (name if name.startswith("-") else f"--{name}",)
        return DeclaredOption(flags, at, dest=destination(flags))
    dest = name.rpartition(".")[2]
    return replace(key, flags=(name,), at=at, dest=dest, default=None, rule=None, because="")


def _is_called(option: DeclaredOption, name: str) -> bool:
    return any(name == flag or bare(name) == bare(flag) for flag in option.flags)


def _unfit(family: str, name: str, said: Resolved[str], report: ScriptReport) -> UsageError:
    names = [each.flags[0] for each in report.options if each.takes_value and each.fillable]
    return usage(
        f"`{OPTION_FLAGS[family]}={said.value}`: {report.path} declares no option `{name}` that can be filled in",
        why="it declares " + (listed([f"`{each}`" for each in names], 12) or "no option that does"),
        fix=f"{'name one of those, or ' if names else ''}put `{{{family}}}` after `--` where an option or key takes it",
        where=str(said.source),
        code="script-option-unknown",
    )
