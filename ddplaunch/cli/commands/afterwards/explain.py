"""``ddplaunch explain``: the root cause of a run, a Slurm job or a log, or what a code means."""

from __future__ import annotations

import os
import re
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddplaunch.cli.hosts.hosts_verdict import launcher_lost, most_telling, told_by_launcher, unsaid
from ddplaunch.cli.streams import answer, answer_json, tell
from ddplaunch.cli.which_run import Run, kept_elsewhere, only_one, which_run, with_what_hosts_have
from ddplaunch.explain.diagnosis import VAGUE, Evidence, Explanation, explanation_json
from ddplaunch.hosts.slurm.job_reasons import diagnosis
from ddplaunch.hosts.slurm.programs import job_state
from ddplaunch.machine.files import read_end
from ddplaunch.records.directory import path_text, runs_directory
from ddplaunch.records.explain_sources import Subject, named_files, recorded_run
from ddplaunch.records.find import read_record, run_directories, runs_of_job
from ddplaunch.records.log_files import log_parts
from ddplaunch.records.outcome import outcome_json
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, UsageError, usage
from ddplaunch.values.words import nearest

if TYPE_CHECKING:
    from ddplaunch.checks.check import Check
from ddplaunch.cli.parsing.command import RUN_DIR, Command
from ddplaunch.planning.flag import Flag

COMMAND = Command(
    examples=(
        ("ddplaunch explain", "the newest run of this directory"),
        ("ddplaunch explain shm-too-small", "what a code means, and what to do"),
    ),
    options=(
        Flag(
            "targets",
            "arguments",
            "",
            "A run, log files, - for stdin, or a code [the newest run].",
            "RUN|FILE|CODE",
            offers="runs",
        ),
        Flag("json", "switch", "", "The diagnosis as JSON."),
        Flag("why", "switch", "", "Show on stderr what each stage of the diagnosis decided."),
        RUN_DIR,
    ),
    more="`-` reads a log from stdin.",
)

_JOB_WORD = re.compile(r"(?:slurm-)?([0-9]{1,10}(?:_[0-9]+)?)\Z")
_JOB_LOG = re.compile(r"slurm-([0-9]{1,10}(?:_[0-9]+)?)\.(?:out|err)\Z")
_SAYS_RUN = re.compile(rb"^ddplaunch (slurm-[0-9]{1,10}\.[0-9]+(?:-r[0-9]+)?)(?::|\r?$)", re.MULTILINE)
_HEAD_BYTES = 1 << 18  # at the start of a log, where a launch shows its id
_JOB_RUN = re.compile(r"slurm-([0-9]{1,10})\.[0-9]+(?:-r([0-9]+))?\Z")
_IN_A_RECORD = ("run.json", "node-*/run.json", "node-*/attempt-*")
_SLURM_S = 5.0  # for Slurm to answer


def explain(targets: list[str], json: bool | None, why: bool | None, run_dir: str | None) -> int:
    """Explain the newest run, a run, logs or stdin; or describe a check or diagnosis by its code."""
    stages: list[str] | None = [] if why else None
    try:
        if len(targets) == 1 and _described(targets[0]):
            return ExitStatus.DONE
        with ExitStack() as stack:
            subject, lives = _subject(targets, run_dir, stack)
            explanation = explained(subject, stages)
    except OSError as error:
        raise usage(
            f"`{(error.filename or ' '.join(targets))[:200]}` cannot be read: {error.strerror}",
            why="the explanation is made from it",
            fix="name a file that can be read",
        ) from error
    tell("".join(f"{line}\n" for line in stages or ()))
    record = subject.record
    running = _written(subject, explanation) if record is None else lives and not record.outcomes
    explanation = _with_what_else_is_known(explanation, subject, running)
    cause = explanation.diagnosis
    status = ExitStatus.DONE if cause is None or cause.is_stop else ExitStatus.FINDINGS
    if json:
        value = explanation_json(explanation)
        if record is not None:
            value["run_id"] = record.run_id
            value["attempts"] = [] if record.outcome is None else outcome_json(record.outcome)["attempts"]
        answer_json(value)
        return status
    from ddplaunch.ui.explain_view import explanation_text
    from ddplaunch.ui.logs_view import cut_text
    from ddplaunch.ui.outcome_view import attempts_text

    terminal, names = Terminal.of(sys.stdout), subject.names
    if running:
        names += " so far: it is still running"
    elif record and not record.outcomes:
        names = f"what is recorded of {names}, which does not say how it ended"
    answer(explanation_text(explanation, names, terminal, "" if record is None else path_text(record.directory)))
    if record:
        if status and record.findings:
            warned = "; ".join(f"{finding.get('code')}: {finding.get('what')}" for finding in record.findings)
            answer(terminal.note(warned, "warned before it failed: "))
        answer(attempts_text(record.outcome, terminal))
        tell(cut_text(log_parts(record.directory)) or "")
    return status


