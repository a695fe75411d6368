"""Launches over hosts until one has done or is not worth another: the launcher's part, since it stays anyway.

It refuses to look at a host; what each knows of its own end came with its record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.hosts.plan_hosts import HostsMissingError
from ddplaunch.cli.relaunching import ending_by_signals
from ddplaunch.cli.say import tell, tell_findings
from ddplaunch.launch.relaunch import Evidence, Policy, decide, evidence_from_json, lived_s, pause_s
from ddplaunch.records.find import read_object
from ddplaunch.records.launchers import still_holding
from ddplaunch.records.outcome import Verdict
from ddplaunch.ui.outcome_view import not_relaunched_text, relaunching_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, RefusedError
from ddplaunch.values.frozen import dataclass

_TIME_LIMIT = "time-limit"


@dataclass(frozen=True)
class Again:
    """The ``number``-th relaunch, 0 for the first launch; ``of`` is the run before."""

    number: int = 0
    of: str | None = None


@dataclass(frozen=True)
class Ended:
    """How a launch ended. ``evidence`` is what its nodes know where it failed, None where no other is to follow.

    ``pause_s`` is how long hosts that were lost may need to end what runs there, ``directory`` the run's record.
    """

    status: int
    run_id: str | None = None
    evidence: tuple[Evidence, ...] | None = None
    pause_s: float = 0.0
    directory: Path | None = None


def until_done(launch: Callable[[Again], Ended], policy: Policy | None) -> int:
    """Launch, and again as ``policy`` says; return the exit status of the last launch that was not refused.

    Raises RefusedError where the first one is. A relaunch for which hosts are missing counts, and the next one waits
    longer: they may be starting.
    """
    ended = launch(Again())
    number = 0
    while policy is not None and ended.evidence is not None:
        number += 1
        decision = decide(ended.evidence, policy, number)
        if not decision.again:
            tell(not_relaunched_text(decision, policy, Terminal.of(sys.stderr).width))
            break
        tell(relaunching_text(decision, policy, number, Terminal.of(sys.stderr).width, ended.pause_s))
        with still_holding(ended.directory), ending_by_signals():
            time.sleep(max(pause_s(policy, number), ended.pause_s))
        try:
            following = launch(Again(number, ended.run_id))
        except RefusedError as refused:
            tell_findings(refused.findings)
            tell("nothing was launched\n")
            if isinstance(refused, HostsMissingError):
                ended = replace(ended, pause_s=0.0)
                continue
            break
        if following.run_id is None and following.status == ExitStatus.REFUSED:
            break
        ended = following
    return ended.status


def evidence_of(
    directory: Path, verdict: Verdict, outcomes: Mapping[int, Mapping[str, Any]], interrupted: int | None
) -> tuple[Evidence, ...] | None:
    """Return what the nodes of a run that failed know; None where it did not, or where a user or `--timeout` ended it.

    ``outcomes`` are those of this run, by node; a host that was lost has none.
    """
    diagnosis = verdict.explanation.diagnosis
    limited = diagnosis is not None and diagnosis.code == _TIME_LIMIT
    if interrupted is not None or limited or verdict.state not in ("failed", "killed"):
        return None
    return tuple(_told(directory, node, outcome) for node, outcome in outcomes.items())


def _told(directory: Path, node: int, outcome: Mapping[str, Any]) -> Evidence:
    try:
        noted = evidence_from_json(read_object(directory / f"node-{node}" / "relaunch.json"))
    except (OSError, ValueError):
        noted = Evidence()
    return Evidence(lived_s(outcome), noted.advanced, noted.unseen)
