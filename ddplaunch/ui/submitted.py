"""What is said of a job that was submitted, and of how it ended; refuses to ask after it."""

from __future__ import annotations

from ddplaunch.finding import Finding, error
from ddplaunch.hosts.slurm import JobState
from ddplaunch.hosts.slurm_end import ENDS
from ddplaunch.launch.sbatch import Batch
from ddplaunch.records.first_failure import FirstFailure
from ddplaunch.ui.shell import quote
from ddplaunch.ui.style import paint, visible


def submitted_text(job: str, batch: Batch, log: str, state: JobState | None, styled: bool) -> str:
    """Return the lines that tell what was submitted, where its log is, and how to follow and cancel it."""
    where = "" if state is None else f", {state_text(state)}"
    rows = [("log", visible(log)), ("follow", f"tail -F {quote(log)}"), ("state", f"squeue -j {job}")]
    rows.append(("cancel", f"scancel {job}"))
    head = paint("ddplaunch", "bold", styled) + f" submitted job {job}: {visible(batch.about)}{where}\n"
    return head + "".join(f"  {paint(f'{label:<8}', 'dim', styled)}{text}\n" for label, text in rows)


def state_text(state: JobState) -> str:
    """Return ``pending (Resources)``, ``running on gpu[1-2]``, ``completed``."""
    word = state.state.lower().replace("_", " ")
    if state.state == "PENDING" and state.reason:
        return f"{word} ({state.reason})"
    return f"{word} on {state.nodes}" if state.state == "RUNNING" and state.nodes else word


def exit_status_of(state: JobState) -> int:
    """Return what the job's batch script exited with, 128 + signal, or 1 where Slurm ended it without either."""
    if state.signal:
        return 128 + state.signal
    return state.exit_code or (0 if state.state == "COMPLETED" else 1)


def ended_finding(job: str, state: JobState, first: FirstFailure | None = None) -> Finding | None:
    """Return what to say of a job that did not complete, None for one that did. ``first`` is what its record says."""
    if state.state == "COMPLETED":
        return None
    end = ENDS.get(state.state)
    what, why, fix = _failed(state, first) if end is None else (end.what, end.why, end.fix)
    return error(
        f"slurm-{state.state.lower().replace('_', '-')}",
        f"job {job} {what}",
        why=why,
        fix=fix.replace("{job}", job),
        where=state.nodes or f"Slurm: {state.state}",
    )


def _failed(state: JobState, first: FirstFailure | None) -> tuple[str, str, str]:
    if first is None:
        why = "the diagnosis in its log says why"
        return f"failed with exit status {exit_status_of(state)}", why, "`ddplaunch explain` for the newest run here"
    rank = "" if first.rank is None else f", rank {first.rank}"
    return (
        f"failed with exit status {first.exit_status} on node {first.node}{rank}",
        f"that node failed first; Slurm's own status for the job is {exit_status_of(state)}, the highest of all nodes",
        f"`ddplaunch explain {first.run_id}`",
    )