def _with_what_else_is_known(explanation: Explanation, subject: Subject, running: bool) -> Explanation:
    """Return the explanation, completed by processes and Slurm where logs and record do not tell."""
    diagnosed, record = explanation.diagnosis, subject.record
    if running:  # nothing has ended yet, so an unknown cause is not a diagnosis
        return Explanation(None) if not diagnosed or diagnosed.code == "unknown" else explanation
    if diagnosed and diagnosed.code == "terminated" and record and (lost := launcher_lost(record.directory)):
        return Explanation(lost, explanation.cascade)
    if diagnosed and diagnosed.code not in VAGUE:
        return explanation
    if not diagnosed and record and not record.outcomes:
        explanation = Explanation(unsaid(record))
    return _with_slurms_reason(explanation, subject)


def _with_slurms_reason(explanation: Explanation, subject: Subject) -> Explanation:
    """Return the explanation, or Slurm's reason for ending the job to which the run or log belongs.

    A log and a record show only a signal where Slurm ends a job; the controller remembers the reason for a while,
    accounting for longer. Slurm is not asked about a run that ended well, or that a later run of the same job followed.
    """
    record = subject.record
    if record and record.outcomes and explanation.diagnosis is None:
        return explanation
    match = _JOB_RUN.match(record.run_id) if record else _JOB_LOG.match(Path(subject.names).name)
    if not match:
        return explanation
    job = (record and record.slurm_job) or match[1]
    state = job_state(job, os.environ, _SLURM_S)
    if state is None or (record and state.restarts > int(match[2] or 0)):
        return explanation
    by_slurm = diagnosis(job, state, state.restarts)
    if by_slurm is None or (explanation.diagnosis and by_slurm.code == "unknown"):
        return explanation
    if not record:
        lines = read_end(subject.names, 2000).decode(errors="replace").splitlines()[-1:]
        of_script = tuple(Evidence(subject.names, 0, line) for line in lines)
        by_slurm = replace(by_slurm, evidence=by_slurm.evidence + of_script)
    return Explanation(by_slurm, explanation.cascade)


def _written(subject: Subject, explanation: Explanation) -> bool:
    """Return whether logs that end without any sign of a failure are still being written on this machine."""
    diagnosed = explanation.diagnosis
    paths = [source.read for source in subject.sources if isinstance(source.read, Path)]
    if not diagnosed or diagnosed.code != "unknown" or diagnosed.evidence or not paths:
        return False
    from ddplaunch.machine.processes.process_table import is_written

    return is_written(max(paths, key=lambda path: path.stat().st_mtime))


def explained(subject: Subject, stages: list[str] | None = None) -> Explanation:
    """Return the explanation stored when a recorded run ended, else one from its logs, or from the named logs.

    A vague one gives way to what a record says that was brought after the end. ``stages`` gets each stage's decision
    about the logs.
    """
    from ddplaunch.explain.explain_logs import explain_texts

    record = subject.record
    outcome = record and record.outcome
    stored, brought_late = None, False
    if record and outcome and (len(record.outcomes) == 1 or told_by_launcher(record.directory)):
        stored, brought_late = outcome.explanation, bool(outcome.notes) and not kept_elsewhere(record.directory)
    if stored and stages is None and not brought_late:
        return stored  # it includes what the kernel, the cgroup or the launcher knew when the run ended
    from_texts = explain_texts(subject.sources, subject.facts, stages)
    if stored:
        return most_telling(stored, [from_texts]) if brought_late else stored
    found = from_texts.diagnosis
    if not record and (not found or found.code in VAGUE):
        return _refused(subject) or from_texts
    if not record or not found:
        return from_texts
    explanation = most_telling(from_texts, (of_node.explanation for of_node in record.outcomes.values()))
    if outcome and outcome.state == "failed" and explanation is from_texts and found.code == "terminated":
        return outcome.explanation or from_texts  # srun ended other nodes
    return explanation


def _refused(subject: Subject) -> Explanation | None:
    """Return the refusal of a launch whose log says no more, such as a job that found no data on its nodes."""
    from ddplaunch.ui.outcome_view import refused_in_log

    for source in subject.sources:
        if isinstance(source.read, Path):
            printed = read_end(str(source.read), _HEAD_BYTES).decode(errors="replace")
            if refusal := refused_in_log(printed):
                return Explanation(refusal)
    return None


