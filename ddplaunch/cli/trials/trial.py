"""Trials: short runs of an unchanged script, measured from outside and then ended. `scale` and `fit` share them.

A trial is ``ddplaunch run … --phases`` as a user would type it, in a child of this process with its own record.
The command decides in a generator which trial comes next, and what all of them mean::

    def series():
        trial = yield Change("batch-16", 2, {**said, "batch_size": …})
        trial.problem, trial.measured.samples_per_s, trial.measured.peak_bytes

    trials = Trials("fit", launch, TypedLaunch({}, ["train.py"]), Measure(steps=20), in_place=False)
    interrupted = trials.run_all(series())

When ``run_all`` returns or raises, nothing is left running.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ddplaunch.cli.child_run import end_run, start_run, told_so_far
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.prepare import Prepared, errors, prepare
from ddplaunch.cli.streams import ending_by_signals, say, tell, tell_findings
from ddplaunch.cli.target import parse_target
from ddplaunch.cli.trials.measured_steps import WARMUP_STEPS, FollowedSteps, Measure, MeasuredSteps
from ddplaunch.cli.trials.trial_place import TrialPlace, make_place
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.machine.scratch_tree import NOT_STARTED
from ddplaunch.planning.flag import NodeRange
from ddplaunch.planning.inside.slurm import read_slurm
from ddplaunch.planning.options import Options, Said
from ddplaunch.planning.settings import OBSERVED
from ddplaunch.records.directory import new_run_id, not_yours
from ddplaunch.records.find import numbered, read_record
from ddplaunch.records.json_files import as_number, as_whole
from ddplaunch.records.outcome import read_findings
from ddplaunch.records.own.own_files import NotOursError
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, value_of
from ddplaunch.values.variable_names import TRIAL
from ddplaunch.values.words import count, duration_text, listed

#: "measured"; "ended": the script ended before enough was measured; "failed": it failed; "refused": its launch was
#: refused; "timed-out": too few steps in the given time; "interrupted": by Ctrl-C.
Ending = Literal["measured", "ended", "failed", "refused", "timed-out", "interrupted"]

#: Flags of a launch that a trial decides for itself, or that would prolong it.
_OWN = "nproc nnodes run_id run_dir phases prove timeout show verbose max_restarts"
_MARK = "`ddplaunch.step(samples=…)` in the script marks a step where no optimizer of torch makes one"
_LOOK_S = 0.2
_EMPTY = 16  # epochs without a batch after which the trial ends
_GRACE_S = 30.0


@dataclass(frozen=True)
class Change:
    """A trial to run: ``name`` ends its run id, ``ranks`` counts its processes, ``said`` are flags of its launch."""

    name: str
    ranks: int
    said: Said


@dataclass(frozen=True)
class Trial:
    """One trial that is over.

    ``findings`` are those of its launch, ``observed`` those about how its ranks train. ``problem`` explains why nothing
    was measured, None where something was.
    """

    change: Change
    record: Path
    ending: Ending
    measured: MeasuredSteps
    effective_batch: int | None = None
    lr: float | None = None
    diagnosis: Diagnosis | None = None
    findings: tuple[Finding, ...] = ()
    observed: tuple[Finding, ...] = ()
    took_s: float = 0.0
    problem: Finding | None = None

    @property
    def run_id(self) -> str:
        """The trial's run id."""
        return self.record.name

    @property
    def samples_per_s(self) -> float | None:
        """Samples of all ranks per second, as they counted them or by the effective batch; None without either."""
        ranks, batch = self.measured.ranks, self.effective_batch
        if self.measured.samples_per_s is not None or not ranks or batch is None:
            return self.measured.samples_per_s
        return batch * len(ranks) / sum(rank.mean_s for rank in ranks)


def measure_of(options: Options, steps: int | None, usual_s: float) -> Measure:
    """Return how long trials measure: that many ``steps``, else ``usual_s``."""
    return Measure(steps, None if steps else usual_s, value_of(options.timeout_s, 600.0))


def decided(options: Options, script: Sequence[str]) -> Prepared:
    """Return the launch, on this machine alone even in a Slurm allocation with several nodes, and print its findings.

    Raises RefusedError for errors among them, and UsageError.
    """
    one_node = Resolved(NodeRange(1, 1), Source("detected", "trials run on this machine"))
    prepared = prepare(replace(options, nnodes=one_node), parse_target(script))
    tell_findings(prepared.findings)
    if refusing := errors(prepared.findings):
        raise RefusedError(*refusing)
    return prepared


