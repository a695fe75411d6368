"""What `ddplaunch submit` writes and says: the batch script, what was submitted, and how the job ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.hosts.slurm.job_reasons import ENDS, waits_for
from ddplaunch.hosts.slurm.programs import JobState
from ddplaunch.planning.job.sbatch import BatchScript
from ddplaunch.planning.job.submission import Submission
from ddplaunch.records.outcome import RunOutcome
from ddplaunch.ui.plan_view import yaml_text
from ddplaunch.ui.shell import NOT_PRINTED, command_lines, quote, shell_words
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.words import SIGNALS, count

_LABEL = 10  # cells before what stands beside a label


_WIDTH = 100  # of a batch script
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+\Z")


def sbatch_text(batch: BatchScript, environ: Mapping[str, str] | None = None) -> str:
    """Return the batch script: options, the user's setup, one srun line.

    What looks like a secret is a variable there, which sbatch hands on; ``environ`` are those that have a value.
    """
    lines = [
        "#!/bin/bash -l" if batch.setup else "#!/bin/bash",
        f"# {visible(batch.about)}; written by `ddplaunch submit`.",
        "# To change and submit it by hand: `sbatch FILE` in the directory where the training starts.",
        *(f"#SBATCH {directive_text(directive)}" for directive in batch.directives),
        "",
    ]
    if batch.setup:
        lines += ["set -e  # a line of the setup that fails ends the job", *batch.setup, "set +e", ""]
    secrets = shell_words(batch.command, environ or {})[1]
    lines += [f"# {name}: {NOT_PRINTED}; sbatch hands it on." for name in secrets]
    lines += ["# One task on each node; ddplaunch learns from Slurm what it got. A task that fails ends all."]
    lines += [] if batch.requeue_on is None else _hand_on(*batch.requeue_on)
    lines += [f"{' '.join(batch.step)} \\"]
    lines += [f"  {line}" for line in command_lines(batch.command, _WIDTH - 2, taken=environ)]
    if batch.requeue_on is not None:
        lines[-1] += " &"
        lines += _AFTER_STEP
    if batch.requeue_after_s is not None:
        lines += [
            "status=$?",
            "# Slurm requeues after preemption and lost nodes; after the time limit somebody has to ask for it.",
            f'if [ "$status" -ne 0 ] && [ "$SECONDS" -ge {batch.requeue_after_s} ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$status"',
        ]
    return "\n".join(lines) + "\n"


_REQUEUE_BEFORE_S = 15  # Slurm lets nothing requeue a job that is over its time


def _hand_on(name: str, seconds: int) -> list[str]:
    """Return the lines that give the ranks the signal, and queue the job again if they run until the end."""
    late = max(1, seconds - _REQUEUE_BEFORE_S)
    return [
        f"# {name} comes {seconds} s before the time limit, to this script, and srun hands it on to the ranks.",
        f"# A step that still runs {_REQUEUE_BEFORE_S} s before the limit, or that failed by then, is queued again.",
        "hand_on() {",
        '  [ -n "$told" ] && return',
        "  told=yes",
        f'  kill -s {name} "$step"',
        f"  (trap 'kill $!' TERM; sleep {late} & wait $! && scontrol requeue \"$SLURM_JOB_ID\") &",
        "  late=$!",
        "}",
        "told= late=",
        f"trap hand_on {name}",
    ]


#: ``wait`` returns early when a signal comes.
_AFTER_STEP = [
    "step=$!",
    'wait "$step"; status=$?',
    'while kill -0 "$step" 2>/dev/null; do wait "$step"; status=$?; done',
    '[ -n "$late" ] && kill "$late" 2>/dev/null',
    'if [ -n "$told" ] && [ "$status" -ne 0 ]; then',
    '  scontrol requeue "$SLURM_JOB_ID" && sleep 60  # Slurm ends this script; its own end would count as the job\'s',
    "fi",
    'exit "$status"',
]


def directive_text(directive: str) -> str:
    """Return an option as Slurm reads it in a ``#SBATCH`` line: in double quotes, a backslash before ``"`` and ``\\``.

    Slurm's reader is no shell: https://github.com/SchedMD/slurm/blob/master/src/sbatch/opt.c (_get_next_opt).
    """
    if _PLAIN.match(directive):
        return directive
    name, equals, value = directive.partition("=")
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'{name}{equals}"{escaped}"'


def changed_text(job: str, state: JobState, width: int) -> str:
    """Return the line for a job that waits or runs now."""
    return "\n".join(wrap(visible(state_text(state)), width, f"job {job}: ", "  ")) + "\n"


def submitted_text(job: str, batch: BatchScript, log: str, state: JobState | None, terminal: Terminal) -> str:
    """Return the lines that tell what was submitted, where its log is, and how to follow and cancel it."""
    now = [] if state is None else wrap(visible(state_text(state)), terminal.width - _LABEL)
    rows = [("now" if i == 0 else "", line) for i, line in enumerate(now)]
    rows += [("log", visible(log)), ("follow", f"tail -F {quote(log)}"), ("state", f"squeue -j {job}")]
    rows.append(("cancel", f"scancel {job}"))
    kind = "array " if batch.array else ""
    head = terminal.paint("ddplaunch", "bold") + f" submitted {kind}job {job}: {visible(batch.about)}\n"
    return head + "".join(f"  {terminal.paint(f'{label:<{_LABEL - 2}}', 'dim')}{text}\n" for label, text in rows)


def manifest_text(objects: Sequence[Mapping[str, Any]]) -> str:
    """Return the objects of a manifest as YAML, one document each."""
    return "---\n".join(map(yaml_text, objects))


def printed_text(submission: Submission, namespace: str | None, terminal: Terminal) -> str:
    """Return the lines that tell what a printed manifest is, and what kubectl does with it."""
    own = f"kubectl -n {namespace}" if namespace else "kubectl"
    logs = f"{own} logs -l batch.kubernetes.io/job-name={submission.name} --prefix --tail=-1"
    several = f" --max-log-requests={submission.nodes}" if submission.nodes > 1 else ""
    objects = f"job/{submission.name}" + (f" service/{submission.name}" if submission.nodes > 1 else "")
    rows = [("make", "the same command with `| kubectl apply -f -` behind it"), ("follow", f"{logs} -f{several}")]
    rows += [("why", f"{logs} | ddplaunch explain -"), ("delete", f"{own} delete {objects}")]
    head = terminal.paint("ddplaunch", "bold")
    head += f" printed job {submission.name}: {visible(submission.script)} on {count(submission.nodes, 'node')}\n"
    return head + "".join(f"  {terminal.paint(f'{label:<{_LABEL - 2}}', 'dim')}{text}\n" for label, text in rows)


def state_text(state: JobState) -> str:
    """Return ``pending (Resources): waits until enough is free``, ``running on gpu[1-2]``, ``completed``."""
    word = state.state.lower().replace("_", " ")
    if state.state == "PENDING" and state.reason:
        waits = waits_for(state.reason)
        return f"{word} ({state.reason})" + (f": {waits}" if waits else "")
    return f"{word} on {state.nodes}" if state.state == "RUNNING" and state.nodes else word


def exit_status_of(state: JobState) -> int:
    """Return what the job's batch script exited with, 128 + signal, or 1 where Slurm ended it without either."""
    if state.signal:
        return 128 + state.signal
    return state.exit_code or (0 if state.state == "COMPLETED" else 1)