def _subject(targets: list[str], run_dir: str | None, stack: ExitStack) -> tuple[Subject, bool]:
    """Return the logs or run to explain, and whether it is a run with a launcher or guard on this machine.

    Files fetched from the hosts of a run over ssh exist until ``stack`` is closed.
    """
    run = _run(targets, run_dir)
    if not isinstance(run, Run):
        return named_files(run), False
    place = stack.enter_context(with_what_hosts_have(run.record))
    subject = recorded_run(place)
    subject = subject if place == run.record else replace(subject, record=read_record(run.record))
    return subject, run.processes is not None and bool(run.processes.launchers or run.processes.guards)


def _run(targets: list[str], run_dir: str | None) -> Run | list[str]:
    """Return the run that is meant, or the named logs."""
    base = runs_directory(run_dir)
    if len(targets) > 1:
        return targets
    if not targets:
        return which_run(None, run_dir)
    (word,) = targets
    if word in ("-", ""):
        return targets
    place = Path(word)
    try:
        place.stat()  # since Python 3.14 `Path.exists` hides errors such as a lack of permission
    except (FileNotFoundError, NotADirectoryError):
        if (of_job := _job(word, base)) is None:
            return _named_run(word, base, run_dir)
        place, targets = of_job, [str(of_job)]
    if place.suffix == ".py":
        raise usage(
            f"`{word}` is a program, not a log",
            why="`explain` reads what a run printed",
            fix="`ddplaunch explain` explains the newest run here; `ddplaunch doctor 2 -- train.py` checks a script",
        )
    if place.is_dir():
        record = place if any(any(place.glob(pattern)) for pattern in _IN_A_RECORD) else None
    else:
        record = _run_of_log(place, base)
    return targets if record is None else which_run(str(record.resolve()), run_dir)


def _job(word: str, base: Path) -> Path | None:
    """Return the newest run of the job that ``word`` names (``12``, ``slurm-12``, ``3_0``), else its log, or None.

    Raises UsageError for a job array of several elements, each of which is a run of its own.
    """
    match = _JOB_WORD.match(word)
    if match is None:
        return None
    if runs := runs_of_job(base, match[1]):
        return only_one([Run(path.name, path) for path in runs.values()]).record
    log = Path(f"slurm-{match[1]}.out")
    return log if log.is_file() else None


def _run_of_log(path: Path, base: Path) -> Path | None:
    """Return the record of the Slurm job's run that a log shows, if that record has a diagnosis; else None.

    A job's log mixes the output of all nodes: srun ends nodes that did not fail, and their output comes last.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        names = set(_SAYS_RUN.findall(file.read(_HEAD_BYTES)))
    directory = base / "runs" / names.pop().decode() if len(names) == 1 else None
    if directory is None or directory not in run_directories(base):
        return None
    outcome = read_record(directory).outcome
    return None if outcome is None or outcome.diagnosis is None else directory


def _named_run(word: str, base: Path, run_dir: str | None) -> Run:
    """Return the run that ``word`` names. Raises UsageError for an unknown word, suggesting a similar code or run."""
    try:
        return which_run(word, run_dir)
    except UsageError as error:
        if error.findings[0].code != "run-not-found":
            raise
    from ddplaunch.explain.signatures import all_signatures

    codes = [each.code for each in every_check()] + [each.code for each in all_signatures() if each.is_root]
    near = nearest(word, codes + [path.name for path in run_directories(base)])
    raise usage(
        f"`{word}` is not a code, run or file",
        why="`explain` takes the code of a finding or diagnosis, a run id, or logs; without a word, the newest run",
        fix=f"did you mean `ddplaunch explain {near}`?"
        if near
        else "`ddplaunch ps` lists runs, `ddplaunch doctor --list` checks",
    )


def _described(word: str) -> bool:
    """Print what a code means and return True; False for other words. A check wins over a diagnosis of that name."""
    if not word or Path(word).exists():
        return False
    from ddplaunch.explain.signatures import all_signatures

    check = next((each for each in every_check() if each.code == word), None)
    shown = [each for each in all_signatures() if each.code == word and each.is_root]
    if check is not None:
        from ddplaunch.ui.doctor_view import explain_text

        answer(explain_text(check, Terminal.of(sys.stdout)))
    elif shown:
        from ddplaunch.ui.explain_view import code_text

        answer(code_text(word, shown, Terminal.of(sys.stdout)))
    return check is not None or bool(shown)


def every_check() -> tuple[Check, ...]:
    """Return everything with a code except diagnoses; the imports are here because only some uses need them."""
    from ddplaunch.checks.all_checks import ALL, across
    from ddplaunch.checks.codes import REFUSALS
    from ddplaunch.comm.checks import CHECKS as MEASURED
    from ddplaunch.watch import stragglers

    return (*ALL, *across(), *MEASURED, *stragglers.CHECKS, *REFUSALS)
