"""Ends a run on one node: finds what failed, writes the outcome, reports it, and returns the exit status.

The guard calls it when every rank is gone and all output is recorded.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent import has_other_nodes
from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
from ddplaunch.agent.end.evidence import announced, explain_attempt
from ddplaunch.explain.diagnosis import VAGUE, Diagnosis, Explanation
from ddplaunch.explain.read.lines import clean, frames
from ddplaunch.machine.files import read_end
from ddplaunch.planning.settings import Settings
from ddplaunch.records.directory import note_path, path_text
from ddplaunch.records.first_failure import failed_by_itself, first_failed_node
from ddplaunch.records.outcome import AttemptOutcome, PreviousRun, RankOutcome, RunOutcome, outcome_of, write_outcome
from ddplaunch.ui.outcome_view import attempt_text, elsewhere_text, node_failed_text, outcome_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding
from ddplaunch.values.variable_names import LAUNCH, TYPED
from ddplaunch.watch.observed import Observed, look, losses

_TAIL_BYTES = 1 << 16
_LINES = 20
_HEARS_S = 10.0  # a failed node explains its failure before it tells the others
_TELLS_S = 3.0  # it has told them before srun ends them
_LINE_CHARS = 500
#: Codes of failures that each attempt meets in the same way unless it has trained before.
_CERTAIN = (
    "syntax-error",
    "module-not-found",
    "script-not-found",
    "dataset-missing",
    "script-arguments",
    "local-rank-argument",
)

_explained: dict[int, Diagnosis | None] = {}  # diagnoses of earlier attempts, by number, so that none is made twice


def attempt_ended(settings: Settings, attempt: EndedAttempt) -> tuple[str, bool]:
    """Return the report of an attempt after which torchrun would start another one, and whether that cannot help.

    Ranks that torchrun ended because another node failed or joined did not fail. If all nodes share one console, only
    the node whose rank failed reports.
    """
    attempts = settings.max_restarts + 1
    if not any(map(failed_by_itself, attempt.ranks)):
        alone = settings.silent or "SLURM_STEP_ID" in os.environ or not has_other_nodes()
        return "" if alone else elsewhere_text(attempt.attempt, attempts), False
    diagnosis = explain_attempt(settings, attempt, None).diagnosis
    _explained[attempt.attempt] = diagnosis
    terminal = Terminal.of(sys.stderr)
    if _would_fail_alike(settings, attempt, diagnosis):
        return terminal.note("ddplaunch: not restarted, as it would fail alike (`--restart-always` restarts it)"), True
    return attempt_text(attempt.attempt, attempts, diagnosis, terminal), False


def _would_fail_alike(settings: Settings, attempt: EndedAttempt, diagnosis: Diagnosis | None) -> bool:
    """Return whether no restart can help: a failure of ``_CERTAIN`` before the first optimizer step of any rank."""
    node = settings.node_directory
    if not diagnosis or diagnosis.code not in _CERTAIN or diagnosis.certainty != "observed" or not node:
        return False
    folder = Path(node, f"attempt-{attempt.attempt}")
    untrained = settings.observe and not any(note_path(folder, each.rank).exists() for each in attempt.ranks)
    return untrained and not settings.restart_always


def conclude(settings: Settings, ended: EndedRun, say: Callable[[str], None], hear: Callable[[float], None]) -> int:
    """Explain, record and ``say`` how the run ended; return the exit status.

    ``hear`` waits that many seconds; if another node tells meanwhile how it ended, it fills in ``ended.elsewhere``.
    """
    last = ended.attempts[-1] if ended.attempts else None
    if ended.stopped or ended.state == "succeeded":
        explanation = Explanation(ended.stopped)
    else:
        explanation = explain_attempt(settings, last, ended)
    accused = explanation.diagnosis.rank if explanation.diagnosis else None
    first = ended.first_failed(accused)
    failed = accused if ended.stopped else first.rank if first else None
    findings, measured = _measured(settings, last)
    for text in ended.told:  # what `--prove` said is not said again
        measured = measured.removeprefix(text)
    outcome = RunOutcome(
        run_id=settings.run_id,
        host=ended.host,
        node=settings.node,
        state=ended.run_state(),
        exit_status=ended.exit_status(first),
        started_s=round(ended.started_s, 3),
        ended_s=round(ended.ended_s, 3),
        first_failed_rank=None if ended.state == "succeeded" else failed,
        diagnosis=explanation.diagnosis,
        cascade=explanation.cascade,
        attempts=tuple(
            _attempt(settings, each, explanation if each is last else None, ended) for each in ended.attempts
        ),
        notes=_notes(ended),
        findings=(*findings, *(last.hung if last and ended.state == "signal" else ())),
        launch=os.environ.get(LAUNCH, ""),
    )
    directory = Path(settings.directory) if settings.directory else None
    if directory and outcome.state == "failed" and not settings.node:
        outcome = replace(outcome, previous=_before(directory, outcome))
    problem = _written(directory, outcome)
    decided, cause = _decided_elsewhere(settings, ended, outcome, hear)
    if decided is not outcome:
        problem = _written(directory, decided)
    outcome = decided
    # if it was not kept, the launcher of all hosts cannot read it
    one_console = "SLURM_STEP_ID" in os.environ  # of all nodes
    found = outcome.diagnosis
    left = ended.announced and found and found.code == "terminated"  # in time
    alike = left or cause is not None or outcome.state in ("succeeded", "terminated")
    if (settings.silent and problem is None) or (one_console and settings.node and alike):
        say("" if settings.node else measured)  # one node's are enough for one console
    elif cause is not None and one_console:  # that node says why
        say(node_failed_text(outcome, cause, settings.directory, Terminal.of(sys.stderr)))
    else:
        text = outcome_text(
            outcome,
            path_text(directory) if directory else None,
            Terminal.of(sys.stderr),
            signal=ended.signal,
            typed_s=_typed_s(),
            stopped=ended.stopped is not None,
            unrecorded="; ".join(filter(None, (ended.unrecorded, problem))) or None,
            notices=ended.told,
        )
        bad = outcome.state != "succeeded" or outcome.findings or outcome.notes or problem
        say(measured + text * bool(bad or not settings.quiet))
    return outcome.exit_status


def _typed_s() -> float | None:
    """Return when ddplaunch was started for this run; None if torchrun was started without ddplaunch."""
    with contextlib.suppress(KeyError, ValueError):
        return float(os.environ[TYPED])
    return None


def _written(directory: Path | None, outcome: RunOutcome) -> str | None:
    """Write the outcome; return the reason as a clause if that fails, else None."""
    if not directory:
        return "no run directory was named"
    problem = write_outcome(directory, outcome)
    return problem and f"outcome.json: {problem}"


def _before(directory: Path, outcome: RunOutcome) -> PreviousRun | None:
    """Return how the previous run of the same command ended; None if unknown."""
    try:
        from ddplaunch.records.earlier_run import run_before

        return run_before(directory, outcome)
    except Exception:  # a bad record of another run must not hide this run's end
        return None


def _decided_elsewhere(
    settings: Settings, ended: EndedRun, outcome: RunOutcome, hear: Callable[[float], None]
) -> tuple[RunOutcome, int | None]:
    """Return the outcome, with the cause from Slurm or from another node if there is one, and that node or None."""
    if ended.stopped:
        return outcome, None
    scheduled = _by_the_scheduler(settings, ended) or announced(settings, ended, outcome)
    if scheduled:
        return replace(outcome, diagnosis=scheduled), None
    if settings.others:
        until_s = time.monotonic() + _hears_s(ended, outcome)
        while not (ended.elsewhere or ended.launcher_died) and time.monotonic() < until_s:
            hear(0.1)
    cause = _told_by_another(ended, outcome)
    return (caused_by(outcome, cause), cause.node) if cause else (outcome, None)


def _hears_s(ended: EndedRun, outcome: RunOutcome) -> float:
    """Return how long another node may take to tell that it failed; srun ends this one by SIGTERM then."""
    if _only_survived(outcome):
        return _HEARS_S
    return _TELLS_S if ended.signal == signal.SIGTERM and "SLURM_STEP_ID" in os.environ else 0.0


def _only_survived(outcome: RunOutcome) -> bool:
    """Return whether ranks here failed only because they lost, or waited for, another rank, as the accused one says."""
    found, survivors = outcome.diagnosis, {None, *(echo.rank for echo in outcome.cascade)}
    return outcome.state == "failed" and (not found or (found.code in VAGUE and found.rank in survivors))


def _told_by_another(ended: EndedRun, outcome: RunOutcome) -> RunOutcome | None:
    """Return the outcome that another node sent, unless this one succeeded or one of its ranks failed earlier."""
    told = outcome_of(ended.elsewhere) if ended.elsewhere else None
    if not told or not told.diagnosis or outcome.state == "succeeded":
        return None
    if told.state != "failed" and "SLURM_STEP_ID" in os.environ:
        return None  # Slurm ended all nodes
    if not _only_survived(outcome) and first_failed_node({outcome.node: outcome, told.node: told}) is outcome:
        return None
    return told


def caused_by(outcome: RunOutcome, cause: RunOutcome) -> RunOutcome:
    """Return ``outcome`` with diagnosis and exit status of ``cause``, the other node whose failure ended this one."""
    found, attempts = cause.diagnosis, outcome.attempts
    if found:
        found = replace(found, host=found.host or cause.host)
    if attempts:
        attempts = (*attempts[:-1], replace(attempts[-1], failed=True, diagnosis=found))
    return replace(
        outcome,
        state="failed",
        exit_status=cause.exit_status,
        first_failed_rank=cause.first_failed_rank,
        diagnosis=found,
        cascade=cause.cascade,
        attempts=attempts,
    )


def _by_the_scheduler(settings: Settings, ended: EndedRun) -> Diagnosis | None:
    """Ask Slurm why it sent SIGTERM, only on node 0 to spare the controller. The outcome is already on disk."""
    if ended.state != "signal" or ended.signal != signal.SIGTERM or settings.node:
        return None
    from ddplaunch.hosts.slurm.job_reasons import why_ended

    return why_ended(os.environ, settings.grace_s, ended.ended_s)


def seen_in_run(attempt: str, ranks: Sequence[int], settings: Settings) -> tuple[Observed, str]:
    """Return what the folder ``attempt`` tells of the first steps, and what `--prove` found right there, or open."""
    proved: list[Finding] = []
    text = ""
    if settings.prove:
        from ddplaunch.prove.gradients import gradient_claims  # only imported if asked for
        from ddplaunch.prove.recording import read_recording

        for claim in gradient_claims(read_recording(Path(attempt))):
            if not claim.finding:
                text += f"ddplaunch: {claim.verdict} {claim.subject}: {claim.text}\n"
            elif claim.finding.code not in settings.ignore:
                proved.append(claim.finding)
    seen = look(attempt, ranks, os.environ, (*settings.ignore, *(finding.code for finding in proved)))
    return seen._replace(findings=(*proved, *seen.findings)), text


def _measured(settings: Settings, last: EndedAttempt | None) -> tuple[tuple[Finding, ...], str]:
    """Return what was measured in the last attempt: findings about its first steps and last losses, and a text.

    The text has the claims of `--prove`, and how steps spent their time.
    """
    findings: tuple[Finding, ...] = ()
    text = ""
    if not last or not settings.node_directory:
        return findings, text
    ranks = [each.rank for each in last.ranks]
    attempt = f"{settings.node_directory}/attempt-{last.attempt}"
    try:
        if settings.observe:
            seen, text = seen_in_run(attempt, ranks, settings)
            findings = (*seen.findings, *losses(attempt))
        if settings.phases:
            from ddplaunch.watch.phases import phase_words  # only imported if asked for

            text += phase_words(Path(attempt))
    except Exception as error:  # the end must be reported even if this fails
        text += f"ddplaunch: what was measured could not be read: {error!r}\n"
    return findings, text


def _notes(ended: EndedRun) -> tuple[str, ...]:
    killed = f"processes that had to be killed at the end: {', '.join(map(str, ended.left_over))}"
    lost = f"not all output is recorded: {ended.unrecorded}"
    return (killed,) * bool(ended.left_over) + (lost,) * bool(ended.unrecorded)


def _attempt(
    settings: Settings, attempt: EndedAttempt, explanation: Explanation | None, ended: EndedRun
) -> AttemptOutcome:
    """Return the outcome of an attempt; ``explanation`` is None except for the last attempt."""
    directory = Path(settings.directory)
    return AttemptOutcome(
        attempt.attempt,
        round(attempt.started_s, 3),
        round(attempt.ended_s, 3),
        any(map(failed_by_itself, attempt.ranks)) or (explanation is not None and ended.run_state() == "failed"),
        explanation.diagnosis if explanation else _explained.get(attempt.attempt),
        tuple(replace(rank, last_lines=last_lines(rank, directory, attempt.unwritten)) for rank in attempt.ranks),
    )


def last_lines(rank: RankOutcome, directory: Path, unwritten: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the last 20 lines of stderr, or of stdout if stderr is empty, as a terminal would finally show them.

    ``unwritten`` is the output after the end of each file, by the file's name in ``directory``.
    """
    names = (name for name in (rank.err, rank.out) if name is not None)
    ends = (read_end(directory / name, _TAIL_BYTES) + unwritten.get(name, b"") for name in names)
    output = next(filter(None, ends), b"").decode("utf-8", "replace")
    lines = [clean(frames(line.rstrip("\r"))[-1]).rstrip()[:_LINE_CHARS] for line in output.split("\n")]
    return tuple([line for line in lines if line][-_LINES:])
