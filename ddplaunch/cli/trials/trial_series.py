"""The trials of one command, one after the other, and what is said of each: how far it is, why it was not measured."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ddplaunch.cli.parsing.typed_words import spelled
from ddplaunch.cli.prepare import Prepared, errors, prepare, script_report
from ddplaunch.cli.streams import say, tell, tell_findings
from ddplaunch.cli.target import parse_target
from ddplaunch.cli.trials.trial_orders import TRIAL_DIR, Measuring, TrialOrder, new_group
from ddplaunch.cli.trials.trial_runs import TrialResult, run_trial
from ddplaunch.planning.options import Options, Said
from ddplaunch.records.directory import not_yours, path_text
from ddplaunch.records.own.own_files import NotOursError
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, UsageError, error, usage
from ddplaunch.values.resolved import value_of
from ddplaunch.values.words import count, duration_text

_MARK = "`ddplaunch.step(samples=…)` in the script marks a step where no optimizer of torch makes one"

_TIMEOUT_S = 600.0
_MOST_PER_CPU = 4  # processes


class TrialSeries:
    """A script and the options of its launch, of which trials differ by what a command tries.

    ``target`` is what is launched, ``words`` are flags of each trial beside those of the launch, ``group`` names them
    all.
    """

    def __init__(
        self,
        command: str,
        options: Options,
        script: Sequence[str],
        profile: str | None,
        measuring: Measuring,
        *,
        keep: bool,
    ) -> None:
        """``measuring`` is how long each is measured; with ``keep`` their folders stay."""
        self.options, self.script, self.measuring, self._keep = options, tuple(script), measuring, keep
        self._ran = False
        self.words = () if profile is None else tuple(spelled("--profile", profile))
        self.target = parse_target([word.replace(TRIAL_DIR, "trial") for word in script])
        self.group = value_of(options.run_id, None) or new_group(command)

    def prepared(self, options: Options) -> Prepared:
        """Return a launch of the script with ``options``, decided and checked. Raises UsageError."""
        return prepare(options, self.target)

    def allowed(self, options: Options) -> Prepared:
        """Return such a launch whose findings were told. Raises RefusedError for errors among them, and UsageError."""
        found = self.prepared(options)
        self.allow(found)
        return found

    def allow(self, found: Prepared) -> None:
        """Tell what such a launch was found to be. Raises RefusedError for errors among its findings."""
        tell_findings(found.findings)
        if refusing := errors(found.findings):
            raise RefusedError(*refusing)

    def run(
        self,
        name: str,
        shown: str,
        processes: str,
        said: Said,
        first: Prepared,
        words: tuple[str, ...] = (),
        *,
        elsewhere: bool = False,
    ) -> TrialResult:
        """Run one trial, ``shown`` while it runs; ``first`` is a launch of the script that was decided before.

        ``words`` are further flags of it. ``elsewhere`` says that its ranks run on other machines.
        Raises UsageError where the first one has flags that contradict each other, and RefusedError where its folder
        cannot be made, or is not this user's.
        """
        report = script_report(self.options, self.target, Path.cwd(), first.facts)
        order = TrialOrder(
            self.group,
            name,
            processes,
            said,
            self.script,
            (*self.words, *words),
            measuring=self.measuring,
            keep=self._keep,
            elsewhere=elsewhere,
        )
        try:
            with _told_to_end_as_by_ctrl_c():
                result = run_trial(order, report, TrialProgress(shown))
            self._ran = self._ran or result.status != "refused"
            if result.exit_status == ExitStatus.USAGE and not self._ran and (wrong := errors(result.findings)):
                raise UsageError(*wrong)  # flags that no trial can have
            if result.kept is not None:
                say(f"{shown}: kept in `{path_text(result.kept)}`{' on each host' if result.unwatched else ''}")
            return result
        except NotOursError as problem:
            place = shlex.quote(path_text(Path(problem.filename)))
            fix = f"`--run-dir` names a directory of yours; `ls -ld {place}` shows whose that is"
            raise RefusedError(not_yours(problem, fix)) from problem
        except OSError as problem:
            raise RefusedError(
                error(
                    "trial-refused",
                    f"{problem.filename}: {problem.strerror}",
                    why="what a trial's script writes goes into a folder beside its record",
                    fix="`--run-dir` names a directory on a disk with space left",
                )
            ) from problem


def measuring_of(
    options: Options, warmup_steps: int | None, steps: int | None, seconds: float | None, usual_s: float
) -> Measuring:
    """Return how long trials are measured: ``usual_s`` seconds where nobody says for how many steps or how long.

    Raises UsageError for numbers by which nothing is measured.
    """
    if steps is not None and steps < 1:
        raise nothing_to_measure("--steps", steps, "50")
    if seconds is not None and seconds <= 0:
        raise nothing_to_measure("--seconds", seconds, "10")
    if warmup_steps is not None and warmup_steps < 0:
        raise usage(
            f"`--warmup-steps` is {warmup_steps}, less than 0",
            why="it counts steps that are left out",
            fix="`--warmup-steps 5`, or leave it out",
            where="flag: --warmup-steps",
        )
    return Measuring(
        5 if warmup_steps is None else warmup_steps,
        steps,
        usual_s if seconds is None and steps is None else seconds,
        value_of(options.timeout_s, _TIMEOUT_S),
    )


def refuse_too_many(processes: int, most: int, shown: str, fix: str, where: str) -> None:
    """Refuse more ``processes`` of a machine than can be measured where ``most`` have a CPU or GPU of their own.

    ``shown`` names them, ``fix`` is a command with fewer. Raises UsageError.
    """
    if processes > _MOST_PER_CPU * most:
        raise usage(
            f"{shown} is too much for {count(most, 'CPU')} on each machine",
            why=f"of more than {_MOST_PER_CPU} processes on a CPU nothing is measured but how they wait for it",
            fix=f"`{fix}`; {_MOST_PER_CPU * most} processes are the most here",
            where=where,
            code="size-not-here",
        )


def nothing_to_measure(flag: str, value: float, example: str) -> UsageError:
    """Return the error for a ``flag`` of trials that leaves nothing to be measured."""
    return usage(
        f"`{flag} {value:g}` measures nothing",
        why="a trial says something by the steps that it has measured",
        fix=f"`{flag} {example}`, or leave it out",
        where=f"flag: {flag}",
    )


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
        refusing = errors(result.findings)
        what = refusing[0].what if refusing else f"exit status {result.exit_status}"
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
    if result.empty_epochs and result.status in ("ended", "no-steps"):
        return error(
            "trial-without-samples",
            f"the DataLoader gave no batch in {count(result.empty_epochs, 'epoch')}",
            why="where a rank has fewer samples than one batch, `drop_last=True` leaves nothing",
            fix="a smaller `--batch-size`, or more data",
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
    if result.status == "unseen":
        return error(
            "trial-without-steps",
            f"{seen} in what the hosts brought at the end, too few to measure",
            why="the hosts do not share the run directory, so that nobody sees how far their ranks are: trials end "
            "55 s after their launch, or 45 s and `--seconds`",
            fix=f"`--run-dir` on a file system that all hosts share, or `--seconds 60`; {_MARK}",
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


@contextmanager
def _told_to_end_as_by_ctrl_c() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt, so that `timeout` or a closed terminal leave nothing behind."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    ours = [each for each, handler in before.items() if handler is signal.SIG_DFL]  # nohup ignores SIGHUP
    for each in ours:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
