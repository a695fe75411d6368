"""How checks are declared and run, and what holds for all of them together."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.checks import all_checks
from ddplaunch.checks.all_checks import ALL, across, refuse_unknown, run_all
from ddplaunch.checks.check import PARAMETERS, available, checks_in, declare, run_check
from ddplaunch.checks.codes import REFUSALS
from ddplaunch.comm.checks import CHECKS as MEASURED
from ddplaunch.machine.facts import CpuFacts, Facts, TorchFacts
from ddplaunch.planning.launch import Launch
from ddplaunch.values.finding import ExitStatus, Finding, UsageError, error
from ddplaunch.values.resolved import Resolved, Unavailable
from ddplaunch.watch import stragglers
from tests.checks.cases import NO_LAUNCH, NO_SCRIPT, Case
from tests.checks.healthy import FLAG, healthy_facts, healthy_launch, healthy_script

ON_CPU = healthy_launch(device=Resolved("cpu", FLAG))


def too_few_cpus(cpu: CpuFacts, launch: Launch | None = None) -> Iterator[Finding]:
    """There are not enough CPUs.

    Each rank needs at least one.
    """
    wanted = 1 if launch is None else launch.topology.nproc_per_node.value
    if cpu.usable < wanted:
        yield error("too-few-cpus", f"{cpu.usable} CPUs", why="ranks share them", fix="use a larger machine")


def needs_torch(torch: TorchFacts) -> Iterator[Finding]:
    """It is never asked where there is no torch."""
    yield from ()


def no_torch(torch: TorchFacts | Unavailable) -> Iterator[Finding]:
    """torch is not there."""
    if isinstance(torch, Unavailable):
        yield error("no-torch", torch.reason, why="it is needed", fix="install it")


def broken(cpu: CpuFacts) -> Iterator[Finding]:
    """This check divides by zero."""
    yield error("broken", str(cpu.usable / 0), why="", fix="")


def test_parameter_that_is_no_fact_is_refused_at_once() -> None:
    def typo(cpus: CpuFacts) -> Iterator[Finding]:
        """Never runs."""
        yield from ()

    with pytest.raises(TypeError, match="typo names what it cannot get: cpus"):
        declare("host", typo)


FEW = healthy_facts(cpu=CpuFacts(logical=2, affinity=2, quota_cpus=None, usable=2))
NO_CPU, NO_TORCH = healthy_facts(cpu=Unavailable("no /proc")), healthy_facts(torch=Unavailable("not installed"))


@pytest.mark.parametrize(
    ("function", "facts", "launch", "status", "says"),
    [
        (too_few_cpus, FEW, healthy_launch(8), "found", ["2 CPUs"]),
        (too_few_cpus, healthy_facts(), healthy_launch(8), "passed", []),
        (too_few_cpus, NO_CPU, NO_LAUNCH, "skipped", "no /proc"),
        (too_few_cpus, FEW, NO_LAUNCH, "passed", []),  # what is only wanted falls back to the default
        (needs_torch, NO_TORCH, NO_LAUNCH, "skipped", "not installed"),
        (no_torch, NO_TORCH, NO_LAUNCH, "found", ["not installed"]),  # accepted as unavailable
        (broken, healthy_facts(), NO_LAUNCH, "crashed", "ZeroDivisionError: division by zero"),
    ],
)
def test_outcomes(function: Any, facts: Facts, launch: Any, status: str, says: str | list[str]) -> None:
    outcome = run_check(declare("host", function), available(facts, launch, NO_SCRIPT))
    assert outcome.status == status
    assert says == (outcome.reason or [finding.what for finding in outcome.findings])


def test_checks_of_a_module_are_its_public_generators() -> None:
    checks = checks_in(globals(), "host", torch=(no_torch, needs_torch))
    families = {check.code: check.family for check in checks}
    assert families == {"too-few-cpus": "host", "needs-torch": "torch", "no-torch": "torch", "broken": "host"}


@pytest.mark.parametrize("launch", [healthy_launch(), healthy_launch(1), ON_CPU, NO_LAUNCH], ids=["8", "1", "cpu", "-"])
def test_healthy_machine_has_nothing(launch: Launch | Unavailable) -> None:
    script = NO_SCRIPT if isinstance(launch, Unavailable) else healthy_script()
    outcomes = run_all(available(healthy_facts(), launch, script))
    assert [(item.check.code, item.reason, item.findings) for item in outcomes if item.status == "crashed"] == []
    assert [finding.what for item in outcomes for finding in item.findings] == []
    skipped = {item.reason for item in outcomes if item.status == "skipped"}
    unasked = {"no port was named", "no master address was named"}
    assert skipped <= unasked or launch is NO_LAUNCH, "most can look at the healthy machine"


GONE = {field.name: Unavailable("gone") for field in dataclasses.fields(Facts) if field.default is dataclasses.MISSING}


@pytest.mark.parametrize("names", [*([name] for name in sorted(PARAMETERS)), GONE], ids=str)
def test_no_check_crashes_where_facts_are_missing(names: Iterable[str]) -> None:
    values = available(healthy_facts(), healthy_launch(), healthy_script())
    kept = {"environment", "data_paths", "output_paths"}
    outcomes = run_all({**values, **{name: Unavailable("gone") for name in names if name not in kept}})
    assert [(item.check.code, item.reason) for item in outcomes if item.status == "crashed"] == []


def test_every_check_function_is_listed() -> None:
    folder = Path(all_checks.__file__).parent
    declared = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))
    functions = set(
        re.findall(r'^def ([a-z]\w*)\([^"]*?\) -> (?:Findings|Iterator\[Finding\]):$', declared, re.MULTILINE)
    )
    assert len(functions) > 20
    assert functions - {check.function.__name__ for check in (*ALL, *across(), *MEASURED, *stragglers.CHECKS)} == set()


def test_every_check_has_a_case_that_fires_and_one_that_does_not() -> None:
    modules = [import_module(f"{__package__}.{path.stem}") for path in Path(__file__).parent.glob("test_*.py")]
    tables = [table for module in modules for table in vars(module).values() if isinstance(table, tuple)]
    cases = [case for table in tables for case in table if isinstance(case, Case)]
    codes = {check.code for check in ALL}
    assert {case.code for case in cases if case.says} == codes == {case.code for case in cases if not case.says}


def test_codes_are_unique_and_families_keep_together() -> None:
    codes = [check.code for check in (*ALL, *across(), *MEASURED)]
    with_refusals = [*codes, *(refusal.code for refusal in REFUSALS)]
    assert sorted(set(with_refusals)) == sorted(with_refusals)
    assert [code for code in codes if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", code)] == []
    families = [check.family for check in ALL]
    assert families == sorted(families, key=list(dict.fromkeys(families)).index) and families[0] == "torch"


def test_ignored_check_is_a_skip_that_says_so() -> None:
    outcomes = run_all(available(healthy_facts(), healthy_launch(16), healthy_script()), ["more-processes-than-gpus"])
    (outcome,) = [item for item in outcomes if item.check.code == "more-processes-than-gpus"]
    assert (outcome.status, outcome.reason) == ("skipped", "ignored by `--ignore more-processes-than-gpus`")
    assert len(outcomes) == len(ALL)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("gpu_busy", "`--ignore gpu-busy`"),
        ("torch-mising", "`--ignore torch-missing`"),
        ("zzz", "`ddplaunch doctor --list` shows every code"),
    ],
)
def test_unknown_ignore_is_refused_with_the_near_miss(code: str, fix: str) -> None:
    refuse_unknown(["gpu-busy", "torch-missing", "numbers-differ", "data-not-divided"])
    refuse_unknown(["comm-cut-off"], MEASURED)
    with pytest.raises(UsageError) as caught:
        refuse_unknown(["gpu-busy", code])
    assert caught.value.status is ExitStatus.USAGE and caught.value.findings[0].fix == fix
