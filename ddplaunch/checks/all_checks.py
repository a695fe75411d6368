"""Every check, listed by hand in the order in which it is shown; refuses to find checks by itself."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ddplaunch.checks import (
    delivery,
    environment,
    gpu_count,
    gpu_health,
    gpu_use,
    host,
    network,
    numbers,
    nvidia_driver,
    python_env,
    script,
    slurm,
    storage,
    torch_install,
)
from ddplaunch.checks.check import Check, Outcome, run_check
from ddplaunch.errors import usage

if TYPE_CHECKING:
    from ddplaunch.checks.comm_groups import Comm
    from ddplaunch.launch.hosts_plan import HostReport

ALL: tuple[Check, ...] = (
    *torch_install.CHECKS,
    *nvidia_driver.CHECKS,
    *gpu_count.CHECKS,
    *gpu_use.CHECKS,
    *gpu_health.CHECKS,
    *python_env.CHECKS,
    *host.CHECKS,
    *network.CHECKS,
    *slurm.CHECKS,
    *storage.CHECKS,
    *environment.CHECKS,
    *script.CHECKS,
    *numbers.CHECKS,
    *delivery.CHECKS,
)
_NEAR = 0.6


def run_all(values: dict[str, Any], ignore: Collection[str] = ()) -> tuple[Outcome, ...]:
    """Run every check on ``values`` (see ``available``); an ignored one is not run and becomes a skip that says so."""
    return tuple(_outcome(check, values, ignore) for check in ALL)


def run_across(reports: tuple[HostReport, ...], ignore: Collection[str] = ()) -> tuple[Outcome, ...]:
    """Run every check that compares hosts."""
    return tuple(_outcome(check, {"hosts": reports}, ignore) for check in across())


def across() -> tuple[Check, ...]:
    """Return the checks that compare hosts; a launch on one has nothing to compare, and does not load them."""
    from ddplaunch.checks import hosts

    return hosts.CHECKS


def run_measured(comm: Comm, ignore: Collection[str] = ()) -> tuple[Outcome, ...]:
    """Run every check of what `doctor --comm` measured."""
    return tuple(_outcome(check, {"comm": comm}, ignore) for check in measured())


def measured() -> tuple[Check, ...]:
    """Return the checks of the collective test."""
    from ddplaunch.checks import comm

    return comm.CHECKS


def _outcome(check: Check, values: dict[str, Any], ignore: Collection[str]) -> Outcome:
    if check.code in ignore:
        return Outcome(check, "skipped", reason=f"ignored by `--ignore {check.code}`")
    return run_check(check, values)


def families() -> tuple[str, ...]:
    """Return the families in the order in which they are shown."""
    return tuple(dict.fromkeys(check.family for check in ALL))


def by_code(code: str) -> Check | None:
    """Return the check of that code."""
    known = next((check for check in ALL if check.code == code), None)
    return known or next((check for check in (*across(), *measured()) if check.code == code), None)


def near_miss(code: str) -> str | None:
    """Return the code that was probably meant, however it was spelt: ``shm_small`` is ``shm-too-small``."""
    spelt = code.strip().lower().replace("_", "-")
    codes = [check.code for check in (*ALL, *across(), *measured())]
    near = difflib.get_close_matches(spelt, codes, n=1, cutoff=_NEAR)
    return near[0] if near else None


def refuse_unknown(codes: Collection[str]) -> None:
    """Raise UsageError for the first code of ``--ignore`` that no check has: ignoring nothing would go unnoticed."""
    for code in codes:
        if by_code(code) is None:
            near = near_miss(code)
            raise usage(
                f"`--ignore {code}` names no check",
                why="a misspelt code would ignore nothing",
                fix=f"`--ignore {near}`" if near else "`ddplaunch doctor --list` shows every code",
                where="--ignore",
            )
