"""Checks of variables whose name is misspelt, outdated or read by nobody; refuses to look at their values."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.known_variables import GENERAL_PREFIXES, INEFFECTIVE, KNOWN, PREFIXES, RENAMED
from ddplaunch.checks.user_variables import user_variables
from ddplaunch.finding import Finding, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import TorchFacts
from ddplaunch.script.report import ScriptReport

# Close enough for one wrong, missing or swapped letter in a name of average length; other programs' names are not.
LIKENESS = 0.87
_OLD = {renamed.old for renamed in RENAMED}


def near_miss(name: str) -> str | None:
    """Return the known variable that ``name`` was probably meant to be, or None if it is known or like none."""
    if name in KNOWN or name in _OLD or name in INEFFECTIVE or not name.startswith((*PREFIXES, *GENERAL_PREFIXES)):
        return None
    close = get_close_matches(name, sorted(KNOWN), n=1, cutoff=LIKENESS)
    return close[0] if close else None


def misspelt_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is spelled almost, but not quite, like one that NCCL, gloo or torch reads.

    Unknown variables are ignored without a word, so the setting has no effect. The known names come from NCCL's
    documentation and releases and from torch's sources. A name that the script itself reads is left alone.
    Remedy: the name that the finding proposes.
    """
    for setting in user_variables(environment, launch):
        meant = near_miss(setting.name)
        if meant and not _read_by(script, setting.name):
            yield warning(
                "misspelt-variable",
                f"{setting.name} is set; did you mean {meant}?",
                why="NCCL, gloo and torch ignore variables that they do not know, so it has no effect",
                fix=f"{setting.removal} and set `{meant}={setting.value}`",
                where=setting.where,
            )


def renamed_variable(
    environment: dict[str, str], torch: TorchFacts, launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is set by its old name, and the installed torch has a new one for it.

    The old name is a fallback that torch reads with a deprecation warning from every rank, until a release drops it.
    Setting both names is fine and keeps a launch working with older releases. Remedy: set the new name.
    """
    settings = {setting.name: setting for setting in user_variables(environment, launch)}
    for renamed in RENAMED:
        setting = settings.get(renamed.old)
        if setting is None or renamed.new in settings or _read_by(script, renamed.old):
            continue
        if _release(torch.version) >= renamed.since:
            yield warning(
                "renamed-variable",
                f"{renamed.old} is set, which torch {torch.version} calls {renamed.new}",
                why="the old name is deprecated and goes unread as soon as a release drops it",
                fix=f"{setting.removal} and set `{renamed.new}={setting.value}`",
                where=setting.where,
            )


def ineffective_variable(
    environment: dict[str, str], launch: Launch | None = None, script: ScriptReport | None = None
) -> Iterator[Finding]:
    """A variable is set that neither NCCL nor torch reads.

    NCCL_TIMEOUT stands in many guides, yet the timeout of collectives is an argument of `init_process_group`. Others
    were removed from NCCL years ago. A name that the script itself reads is left alone.
    Remedy: what the finding names for the variable.
    """
    for setting in user_variables(environment, launch):
        if setting.name in INEFFECTIVE and not _read_by(script, setting.name):
            why, instead = INEFFECTIVE[setting.name]
            yield warning(
                "ineffective-variable",
                f"{setting.typed} has no effect",
                why=why,
                fix=f"{setting.removal}; {instead}",
                where=setting.where,
            )


def _read_by(script: ScriptReport | None, name: str) -> bool:
    return script is not None and name in script.reads_env


def _release(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version such as ``2.9.0a0+git1234``; (0, 0) where it is not to be read."""
    parts = version.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        return (0, 0)
    return int(parts[0]), int(parts[1])


CHECKS: tuple[Check, ...] = tuple(
    declare("environment", check) for check in (misspelt_variable, renamed_variable, ineffective_variable)
)
