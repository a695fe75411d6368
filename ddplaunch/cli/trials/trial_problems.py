"""What is said of a trial: how far it is, and why it was not measured, as a finding."""

from __future__ import annotations

import re
import sys

from ddplaunch.cli.streams import tell
from ddplaunch.cli.trials.trial_runs import TrialResult
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.words import count, duration_text

_ERROR = re.compile(r"^error\[[a-z0-9-]+\]: (.*(?:\n {2}(?!-->|why:|fix:).*)*)", re.M)
_MARK = "`ddplaunch.step(samples=…)` in the script marks a step where no optimizer of torch makes one"


class TrialProgress:
    """Shows how far a trial is, on a terminal in one line that the next one replaces."""

    def __init__(self, name: object) -> None:
        """``name`` is what the trial differs by: ``2x4``, ``batch 16``."""
        self._name, self._shown = name, Terminal.of(sys.stderr).styled

    def __call__(self, steps: int, seconds: float) -> None:
        """Show the steps so far, and the time in seconds."""
        if self._shown:
            tell(f"\r{self._name}: {count(steps, 'step')}, {seconds:.0f} s \r")


def problem_of(result: TrialResult) -> Finding | None:
    """Return why nothing was measured; None where something was, unless no sample was counted in it."""
    order, seen = result.order, count(result.steps_seen, "step")
    where = f"trial {order.run_id}"
    if result.status == "measured":
        if result.samples_per_s == 0:
            return error(
                "trial-without-samples",
                "the measured steps had 0 samples",
                why="samples per second, and a speed-up by them, are of steps that train with samples",
                fix="look at the data and its sampler: each rank must get a batch that is not empty",
                where=where,
            )
        return None
    if result.status == "refused":
        match = _ERROR.search(result.said)
        what = " ".join(match[1].split()) if match else f"exit status {result.exit_status}"
        return error(
            "trial-refused",
            f"the launch is refused: {what}",
            why="a trial is a run with all its checks",
            fix=f"`ddplaunch plan {order.processes} … -- {order.script[0]}` shows every value, with who decided it",
            where=where,
        )
    if result.status == "failed":
        found = result.diagnosis
        return error(
            "trial-failed",
            f"it failed after {seen}: {found.what if found is not None else f'exit status {result.exit_status}'}",
            why=found.why if found is not None else "nothing in its output says why",
            fix=f"`ddplaunch explain {order.run_id}` has all of it",
            where=where,
        )
    if result.status == "ended":
        return error(
            "trial-ended-early",
            f"the script ended after {seen}, before it could be measured",
            why=f"{count(order.measuring.warmup_steps, 'step')} warm up, and ten alike are wanted after them",
            fix="let it train for longer, such as by more epochs, or `--warmup-steps 0`"
            if result.steps_seen
            else _MARK,
            where=where,
        )
    if result.status == "no-steps":
        return error(
            "trial-without-steps",
            f"no optimizer step in {duration_text(order.measuring.timeout_s)}",
            why="the ranks still load, or wait for each other; or their steps are made without an optimizer of torch",
            fix=f"`--timeout 30m` waits longer; `ddplaunch logs {order.run_id}` shows what they did; {_MARK}",
            where=where,
        )
    if result.status == "too-slow":
        return error(
            "trial-too-slow",
            f"{seen} in {duration_text(order.measuring.timeout_s)}, too few to measure",
            why="five steps behind the first one are wanted at least",
            fix="`--timeout 30m` waits longer",
            where=where,
        )
    return error(
        "trial-interrupted",
        f"interrupted after {seen}",
        why="Ctrl-C ended it before enough was measured",
        fix="`--resume` goes on with the sizes that are missing",
        where=where,
    )
