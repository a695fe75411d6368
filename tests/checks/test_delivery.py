"""Whether the numbers of a launch arrive in the script."""

from __future__ import annotations

from typing import Any

import pytest

from ddplaunch.checks.script import CHECKS
from ddplaunch.launch.launch import Launch, Passed
from ddplaunch.launch.options import Options
from ddplaunch.scaling.numbers import Numbers
from ddplaunch.script.report import DeclaredAt, DeclaredOption, Import, ScriptReport
from ddplaunch.values.finding import Severity
from ddplaunch.values.resolved import Resolved, Source
from tests.checks.healthy import healthy_launch, healthy_script
from tests.checks.outcome_of import found, silent_when_healthy

CODE = "number-not-received"
HERE = DeclaredAt("train.py", 9)
DEAF = healthy_script(options=())


def launch(option: str, number: str, value: float, **replace: Any) -> Launch:
    said = Resolved(value, Source("flag", "--" + option.replace("_", "-")))
    options: dict[str, Any] = {option: said}
    numbers: dict[str, Any] = {number: said}
    world = Resolved(8, Source("flag"))
    return healthy_launch(8, options=Options(**options), numbers=Numbers(world_size=world, **numbers), **replace)


BATCH = launch("batch_size", "batch_size", 8)


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


@pytest.mark.parametrize(
    ("option", "number", "value", "unseen"),
    [
        ("batch_size", "batch_size", 8, "`--batch-size 8`"),
        ("global_batch_size", "batch_size", 8, "the batch size 8 from `--global-batch-size 8`"),
        ("accum", "accum", 4, "`--accum 4`"),
        ("lr", "lr", 0.1, "`--lr 0.1`"),
        ("base_lr", "lr", 0.8, "the learning rate 0.8 from `--base-lr 0.8`"),
        ("base_warmup", "warmup_steps", 500, "the warmup of 500 steps from `--base-warmup 500`"),
    ],
)
def test_a_number_for_a_script_that_listens_nowhere(option: str, number: str, value: float, unseen: str) -> None:
    finding = found(CHECKS, "number-not-received", launch=launch(option, number, value), script=DEAF)
    assert finding and finding.severity is Severity.WARNING
    assert finding.what == f"train.py will not see {unseen}: it has no such option"
    assert f"{{{number}}}" in finding.fix and f"ddplaunch.current().{number}" in finding.fix


@pytest.mark.parametrize(
    "script",
    [
        healthy_script(),
        healthy_script(options=(DeclaredOption(("--total-batch",), HERE, meaning="global_batch_size"),)),
        healthy_script(options=(), complete=False),
        healthy_script(options=(), syntax_error="line 3: invalid syntax"),
        healthy_script(options=(), reads_env=("DDPLAUNCH_BATCH_SIZE",)),
        healthy_script(options=(), imports=(Import("ddplaunch", HERE),)),
    ],
    ids=["declared", "global batch", "incomplete", "broken", "environment", "current()"],
)
def test_a_script_that_may_listen(script: ScriptReport) -> None:
    assert found(CHECKS, CODE, launch=BATCH, script=script) is None


def test_a_placeholder_delivers() -> None:
    passed = (Passed("batch_size", "8", (), None),)
    assert found(CHECKS, CODE, launch=launch("batch_size", "batch_size", 8, passed=passed), script=DEAF) is None


def test_an_accumulation_of_one_changes_nothing() -> None:
    assert found(CHECKS, CODE, launch=launch("accum", "accum", 1), script=DEAF) is None
