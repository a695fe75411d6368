"""``ddplaunch submit``: submits the launch as a Slurm job, or prints it as a Kubernetes manifest."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.parsing.command import OUTPUT, Command
from ddplaunch.cli.parsing.typed_words import TypedLaunch
from ddplaunch.cli.prepare import interpreter
from ddplaunch.cli.streams import answer, tell
from ddplaunch.cli.target import parse_target, required
from ddplaunch.hosts.slurm.job_reasons import first_state
from ddplaunch.hosts.slurm.programs import submit as submit_to_slurm
from ddplaunch.planning.flag import Flag
from ddplaunch.planning.job.sbatch import BatchScript, decide_batch
from ddplaunch.planning.job.submission import Submission, decide_submission, refuse_secret_words, refuse_secrets
from ddplaunch.ui.shell import shell_words
from ddplaunch.ui.submit_view import manifest_text, printed_text, sbatch_text, submitted_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.variable_names import JOIN_SECRET

SLURM, KUBERNETES = "Slurm", "Kubernetes"  # panels of options that only one of them has

COMMAND = Command(
    examples=(
        (
            "ddplaunch submit --nodes 2 --gpus-per-node 4 --time 8:00:00 --dry-run -- train.py",
            "the batch script of a job of 8 processes; nothing is submitted",
        ),
        (
            "ddplaunch submit --to kubernetes --image train:1 --gpus-per-node 8 -- train.py",
            "the manifest of the same launch, for `kubectl apply -f -`",
        ),
    ),
    options=(
        Flag("nodes", "integer", "Job", "Nodes of the job [1].", "N", example="4"),
        Flag("gpus_per_node", "integer", "Job", "GPUs of each node, one process per GPU.", "N", example="4"),
        Flag("cpus_per_task", "integer", "Job", "CPUs of each node, shared by its processes.", "N"),
        Flag("mem", "text", "Job", "Host memory of each node: 200G.", "SIZE"),
        Flag("time", "text", "Job", "Time limit: 24:00:00, 2-00:00:00, or minutes.", "LIMIT"),
        Flag("partition", "text", SLURM, "Slurm partition.", "NAME"),
        Flag("job_name", "text", "Job", "Name of the job [the script's].", "NAME"),
        Flag("sbatch_arg", "many", SLURM, "Any other option of sbatch: --account=lab (repeatable).", "ARG"),
        Flag("setup", "many", SLURM, "Shell line to run before the launch: 'module load cuda' (repeatable).", "LINE"),
        Flag("signal", "text", SLURM, "Instead of SIGTERM before the limit: USR1@120.", "NAME@N", example="USR1@120"),
        Flag("requeue", "switch", SLURM, "Start again after preemption, a lost node or the time limit."),
        Flag("to", "text", "Job", "slurm or kubernetes [slurm].", "CLUSTER", offers=("slurm", "kubernetes")),
        Flag("image", "text", KUBERNETES, "The container image.", "IMAGE"),
        Flag("shm_size", "text", KUBERNETES, "Size of /dev/shm [16Gi].", "SIZE"),
        Flag("secret", "many", KUBERNETES, "A variable from a Secret (repeatable).", "VAR=SECRET/KEY"),
        Flag("volume", "many", KUBERNETES, "A claim or a host's folder, and where it is seen.", "CLAIM:/PATH[:ro]"),
        Flag("dry_run", "switch", OUTPUT, "Print the batch script, or the manifest alone; submit nothing."),
    ),
)

#: Options for the size of the job, which its own text sets instead of the command that it runs.
_SAID_BY_THE_JOB = ("nproc", "nnodes", "grace")


def submit(typed: TypedLaunch, **asked: Any) -> int:
    """Write the job for the script; submit it to Slurm unless ``--dry-run`` asks for the text, or print a manifest."""
    words = required(typed.script)
    cluster = _cluster(asked)
    merged = with_configuration(typed)
    submission = decide_submission(merged, asked, next((word for word in words if word != "-m"), ""))
    command = run_words(typed, submission, words)
    if cluster == "kubernetes":
        from ddplaunch.planning.job.manifest import decide_manifest

        refuse_secrets(merged.env, "`--secret {name}=SECRET/KEY` takes it from a Secret of the cluster")
        refuse_secret_words(
            words,
            "`--secret {name}=SECRET/KEY` takes it from a Secret of the cluster; the script reads {name}, or a shell "
            "passes it on: `-- sh -c 'exec python train.py --option \"${name}\"'`",
            "the script's arguments",
        )
        answer(manifest_text(decide_manifest(submission, asked, command)))
        if not asked["dry_run"]:
            tell(printed_text(submission, Terminal.of(sys.stderr)))
        return ExitStatus.DONE
    parse_target(words)
    refuse_secrets(merged.env, "`export {name}` in this shell and leave `--env` out: sbatch hands the environment on")
    for flag in ("setup", "sbatch_arg"):
        fix = "`export {name}=…` in this shell instead: sbatch hands the environment on"
        refuse_secret_words(asked.get(flag) or (), fix, f"flag: --{flag.replace('_', '-')}")
    batch = decide_batch(submission, asked, (*program(), *command))
    text = sbatch_text(batch, os.environ)
    if asked["dry_run"]:
        answer(text)
        return ExitStatus.DONE
    return _submit(batch, text)


def run_words(typed: TypedLaunch, submission: Submission, script: Sequence[str]) -> tuple[str, ...]:
    """Return ``run``, the options typed for it, ``--`` and the script; the nodes read the profile themselves."""
    words = ["run", *([str(submission.processes)] if submission.processes is not None else [])]
    if submission.grace_s is not None:
        words += ["--grace", str(submission.grace_s)]
    return (*words, *typed.words(_SAID_BY_THE_JOB), "--", *script)


def program() -> tuple[str, ...]:
    """Return the command for this ddplaunch, by its full path, because PATH may differ on the nodes."""
    script = Path(sys.executable).with_name("ddplaunch")
    return (str(script),) if os.access(script, os.X_OK) else (*interpreter(), "-m", "ddplaunch")


def _submit(batch: BatchScript, text: str) -> int:
    hidden = shell_words(batch.command, os.environ)[1]
    environ, cwd = {JOIN_SECRET: os.urandom(16).hex(), **os.environ, **hidden}, working_directory()
    job = submit_to_slurm(text, cwd, environ)
    state = first_state(job, environ)
    log = None if state is None or batch.array else state.log
    log = log or _log(str(cwd / batch.log), job)
    tell(submitted_text(job, batch, log, state, Terminal.of(sys.stderr)))
    answer(f"{job}\n")
    return ExitStatus.DONE


def _log(pattern: str, job: str) -> str:
    """Return the path of a job's log; each job of an array has its own, named by its index."""
    head, _, name = pattern.rpartition("/")
    return f"{head}/{name.replace('%j', job).replace('%A', job).replace('%a', 'INDEX')}"


def _cluster(flags: dict[str, Any]) -> str:
    """Return ``slurm`` or ``kubernetes``. Raises UsageError for another name, and for options of the other cluster."""
    cluster = flags["to"] or "slurm"
    if cluster not in ("slurm", "kubernetes"):
        raise usage(
            f"`--to {cluster}` is not known",
            why="a launch can be handed to `slurm` or to `kubernetes`",
            fix="`--to kubernetes`",
            where="flag: --to",
        )
    panels = {SLURM, KUBERNETES} - {cluster.capitalize()}
    if option := next((option for option in COMMAND.options if option.panel in panels and flags[option.name]), None):
        raise usage(
            f"`{option.flag}` is not an option for {cluster}",
            why=f"it belongs to `--to {option.panel.lower()}`",
            fix=f"leave it out, or `--to {option.panel.lower()}`",
            where=f"flag: {option.flag}",
        )
    return cluster
