"""What findings mean that no check makes, for `explain CODE`: of the command line, numbers, runs; decides nothing.

A check explains itself by its docstring. What is refused where options are read, hosts reached or runs looked after has
its words here and in ``refusals_hosts``: a code, one line of what it says, and why it happens and what helps.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check
from ddplaunch.checks.refusals_hosts import HOSTS
from ddplaunch.finding import Finding

_LAUNCH = (
    (
        "separator-missing",
        "The script is not behind `--`",
        "What is in front of `--` belongs to ddplaunch, all behind it to the script, so that no option is taken for "
        "the other's. Remedy: the line that the finding prints.",
    ),
    (
        "script-missing",
        "Nothing stands behind `--`",
        "The script and its arguments go there. Remedy: `ddplaunch run 4 -- train.py --epochs 20`.",
    ),
    (
        "script-not-runnable",
        "What stands behind `--` cannot be run",
        "It is a directory, or a file that is neither Python nor executable. Remedy: `chmod +x`, or the right file.",
    ),
    (
        "working-directory-missing",
        "The working directory was deleted",
        "Scripts, configuration and records are looked up from it. Remedy: `cd` to a directory that exists.",
    ),
    (
        "argument-too-long",
        "A word of the command line is longer than Linux passes to a program",
        "The limit is 128 KiB a word (MAX_ARG_STRLEN, execve(2)). Remedy: write it to a file and pass the file's name.",
    ),
    (
        "stdout-not-writable",
        "stdout cannot be written",
        "A full disk or a closed pipe is behind it, and what was asked for goes there.",
    ),
    (
        "placeholder-without-number",
        "A placeholder in the script's arguments has no value",
        "`{lr}` and the like are replaced by numbers of the plan. Remedy: the flag that gives the number, or `{{lr}}` "
        "where the braces are meant.",
    ),
    (
        "secret-in-job",
        "A batch script or manifest would hold a secret",
        "Clusters keep that text and show it to others. Remedy: a reference, as `--env NAME` or a Kubernetes secret.",
    ),
)
_GPUS = (
    (
        "gpu-not-found",
        "`--gpus` names a GPU that is not there",
        "Indices count from 0 in the driver's order; UUIDs are those of `nvidia-smi -L`. Remedy: `ddplaunch doctor`.",
    ),
    (
        "gpus-invalid",
        "`--gpus` is none of indices, UUIDs and `free:N`",
        "Remedy: `--gpus 0,1`, `--gpus GPU-8f…`, or `--gpus free:2`.",
    ),
    (
        "gpus-not-free",
        "Fewer GPUs are free than `--gpus free:N` asks for",
        "A GPU counts as free when no process holds memory on it and no other launch has it locked. Remedy: wait, ask "
        "for fewer, or name GPUs that are to be shared.",
    ),
    (
        "no-gpu-to-count",
        "`auto` has no GPUs to count",
        "It is one process for each visible GPU. Remedy: a number, or `--device cpu`.",
    ),
)
_NUMBERS = (
    (
        "batch-disagrees",
        "Batch size, accumulation and global batch size contradict each other",
        "effective batch = batch size × accumulation × world size: two of them decide the third. Remedy: leave one "
        "away.",
    ),
    (
        "batch-does-not-divide",
        "The global batch size cannot be shared evenly",
        "DDP averages over ranks with equal weights, so each must take equally many samples per optimizer step. "
        "Remedy: one of the neighbours that the finding names.",
    ),
    (
        "batch-unknown",
        "A number needs the batch size, and none is known",
        "Steps per epoch and scaled learning rates follow from the effective batch. Remedy: `--batch-size`.",
    ),
    (
        "dataset-smaller-than-world",
        "There are fewer samples than ranks",
        "DistributedSampler would repeat samples, or leave ranks without any. Remedy: fewer processes.",
    ),
    (
        "lr-given-twice",
        "`--lr` and `--base-lr` are both given",
        "`--lr` is final, `--base-lr` is scaled to the effective batch: both set one value. Remedy: one of them.",
    ),
    (
        "nothing-to-scale",
        "An option of scaling has nothing to scale",
        "It only decides what `--base-lr` and `--base-warmup` are multiplied by. Remedy: one of these, or leave it "
        "out.",
    ),
    (
        "number-out-of-range",
        "A number is outside of what can be computed with",
        "torch counts in signed 64-bit integers, and a learning rate is a positive finite number.",
    ),
    (
        "unknown-lr-scaling",
        "`--lr-scaling` names no rule",
        "`linear`, `sqrt` and `none` are defined.",
    ),
)
_RUNS = (
    (
        "run-not-found",
        "No run of that name is recorded here",
        "Records are in `.ddplaunch/runs` below the working directory, unless `--run-dir` or DDPLAUNCH_DIR moved "
        "them. Remedy: `ddplaunch ps --all`.",
    ),
    (
        "no-output-recorded",
        "The run has no output of that rank",
        "It has other ranks, or was started with `--no-capture`.",
    ),
    (
        "no-metrics-recorded",
        "The run has no recorded metrics",
        "They are kept where a run is started with `--record-metrics`.",
    ),
    (
        "not-permitted",
        "Processes of the run belong to somebody else",
        "Only their owner and root may end them.",
    ),
    (
        "other-hosts",
        "The run has processes on other hosts",
        "A process is ended on the host that it runs on. Remedy: the same command there.",
    ),
    (
        "does-not-end",
        "A process is still there after SIGKILL",
        "In state D the kernel waits for a device or a file server and takes no signal until it answers. Remedy: "
        "restart the file server or the machine.",
    ),
    (
        "gpu-memory-not-freed",
        "A GPU still counts memory of processes that are gone",
        "The driver has not taken it back, or a process in another container shares it. Remedy: `sudo fuser -v "
        "/dev/nvidia*`, and a reset of the GPU as the last resort.",
    ),
    (
        "record-not-removed",
        "A record could not be deleted",
        "It belongs to somebody else, or is on a file system that is read-only.",
    ),
    (
        "stacks-unavailable",
        "No rank shows where it is",
        "py-spy is missing or may not look, and the run was not started with `--stacks`. Remedy: one of the two.",
    ),
)


def _nothing() -> Iterator[Finding]:
    yield from ()


def _described(family: str, entries: tuple[tuple[str, str, str], ...]) -> Iterator[Check]:
    for code, title, text in entries:
        yield Check(code, family, title, text, (), _nothing)


REFUSALS: tuple[Check, ...] = (
    *_described("hosts", HOSTS),
    *_described("launch", _LAUNCH),
    *_described("gpu", _GPUS),
    *_described("numbers", _NUMBERS),
    *_described("runs", _RUNS),
)


def by_code(code: str) -> Check | None:
    """Return the words of that code."""
    return next((each for each in REFUSALS if each.code == code), None)
