"""All checks in the order in which they are shown, and the functions that run and find them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ddplaunch.checks import (
    connectivity,
    gpu_choice,
    gpu_state,
    host,
    mistakes,
    script,
    slurm_job,
    storage,
    torch_and_driver,
    variables,
)
from ddplaunch.checks.check import Check, CheckOutcome, run_check
from ddplaunch.planning.settings import OBSERVED
from ddplaunch.values.finding import usage
from ddplaunch.values.words import nearest

if TYPE_CHECKING:
    from ddplaunch.planning.hosts_plan import HostReport

ALL: tuple[Check, ...] = (
    *torch_and_driver.CHECKS,
    *gpu_choice.CHECKS,
    *gpu_state.CHECKS,
    *host.CHECKS,
    *connectivity.CHECKS,
    *slurm_job.CHECKS,
    *storage.CHECKS,
    *variables.CHECKS,
    *script.CHECKS,
    *mistakes.CHECKS,
)


def run_all(values: dict[str, Any], ignore: Collection[str] = ()) -> tuple[CheckOutcome, ...]:
    """Run every check on ``values`` (see ``available``); those that ``ignore`` names are skipped."""
    return tuple(run_check(check, values, ignore) for check in ALL)


def run_across(reports: tuple[HostReport, ...], ignore: Collection[str] = ()) -> tuple[CheckOutcome, ...]:
    """Run every check that compares hosts."""
    return tuple(run_check(check, {"hosts": reports}, ignore) for check in across())


def across() -> tuple[Check, ...]:
    """Return the checks that compare hosts; imported late, because most launches have only one host."""
    from ddplaunch.checks import across_code, across_hosts

    return (*across_hosts.CHECKS, *across_code.CHECKS)


def refuse_unknown(codes: Collection[str], measured: Sequence[Check] = ()) -> None:
    """Raise UsageError for the first code of ``--ignore`` that belongs to no check and is not in ``OBSERVED``.

    ``measured`` are the checks of the collective test, from ``comm``.
    """
    for code in codes:
        known = [*(check.code for check in (*ALL, *across(), *measured)), *OBSERVED]
        if code not in known:
            near = nearest(code.strip().lower().replace("_", "-"), known)
            raise usage(
                f"`--ignore {code}`: there is no such check",
                why="no finding has this code",
                fix=f"`--ignore {near}`" if near else "`ddplaunch doctor --list` shows every code",
                where="--ignore",
            )
