"""A submission as options of Slurm: the job's for sbatch, and those of the step inside it for srun.

https://slurm.schedmd.com/sbatch.html, https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ddplaunch.planning.flag import split_words
from ddplaunch.planning.inside.slurm import Slurm
from ddplaunch.planning.job.submission import Submission
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count

#: The first task that fails ends the step at once; after the first that succeeds, the others have a minute.
STEP = ("srun", "--kill-on-bad-exit=1", "--wait=60")
#: Log files in the directory where the job starts, as by sbatch's default.
LOG, LOG_OF_ARRAY = "--output=slurm-%j.out", "--output=slurm-%A_%a.out"
_ARRAY = re.compile(r"--array(?:=|\Z)|-a")
#: Options that ddplaunch writes itself, long and short.
_OURS = re.compile(
    r"(?:--(?:nodes|gpus-per-node|cpus-per-task|time|partition|mem|requeue|wait|ntasks"
    r"|ntasks-per-node|signal)|-[NctpnW])\Z"
)


@dataclass(frozen=True)
class BatchScript:
    """The content of a batch script. ``directives`` are options of sbatch, ``setup`` are the user's lines as typed.

    ``step`` is the srun command that runs ``command``. A failure ``requeue_after_s`` seconds or more into the job is
    put down to the time limit; None: no failure is. ``requeue_on`` is a signal and how many seconds before the time
    limit it comes: after it the job is queued again unless the step succeeds.
    """

    about: str
    directives: tuple[str, ...]
    setup: tuple[str, ...]
    step: tuple[str, ...]
    command: tuple[str, ...]
    requeue_after_s: int | None = None
    requeue_on: tuple[str, int] | None = None

    @property
    def log(self) -> str:
        """The name of the job's log file, with Slurm's patterns in it, unless ``--sbatch-arg`` names another."""
        return (LOG_OF_ARRAY if self.array else LOG).partition("=")[2]

    @property
    def array(self) -> bool:
        """Whether the script becomes an array: several jobs, one for each index."""
        return any(_ARRAY.match(directive) for directive in self.directives)


def decide_batch(submission: Submission, flags: Mapping[str, Any], command: tuple[str, ...]) -> BatchScript:
    """Return the batch script; ``flags`` are ``submit``'s options by name, ``command`` is ddplaunch with its arguments.

    The log's name is relative to the working directory: an absolute path may hold characters that Slurm misreads in
    ``#SBATCH`` lines. Raises UsageError for a ``--sbatch-arg`` that is not one option, or that contradicts the job.
    """
    extra = [word for value in flags.get("sbatch_arg") or () for word in _extra(value)]
    array = next((word for word in extra if _ARRAY.match(word)), None)
    directives = [
        f"--job-name={submission.name}",
        f"--nodes={submission.nodes}",
        "--ntasks-per-node=1",
        *_given("--gpus-per-node", submission.gpus_per_node),
        *_given("--cpus-per-task", submission.cpus_per_task),
        *_given("--mem", submission.memory),
        *_given("--time", submission.time),
        *_given("--partition", flags.get("partition")),
        LOG if array is None else LOG_OF_ARRAY,
        *(["--requeue", "--open-mode=append"] if submission.requeue else ["--no-requeue"]),
        *_signal(submission),
        *extra,
    ]
    cpus = _given("--cpus-per-task", submission.cpus_per_task)  # srun does not inherit it since 22.05
    return BatchScript(
        about=_about(submission),
        directives=tuple(directives),
        setup=tuple(flags.get("setup") or ()),
        step=(*STEP, "--ntasks-per-node=1", *cpus),
        command=command,
        requeue_after_s=_requeue_after(submission),
        requeue_on=submission.signal if submission.requeue else None,
    )


def step_argv(slurm: Slurm, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the srun command that starts one task on each node of this process's allocation.

    The one task gets the CPUs of all tasks that the job asked for per node. If the job asked for GPUs per task, its
    tasks stay as they are. ``--overlap``: the shell of ``salloc`` or ``srun --pty`` may be a step that holds the
    nodes' CPUs.
    """
    if environ.get("SLURM_GPUS_PER_TASK") or "gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
        return (*STEP, "--export=ALL", "--overlap")
    cpus = environ.get("SLURM_CPUS_PER_TASK", "")
    tasks = environ.get("SLURM_NTASKS_PER_NODE", "1")
    counted = cpus.isdigit() and tasks.isdigit()
    return (
        *(*STEP, f"--nodes={slurm.nodes}", f"--ntasks={slurm.nodes}", "--ntasks-per-node=1"),
        *([f"--cpus-per-task={int(cpus) * int(tasks)}"] if counted else []),
        *("--export=ALL", "--overlap"),
    )


def _signal(submission: Submission) -> list[str]:
    """Return sbatch's ``--signal``. ``B:`` signals only the batch script, which passes it on and requeues the job."""
    if submission.signal is not None:
        name, seconds = submission.signal
        return [f"--signal={'B:' if submission.requeue else ''}{name}@{seconds}"]
    return [f"--signal=TERM@{submission.grace_s}"] if submission.grace_s is not None else []


def _about(submission: Submission) -> str:
    nodes, gpus = submission.nodes, submission.gpus_per_node
    gpus_text = "" if gpus is None else f" with {count(gpus, 'GPU')}{' each' if nodes > 1 else ''}"
    return f"{submission.script} on {count(nodes, 'node')}{gpus_text}"


def _requeue_after(submission: Submission) -> int | None:
    """Return ``BatchScript.requeue_after_s``. The signal may come 60 s early, hence the margin.

    Slurm's own requeueing covers only preemption and lost nodes.
    """
    if not submission.requeue or submission.time_s is None or submission.grace_s is None:
        return None
    return max(0, submission.time_s - submission.grace_s - 65)


def _given(option: str, value: object) -> list[str]:
    return [] if value is None else [f"{option}={value}"]


def _extra(text: str) -> list[str]:
    """Return one ``--sbatch-arg`` as a single word, the option joined with its value. Raises UsageError."""
    words = split_words("--sbatch-arg", text, "--exclude=node7", "flag: --sbatch-arg")
    if not words or not words[0].startswith("-") or len(words) > 2 or (len(words) == 2 and "=" in words[0]):
        raise usage(
            f"`--sbatch-arg {text}` is not one option of sbatch",
            why="it becomes one `#SBATCH` line; repeat it for more",
            fix="`--sbatch-arg --exclude=node7 --sbatch-arg --exclusive`",
            where="flag: --sbatch-arg",
        )
    name = words[0].partition("=")[0] if words[0].startswith("--") else words[0][:2]
    if _OURS.match(name):
        raise usage(
            f"`--sbatch-arg {text}` contradicts the job",
            why=f"ddplaunch writes `{name}` itself",
            fix="say it by the option of `ddplaunch submit`: `ddplaunch submit --help` lists them",
            where="flag: --sbatch-arg",
        )
    if len(words) == 1:
        return words
    return [f"{words[0]}={words[1]}"] if words[0].startswith("--") else [words[0] + words[1]]
