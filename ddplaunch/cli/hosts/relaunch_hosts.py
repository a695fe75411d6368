"""Launches over several hosts one after the other, until one has succeeded or is not worth another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ddplaunch.cli.hosts.hosts_verdict import HostsVerdict
from ddplaunch.cli.hosts.plan_hosts import HostsMissingError
from ddplaunch.cli.relaunching import ending_by_signals
from ddplaunch.cli.streams import tell, tell_findings
from ddplaunch.launch.relaunch import RelaunchPolicy, RunProgress, decide, pause_s
from ddplaunch.records.first_failure import TIME_LIMIT
from ddplaunch.records.launchers import still_holding
from ddplaunch.records.outcome import RunOutcome
from ddplaunch.ui.outcome_view import not_relaunched_text, relaunching_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values import codec
from ddplaunch.values.finding import ExitStatus, RefusedError
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class Again:
    """The ``number``-th relaunch, 0 for the first launch; ``of`` is the run before."""

    number: int = 0
    of: str | None = None


@dataclass(frozen=True)
class LaunchEnd:
    """How a launch ended. ``progress`` is what its nodes know where it failed, None where no other is to follow.

    ``pause_s`` is how long hosts that were lost may need to end what runs there, ``directory`` the run's record.
    """

    status: int
    run_id: str | None = None
    progress: tuple[RunProgress, ...] | None = None
    pause_s: float = 0.0
    directory: Path | None = None


def until_done(launch: Callable[[Again], LaunchEnd], policy: RelaunchPolicy | None) -> int:
    """Launch, and again as ``policy`` says; return the exit status of the last launch that was not refused.

    Raises RefusedError where the first one is. A relaunch for which hosts are missing counts, and the next one waits
    longer: they may be starting.
    """
    ended = launch(Again())
    number = 0
    while policy is not None and ended.progress is not None:
        number += 1
        decision = decide(ended.progress, policy, number)
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


def progress_of(
    directory: Path, verdict: HostsVerdict, outcomes: Mapping[int, RunOutcome], interrupted: int | None
) -> tuple[RunProgress, ...] | None:
    """Return what the nodes of a run that failed know; None where it did not, or where a user or `--timeout` ended it.

    ``outcomes`` are those of this run, by node; a host that was lost has none.
    """
    diagnosis = verdict.explanation.diagnosis
    limited = diagnosis is not None and diagnosis.code == TIME_LIMIT
    if interrupted is not None or limited or verdict.state not in ("failed", "killed"):
        return None
    return tuple(_told(directory, node, outcome) for node, outcome in outcomes.items())


def _told(directory: Path, node: int, outcome: RunOutcome) -> RunProgress:
    try:
        noted = codec.from_json((directory / f"node-{node}" / "relaunch.json").read_text("utf-8"), RunProgress)
    except (OSError, ValueError):
        noted = RunProgress()
    return replace(noted, lived_s=outcome.lived_s)
