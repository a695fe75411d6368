"""Over ssh with `--nnodes MIN:MAX`: with which hosts a launch begins, and of which size it is then."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddplaunch.cli.hosts.plan_hosts import left_out
from ddplaunch.hosts.session.collect import Gathered
from ddplaunch.planning.hosts_plan import HostReport, sized
from ddplaunch.planning.options import Options, parse_options
from ddplaunch.values.finding import RefusedError, Severity, error
from ddplaunch.values.resolved import DEFAULT, Resolved
from tests.checks.healthy import healthy_facts

MISSING = error("host-unreachable", "gpu-b does not answer", why="w", fix="f", where="gpu-b")


def test_hosts_that_answer_are_enough_or_not() -> None:
    reports = tuple(HostReport(name, healthy_facts(), "0.1") for name in ("gpu-a", "gpu-c"))
    some = Gathered(reports, (), (MISSING,))
    (warning,) = left_out(some, 2)
    assert (warning.code, warning.severity) == ("host-left-out", Severity.WARNING)
    assert warning.what == "gpu-b is left out of 3 hosts: gpu-b does not answer"
    with pytest.raises(RefusedError, match="gpu-b does not answer"):
        left_out(some, 3)
    assert left_out(Gathered(reports, (), ()), 3) == ()


def test_sizes_are_those_of_the_hosts_that_answered() -> None:
    def said(**values: str) -> Options:
        options: dict[str, Any] = {name: Resolved(value, DEFAULT) for name, value in values.items()}
        return parse_options(options)

    for options in (said(nproc="4", nnodes="2:3"), said(nproc="3x4", nnodes="2:3"), said(nproc="3x4")):
        found = sized(replace(options, nnodes=None), ("gpu-a", "gpu-c"), (None, None))
        assert found.nnodes is not None and found.nproc is not None
        assert (found.nnodes.value, found.nproc.value) == ((2, 2), 4)
    found = sized(said(), ("gpu-a", "gpu-c"), (8, 8))
    assert found.nproc is not None and found.nproc.value == 8
