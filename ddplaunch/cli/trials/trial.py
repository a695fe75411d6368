"""Trials: short runs of an unchanged script that are measured from outside and ended. `scale` and `fit` share them.

A trial is ``ddplaunch run … --phases`` as a user would type it, a child of this process with a record of its own::

    trials = Trials("fit", options, ["train.py"], None, Measure(steps=20), keep=False)
    first = trials.allowed(options)
    trial = trials.run(Change("batch-16", "2", 2, {**said, "batch_size": …}), first)
    trial.problem, trial.measured.samples_per_s, trial.measured.peak_bytes

Which trial comes next, and what all of them say, is decided by the command. Nothing is left running when ``run``
returns or raises.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ddplaunch.cli.parsing.typed_words import launch_words, spelled
from ddplaunch.cli.prepare import Prepared, errors, prepare
from ddplaunch.cli.streams import asked, read_told, say, tell, tell_findings
from ddplaunch.cli.target import parse_target
from ddplaunch.cli.trials.measured_steps import FollowedSteps, Measure, MeasuredSteps
from ddplaunch.cli.trials.trial_place import TrialPlace, files_here, prepare_place
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.hosts.local.stop_run import stop_run
from ddplaunch.hosts.slurm.programs import end_step
from ddplaunch.planning.options import Options, Said
from ddplaunch.planning.settings import OBSERVED
from ddplaunch.records.directory import new_run_id, not_yours, path_text
from ddplaunch.records.find import numbered, run_directories
from ddplaunch.records.json_files import read_object
from ddplaunch.records.outcome import RunOutcome, read_findings, read_outcome
from ddplaunch.records.own.own_files import NotOursError
from ddplaunch.records.run_states import live_run
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, UsageError, error, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import value_of
from ddplaunch.values.secrets import hide_words
from ddplaunch.values.variable_names import TRIAL, own_command
from ddplaunch.values.words import count, duration_text

#: "measured"; "ended": the script came to its end before enough was measured; "failed": it failed; "refused": its
#: launch was refused; "timed-out": too few steps in the time that there is; "interrupted": by Ctrl-C.
Ending = Literal["measured", "ended", "failed", "refused", "timed-out", "interrupted"]

#: Flags of a launch that a trial decides for itself, or that would have it go on.
_OWN = ("nproc", "nnodes", "run_id", "phases", "timeout", "show", "verbose", "max_restarts")
_MARK = "`ddplaunch.step(samples=…)` in the script marks a step where no optimizer of torch makes one"
_LOOK_S = 0.2
_UNSEEN_S = 60.0  # for ranks of other machines to start and settle that nobody sees
_EMPTY = 16  # epochs without a batch after which none is waited for
_GRACE_S = 30.0
_LONGER_S = 15.0  # torchrun kills ranks after the grace itself


@dataclass(frozen=True)
class Change:
    """What a trial is: ``name`` ends its run id, ``nproc`` is NPROC as it is typed, ``ranks`` counts all processes.

    ``said`` are the flags of its launch, ``words`` further ones of ``run``. ``elsewhere`` says that ranks run on other
    machines, whose records may be here only after the end.
    """

    name: str
    nproc: str
    ranks: int
    said: Said
    words: tuple[str, ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True)
class Trial:
    """One trial that is over.

    ``findings`` are what its launch said, ``observed`` what was found of how its ranks train. ``changed_files`` were
    written in the working directory meanwhile. ``unwatched`` says that time alone ended it. ``problem`` is why nothing
    was measured, None where something was.
    """

    change: Change
    record: Path
    ending: Ending
    measured: MeasuredSteps
    diagnosis: Diagnosis | None = None
    findings: tuple[Finding, ...] = ()
    observed: tuple[Finding, ...] = ()
    changed_files: tuple[str, ...] = ()
    unwatched: bool = False
    took_s: float = 0.0
    problem: Finding | None = None

    @property
    def run_id(self) -> str:
        """Its name."""
        return self.record.name


def measure_of(
    options: Options, warmup_steps: int | None, steps: int | None, seconds: float | None, usual_s: float
) -> Measure:
    """Return how long trials are measured: ``usual_s`` where nobody says. Raises UsageError where that is nothing."""
    for flag, value, smallest, example in (
        ("--steps", steps, 1, "50"),
        ("--warmup-steps", warmup_steps, 0, "5"),
        ("--seconds", seconds, 1e-3, "10"),
    ):
        if value is not None and value < smallest:
            raise too_small(flag, value, example)
    limit_s = usual_s if seconds is None and steps is None else seconds
    timeout_s = value_of(options.timeout_s, 600.0)
    return Measure(5 if warmup_steps is None else warmup_steps, steps, limit_s, timeout_s)


def too_small(flag: str, value: float, example: str) -> UsageError:
    """Return the error for a number with which trials measure nothing."""
    return usage(
        f"`{flag} {value:g}` is too small",
        why="nothing could be measured",
        fix=f"`{flag} {example}`, or leave it out",
        where=f"flag: {flag}",
    )


class Trials:
    """The trials of one command: a script, and the options of its launch that every trial has."""

    def __init__(
        self,
        command: str,
        options: Options,
        script: Sequence[str],
        profile: str | None,
        measure: Measure,
        *,
        keep: bool,
    ) -> None:
        """``measure`` is how long each is measured; with ``keep`` their folders stay."""
        self.options, self.script, self.measure, self._keep = options, tuple(script), measure, keep
        self.words = () if profile is None else tuple(spelled("--profile", profile))
        self.target = parse_target(script)
        self._group = f"{value_of(options.run_id, command)}-{new_run_id()}"

    def allowed(self, options: Options) -> Prepared:
        """Return a launch whose findings were told. Raises RefusedError for errors among them, and UsageError."""
        prepared = prepare(options, self.target)
        tell_findings(prepared.findings)
        if refusing := errors(prepared.findings):
            raise RefusedError(*refusing)
        return prepared

    def run(self, change: Change, first: Prepared) -> Trial:
        """Run a trial to its end; ``first`` is a launch of the script that was decided before.

        Ctrl-C, SIGTERM and SIGHUP end the trial, which says so. Raises RefusedError where it has no place to write.
        """
        place, words = self._command(change, first)
        before, began_s = files_here(first.base), time.monotonic()
        _make(place)
        grace = change.said.get("grace")
        running = _Running(words, change, self.measure, first.base / "runs" / place.folder.name, place.told)
        try:
            with _ending_as_by_ctrl_c():
                ending = running.watch(_GRACE_S if grace is None else float(grace.value))
            findings = read_told(place.told).findings if place.told.exists() else ()
        finally:
            if not self._keep:
                place.remove()
        if self._keep:
            say(f"{change.name}: kept in `{path_text(place.folder)}`")
        changed = {path for path, status in files_here(first.base).items() if before.get(path) != status}
        outcome = read_outcome(running.record)
        trial = Trial(
            change=change,
            record=running.record,
            ending=ending,
            measured=running.steps.measured(self.measure, failed=ending == "failed"),
            diagnosis=outcome.diagnosis if isinstance(outcome, RunOutcome) else None,
            findings=findings,
            observed=_observed(running.record),
            changed_files=tuple(sorted(changed)) if before else (),
            unwatched=running.unwatched,
            took_s=round(time.monotonic() - began_s, 2),
        )
        return replace(trial, problem=self._problem(trial))

    def earlier(self, change: Change, first: Prepared) -> Trial | None:
        """Return the newest trial that the same command has measured, None where there is none."""
        _, words = self._command(change, first)
        typed = hide_words(words[words.index("run") :])
        for record in run_directories(first.base):
            if not record.name.endswith(f".{change.name}"):
                continue
            with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                argv = [str(word) for word in read_object(record / "run.json")["argv"]]
                group = record.name.removesuffix(f".{change.name}")
                if [word.replace(group, self._group) for word in argv[argv.index("run") :]] != typed:
                    continue
                steps = FollowedSteps(record, change.ranks)
                steps.look()
                if steps.are_enough(self.measure):
                    observed = _observed(record)
                    return Trial(change, record, "measured", steps.measured(self.measure), observed=observed)
        return None

    def _command(self, change: Change, first: Prepared) -> tuple[TrialPlace, list[str]]:
        """Return where a trial writes, and the words that start it."""
        run_id = f"{self._group}.{change.name}"
        place = prepare_place(first.base, run_id, self.script, first.script)
        words = ["run", change.nproc, "--run-id", run_id, "--phases", *self.words, *change.words]
        for name, value in (*place.variables, (TRIAL, f"{self._group}/{change.name}")):
            words += ["--env", f"{name}={value}"]  # before those of the user, which win
        words += launch_words(change.said, _OWN)
        return place, own_command(sys.executable, "ddplaunch", *words, "--", *place.script)

    def _problem(self, trial: Trial) -> Finding | None:
        """Return why a trial measured nothing; None where it did."""
        if trial.measured.ranks and trial.measured.samples_per_s != 0:
            return None
        code, what, why, fix = self._reason(trial, count(trial.measured.steps, "step"))
        return error(code, what, why=why, fix=fix, where=f"trial {trial.run_id}")

    def _reason(self, trial: Trial, steps: str) -> tuple[str, str, str, str]:
        """Return code, what, why and fix of a trial that made so many ``steps`` and measured nothing."""
        if trial.ending == "refused":
            return (
                "trial-refused",
                f"the launch is refused: {', '.join(each.what for each in errors(trial.findings))}",
                "a trial is a run with all its checks",
                f"`ddplaunch plan {trial.change.nproc} … -- {self.script[0]}` shows every value with its source",
            )
        if trial.ending == "failed":
            known = trial.diagnosis
            return (
                "trial-failed",
                f"it failed after {steps}" + ("" if known is None else f": {known.what}"),
                "nothing in its output says why" if known is None else known.why,
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
                f"{count(self.measure.warmup_steps, 'step')} warm up, and ten alike are wanted after them",
                "more epochs, or `--warmup-steps 0`" if trial.measured.steps else _MARK,
            )
        if trial.ending == "interrupted":
            return (
                "trial-interrupted",
                f"interrupted after {steps}",
                "Ctrl-C ended it before enough was measured",
                "the same command again; with `--resume`, `scale` measures only what is missing",
            )
        fix = "`--run-dir` on a file system that all hosts share" if trial.unwatched else "`--timeout 30m` waits longer"
        return (
            "trial-without-steps",
            f"{steps} in {duration_text(trial.took_s)}, too few to measure",
            "the ranks still load, or wait for each other, or step without an optimizer of torch",
            f"{fix}; `ddplaunch logs {trial.run_id}` shows what they did; {_MARK}",
        )


def _make(place: TrialPlace) -> None:
    """Make a trial's folders. Raises RefusedError where they cannot be made, or are not this user's."""
    try:
        place.make()
    except NotOursError as problem:
        raise RefusedError(not_yours(problem, "`--run-dir` names a directory of yours")) from problem
    except OSError as problem:
        raise RefusedError(
            error(
                "trial-refused",
                f"{problem.filename}: {problem.strerror}",
                why="what a trial's script writes goes into a folder beside its record",
                fix="`--run-dir` names a directory on a disk with space left",
            )
        ) from problem


class _Running:
    """The launcher of a trial as a child of this process."""

    def __init__(self, words: Sequence[str], change: Change, measure: Measure, record: Path, told: Path) -> None:
        self.record, self.steps = record, FollowedSteps(record, change.ranks)
        self.unwatched = False
        self._change, self._measure = change, measure
        self._child = subprocess.Popen(
            words,
            env={**os.environ, **asked(told)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which ends the trial
        )

    def watch(self, grace_s: float) -> Ending:
        """Wait until enough is measured or the run is over, and end it with its usual grace; return how it ended."""
        try:
            return self._wait()
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self._end(grace_s)
            self.steps.look()

    def _wait(self) -> Ending:
        began_s, terminal = time.monotonic(), Terminal.of(sys.stderr)
        unseen_s = _UNSEEN_S + (self._measure.seconds or 10.0)
        while (status := self._child.poll()) is None:
            time.sleep(_LOOK_S)
            self.steps.look()
            took_s = time.monotonic() - began_s
            if terminal.styled:
                tell(f"\r{self._change.name}: {count(self.steps.made, 'step')}, {took_s:.0f} s \r")
            if self.steps.are_enough(self._measure):
                return "measured"
            self.unwatched = self._change.elsewhere and not self.steps.complete
            over = took_s >= self._measure.timeout_s or (self.unwatched and took_s >= unseen_s)
            if over or self.steps.empty_epochs >= _EMPTY:
                return "timed-out"
        if status == 0:
            return "ended"
        refused = status in (ExitStatus.REFUSED, ExitStatus.USAGE) and not numbered(self.record, "node")
        return "refused" if refused else "failed"

    def _end(self, grace_s: float) -> None:
        """End the run, and whatever should be left of it; a second Ctrl-C does so at once."""
        try:
            if self._child.poll() is None:
                if not end_step(self._step_of_slurm(), os.environ):
                    self._child.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(grace_s + _LONGER_S)
        except KeyboardInterrupt:
            grace_s = 0.0
        if (left := live_run(self.record, self._child.pid)) is not None:
            stop_run(left, grace_s)  # waits for the guard, which writes the outcome
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def _step_of_slurm(self) -> dict[str, str]:
        """Return the variables of the job's step that srun has made of the launcher; empty where there is none."""
        with suppress(OSError, ValueError, KeyError, AttributeError):
            variables = read_object(self.record / "run.json")["environment"]
            if variables.get("SLURM_STEP_ID") != os.environ.get("SLURM_STEP_ID"):
                return {str(name): str(value) for name, value in variables.items()}
        return {}


def _observed(record: Path) -> tuple[Finding, ...]:
    """Return what was found of how the ranks of a run train."""
    outcome = read_outcome(record)
    findings = outcome.findings if isinstance(outcome, RunOutcome) else ()
    return tuple(each for each in findings or read_findings(record) if each.code in OBSERVED)


@contextmanager
def _ending_as_by_ctrl_c() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt, so that `timeout` or a closed terminal leave nothing running."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    for number in numbers:  # nohup ignores SIGHUP
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
