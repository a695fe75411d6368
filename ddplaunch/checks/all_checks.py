"""All checks in the order in which they are shown, and running and finding them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ddplaunch.checks import (
    connectivity,
    gpu_choice,
    gpu_state,
    host,
    nvidia_driver,
    script,
    slurm_job,
    storage,
    torch_install,
    variables,
)
from ddplaunch.checks.check import Check, Outcome, run_check
from ddplaunch.values.finding import usage

if TYPE_CHECKING:
    from ddplaunch.launch.hosts_plan import HostReport

ALL: tuple[Check, ...] = (
    *torch_install.CHECKS,
    *nvidia_driver.CHECKS,
    *gpu_choice.CHECKS,
    *gpu_state.CHECKS,
    *host.CHECKS,
    *connectivity.CHECKS,
    *slurm_job.CHECKS,
    *storage.CHECKS,
    *variables.CHECKS,
    *script.CHECKS,
)
_NEAR = 0.6


def run_all(values: dict[str, Any], ignore: Collection[str] = ()) -> tuple[Outcome, ...]:
    """Run every check on ``values`` (see ``available``); a check that ``ignore`` names is skipped."""
    return tuple(outcome(check, values, ignore) for check in ALL)


def run_across(reports: tuple[HostReport, ...], ignore: Collection[str] = ()) -> tuple[Outcome, ...]:
    """Run every check that compares hosts."""
    return tuple(outcome(check, {"hosts": reports}, ignore) for check in across())


def across() -> tuple[Check, ...]:
    """Return the checks that compare hosts; imported here, because most launches have only one host."""
    from ddplaunch.checks import across_hosts

    return across_hosts.CHECKS


def outcome(check: Check, values: dict[str, Any], ignore: Collection[str]) -> Outcome:
    """Run one check, or skip it because ``ignore`` names it."""
    if check.code in ignore:
        return Outcome(check, "skipped", reason=f"ignored by `--ignore {check.code}`")
    return run_check(check, values)


def families() -> tuple[str, ...]:
    """Return the families in the order in which they are shown."""
    return tuple(dict.fromkeys(check.family for check in ALL))


def by_code(code: str, measured: Sequence[Check] = ()) -> Check | None:
    """Return the check of that code; ``measured`` are the checks of the collective test, from ``comm``."""
    known = next((check for check in ALL if check.code == code), None)
    return known or next((check for check in (*across(), *measured) if check.code == code), None)


def near_miss(code: str, measured: Sequence[Check] = ()) -> str | None:
    """Return the code that is most like a misspelt one: ``shm_small`` gives ``shm-too-small``."""
    spelt = code.strip().lower().replace("_", "-")
    codes = [check.code for check in (*ALL, *across(), *measured)]
    near = difflib.get_close_matches(spelt, codes, n=1, cutoff=_NEAR)
    return near[0] if near else None


def refuse_unknown(codes: Collection[str], measured: Sequence[Check] = ()) -> None:
    """Raise UsageError for the first code of ``--ignore`` that no check has."""
    for code in codes:
        if by_code(code, measured) is None:
            near = near_miss(code, measured)
            raise usage(
                f"`--ignore {code}` names no check",
                why="a misspelt code would ignore nothing",
                fix=f"`--ignore {near}`" if near else "`ddplaunch doctor --list` shows every code",
                where="--ignore",
            )