def ended_finding(
    job: str, state: JobState, first: RunOutcome | None = None, outside: Diagnosis | None = None
) -> Finding | None:
    """Return what to say of a job that did not complete, None for one that did.

    From the job's record, ``first`` is the end of the node that failed first, ``outside`` why somebody else ended it.
    """
    if state.state == "COMPLETED":
        return None
    where = state.nodes or f"Slurm: {state.state}"
    end = ENDS.get(state.state)
    if end is not None:
        what, why, fix = f"job {job} {end.what}", end.why, end.fix.format(job=job)
    elif first is not None:
        what, why, fix = _failed(job, state, first)
    elif outside is not None:
        return error(outside.code, outside.what, why=outside.why, fix=" or ".join(outside.fixes), where=where)
    else:
        what = f"job {job} failed with exit status {exit_status_of(state)}"
        why, fix = "the end of its log says why", f"`ddplaunch explain {job}`"
    return error(f"slurm-{state.state.lower().replace('_', '-')}", what, why=why, fix=fix, where=where)


_TOLD_TO_END = (128 + SIGNALS["SIGTERM"], 128 + SIGNALS["SIGKILL"])


def _failed(job: str, state: JobState, first: RunOutcome) -> tuple[str, str, str]:
    rank = "" if first.first_failed_rank is None else f", rank {first.first_failed_rank}"
    why = "its record says no more" if first.diagnosis is None else first.diagnosis.what
    if exit_status_of(state) != first.exit_status:
        slurms = exit_status_of(state)
        told = slurms in _TOLD_TO_END
        later = f", {slurms}, is that of a node that was ended later" if told else f" is {slurms}"
        why += f"; Slurm's own status for the job{later}"
    what = f"job {job} failed with exit status {first.exit_status} on node {first.node}{rank}"
    return what, why, f"`ddplaunch explain {first.run_id}`"
