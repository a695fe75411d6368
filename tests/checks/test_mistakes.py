"""What is told of a script's mistakes in a launch, and in which launches they are none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ddplaunch.checks.mistakes import CHECKS
from ddplaunch.planning.launch import Launch
from ddplaunch.script.script_report import DeclaredAt, Mistake
from ddplaunch.values.resolved import Resolved
from tests.checks.cases import found, silent_when_healthy
from tests.checks.healthy import FLAG, healthy_launch, healthy_script

HERE = DeclaredAt("train.py", 7)


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def told(code: str, detail: str = "", launch: Launch | None = None) -> str:
    """Return what is said of a mistake, empty for nothing."""
    mistake = Mistake(code, HERE, "the_line(corrected)", detail)
    finding = found(CHECKS, code, launch=launch, script=healthy_script(mistakes=(mistake,)))
    if finding is None:
        return ""
    assert finding.where == ("train.py:7",) and finding.severity.value == "warning"
    assert "the_line(corrected)" in finding.fix
    return finding.what


def one_rank() -> Launch:
    """Return a launch of one process that somebody asked for."""
    launch = healthy_launch(1)
    return replace(launch, options=replace(launch.options, nproc=Resolved(1, FLAG)))


WORDS = {
    "rendezvous-in-script": ("MASTER_PORT=12355", "the script meets at its own MASTER_PORT=12355"),
}


@pytest.mark.parametrize("code", WORDS)
def test_every_code_speaks_of_several_ranks_only(code: str) -> None:
    detail, words = WORDS[code]
    launch = healthy_launch()
    assert words in told(code, detail, launch)
    assert not told(code, detail, one_rank())


def test_a_port_that_the_launch_has_too_is_no_mistake() -> None:
    launch = healthy_launch()
    same = replace(launch, topology=replace(launch.topology, master_port=Resolved(23456, FLAG)))
    assert told("rendezvous-in-script", "tcp://127.0.0.1:23456", launch)
    assert not told("rendezvous-in-script", "tcp://127.0.0.1:23456", same)
    assert not told("rendezvous-in-script", "MASTER_PORT=23456", same)


def test_every_code_is_described_with_a_wrong_and_a_corrected_line() -> None:
    text = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z-]+)` \| .+ \| .+ \|$", text.partition("## Found elsewhere")[0], re.M)
    assert listed == [check.code for check in CHECKS]