class Trials:
    """The trials of one command, which share a script and how long they measure."""

    def __init__(
        self,
        command: str,
        first: Prepared,
        typed: TypedLaunch,
        measure: Measure,
        *,
        in_place: bool,
    ) -> None:
        """``first`` is the launch in ``typed``, already decided; with ``in_place`` trials change the tree itself."""
        self.first, self.script, self.measure = first, typed.script or [], measure
        self._in_place = in_place
        self._changed = set[str]()  # paths below the working tree that trials wrote or removed
        self._typed = typed
        self._group = f"{value_of(first.launch.options.run_id, command)}-{new_run_id()}"

    def run_all(self, series: Generator[Change, Trial, None]) -> bool:
        """Run each trial that ``series`` yields, and send it the result; return whether Ctrl-C ended the last one.

        Raises RefusedError where a trial cannot be kept from changing the user's files.
        """
        trial: Trial | None = None
        with suppress(StopIteration):
            change = next(series)
            while trial is None or trial.ending != "interrupted":
                trial = self._run(change)
                change = series.send(trial)
        if self._changed:
            say(f"written by trials, and not kept: {listed(sorted(self._changed), 8)}")
        return trial is not None and trial.ending == "interrupted"

    def _run(self, change: Change) -> Trial:
        """Run a trial to its end and return it. Ctrl-C, SIGTERM and SIGHUP end the trial as "interrupted"."""
        base, run_id = self.first.base, f"{self._group}.{change.name}"
        began_s = time.monotonic()
        record, steps = base / "runs" / run_id, FollowedSteps(base / "runs" / run_id, change.ranks)
        place = self._place(run_id)
        grace = change.said.get("grace")
        child = start_run(self._words(change, run_id, place), place.told, inside=place.command())
        try:
            with ending_by_signals(signal.default_int_handler):  # `timeout` or a closed terminal act like Ctrl-C
                try:
                    ending = self._watch(child.poll, change, record, steps)
                finally:
                    end_run(child, record, _GRACE_S if grace is None else float(grace.value))
            if child.returncode == NOT_STARTED:
                raise _no_place((place.temporary / "problem").read_text())
            findings = told_so_far(place.told).findings
            self._changed.update(place.changes())
        finally:
            place.remove()
        steps.look()
        recorded = read_record(record)
        outcome = recorded.outcome
        seen = outcome.findings if outcome is not None else ()
        trial = Trial(
            change=change,
            record=record,
            ending=ending,
            measured=steps.measured(self.measure, failed=ending == "failed"),
            effective_batch=as_whole(recorded.value("plan", "numbers", "global_batch_size", "value")),
            lr=as_number(recorded.value("plan", "numbers", "lr", "value")),
            diagnosis=None if outcome is None else outcome.diagnosis,
            findings=findings,
            observed=tuple(one for one in seen or read_findings(record) if one.code in OBSERVED),
            took_s=round(time.monotonic() - began_s, 2),
        )
        return replace(trial, problem=self._problem(trial))

    def _place(self, run_id: str) -> TrialPlace:
        """Return where the trial runs. Raises RefusedError where it would change the user's files, or has no place."""
        slurm = read_slurm(os.environ)
        elsewhere = slurm is not None and slurm.step is None and not slurm.on_node
        if elsewhere and not self._in_place:
            raise _no_place("ranks run on other machines")
        try:
            return make_place(self.first.base, run_id, in_place=self._in_place)
        except NotOursError as problem:
            raise RefusedError(not_yours(problem, "`--run-dir` names a directory of yours")) from problem
        except OSError as problem:
            raise _no_place(f"{problem.filename}: {problem.strerror}") from problem

    def _words(self, change: Change, run_id: str, place: TrialPlace) -> list[str]:
        """Return the words after ``ddplaunch`` that start a trial."""
        words = ["run", f"1x{change.ranks}", "--run-id", run_id, "--phases"]  # a job may have more nodes
        for name, value in (*place.variables.items(), (TRIAL, f"{self._group}/{change.name}")):
            words += ["--env", f"{name}={value}"]  # before the user's own, which win
        words += replace(self._typed, said=change.said).words(_OWN.split())
        return [*words, "--run-dir", str(place.records), "--", *self.script]

    def _watch(self, poll: Callable[[], int | None], change: Change, record: Path, steps: FollowedSteps) -> Ending:
        """Wait until enough is measured or the run is over; return how it ended."""
        began_s, terminal = time.monotonic(), Terminal.of(sys.stderr)
        try:
            while (status := poll()) is None:
                time.sleep(_LOOK_S)
                steps.look()
                took_s = time.monotonic() - began_s
                if terminal.styled:
                    tell(f"\r{change.name}: {count(steps.made, 'step')}, {took_s:.0f} s \r")
                if steps.are_enough(self.measure):
                    return "measured"
                if took_s >= self.measure.timeout_s or steps.empty_epochs >= _EMPTY:
                    return "timed-out"
        except KeyboardInterrupt:
            return "interrupted"
        if status == 0:
            return "ended"
        refused = status in (ExitStatus.REFUSED, ExitStatus.USAGE) and not numbered(record, "node")
        return "refused" if refused else "failed"

    def _problem(self, trial: Trial) -> Finding | None:
        """Return why a trial measured nothing; None where it measured something."""
        if trial.measured.ranks and trial.measured.samples_per_s != 0:
            return None
        code, what, why, fix = self._reason(trial, count(trial.measured.steps, "step"))
        return error(code, what, why=why, fix=fix, where=f"trial {trial.run_id}")

    def _reason(self, trial: Trial, steps: str) -> tuple[str, str, str, str]:
        """Return code, what, why and fix for a trial that measured nothing; ``steps`` is its count, as text."""
        if trial.ending == "refused":
            return (
                "trial-refused",
                f"the launch is refused: {', '.join(finding.what for finding in errors(trial.findings))}",
                "a trial is a run with all its checks",
                f"`ddplaunch plan {trial.change.ranks} … -- {self.script[0]}` shows every value with its source",
            )
        if trial.ending == "failed":
            diagnosis = trial.diagnosis
            if diagnosis is not None and os.strerror(errno.EXDEV) in diagnosis.what:
                return (
                    "trial-failed",
                    f"it failed after {steps}: {diagnosis.what}",
                    "trials run in an overlay, in which only root can rename a folder that was there before",
                    "`shutil.move` in the script, which copies then; or `--in-place`, with an output folder of its own",
                )
            return (
                "trial-failed",
                f"it failed after {steps}" + ("" if diagnosis is None else f": {diagnosis.what}"),
                "nothing in its output says why" if diagnosis is None else diagnosis.why,
                f"`ddplaunch explain {trial.run_id}` has all of it",
            )
        if trial.measured.ranks or trial.measured.empty_epochs:
            return (
                "trial-without-samples",
                "the DataLoader gave no batch, or batches without samples",
                "where a rank has fewer samples than one batch, `drop_last=True` leaves nothing",
                "a smaller `--batch-size`, or more data",
            )
        if trial.ending == "ended":
            return (
                "trial-ended-early",
                f"the script ended after {steps}, too few to measure",
                f"{WARMUP_STEPS} steps warm up, and ten alike are wanted after them",
                "more epochs, or `--steps 5`" if trial.measured.steps else _MARK,
            )
        if trial.ending == "interrupted":
            return (
                "trial-interrupted",
                f"interrupted after {steps}",
                "Ctrl-C ended it before enough was measured",
                "the same command again",
            )
        return (
            "trial-without-steps",
            f"{steps} in {duration_text(trial.took_s)}, too few to measure",
            "the ranks still load, or wait for each other, or step without an optimizer of torch",
            f"`--timeout 30m` waits longer; `ddplaunch logs {trial.run_id}` shows what they did; {_MARK}",
        )


def _no_place(problem: str) -> RefusedError:
    """Return the error for trials that cannot be kept from changing the user's files."""
    return RefusedError(
        error(
            "trial-refused",
            f"trials cannot be kept from changing files here: {problem}",
            why="a script may overwrite and remove checkpoints; where the kernel has neither overlays nor Landlock for "
            "this user, and on other machines, nothing holds it back",
            fix="`--in-place` lets trials write as the script does; give it an output folder of its own then",
        )
    )
