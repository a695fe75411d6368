"""The help of every command as data, one row each; the examples are run by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LAUNCH, WATCH, AFTERWARDS = "Launch", "While it runs", "Afterwards"
_FIRST_OF_A_LAUNCH = ("gpus", "batch_size", "base_lr", "env", "hosts")


class Help(NamedTuple):
    """One command: where the first screen lists it, its line there (56 characters at most), and its page.

    ``examples`` are two command lines, each with what it does. ``first`` are the options that the page shows, by name;
    the others are named by their groups. Without ``first`` it shows all. ``more`` stands below the line.
    """

    stage: str
    line: str
    examples: tuple[tuple[str, str], tuple[str, str]]
    first: tuple[str, ...] = ()
    more: str = ""


HELP: dict[str, Help] = {
    "run": Help(
        LAUNCH,
        "Check, plan, and become torchrun.",
        (
            ("ddplaunch run 4 --batch-size 8 -- train.py --epochs 20", "four processes, 8 samples each"),
            ("ddplaunch run 2 --device cpu --dry-run -- train.py", "the torchrun command; nothing is started"),
        ),
        (*_FIRST_OF_A_LAUNCH, "show", "timeout", "max_restarts", "profile", "dry_run"),
        "What stands behind `--` is the script with its own arguments: train.py, -m package.module, or any program.",
    ),
    "plan": Help(
        LAUNCH,
        "Show everything that run would decide; start nothing.",
        (
            ("ddplaunch plan 2 --batch-size 8 -- train.py", "every value, with who decided it"),
            ("ddplaunch plan --compare 1,2,4,8 --batch-size 8 --base-lr 1e-4", "the numbers for several world sizes"),
        ),
        ("compare", "gpus", "device", "batch_size", "global_batch_size", "base_lr", "dataset_size", "profile", "json"),
    ),
    "scale": Help(
        LAUNCH,
        "Measure 1, 2, 4 … processes, and what holds them back.",
        (
            ("ddplaunch scale --batch-size 8 -- train.py", "1, 2, 4 … processes, up to what this machine has"),
            ("ddplaunch scale 2 --device cpu --steps 20 -- train.py", "20 steps of two processes"),
        ),
        ("strong", "steps", "seconds", "batch_size", "dataset_size", "timeout", "keep", "resume", "json"),
        "Each size is a short run of the unchanged script; with --timeout it has so long until it is measured [10m].",
    ),
    "fit": Help(
        LAUNCH,
        "Find the batch that fits into memory, and the fastest.",
        (
            ("ddplaunch fit 4 --global-batch-size 512 -- train.py", "batch and accumulation for exactly 512 samples"),
            ("ddplaunch fit 2 --device cpu --memory 4GiB -- train.py", "4 GiB for each process, which none exceeds"),
        ),
        ("gpus", "memory", "headroom", "batch_size", "global_batch_size", "base_lr", "seconds", "timeout", "json"),
        "Each batch is a short run of the unchanged script; with --timeout it has so long until it is measured [10m].",
    ),
    "submit": Help(
        LAUNCH,
        "Submit the same launch to Slurm; print it for Kubernetes.",
        (
            (
                "ddplaunch submit --nodes 2 --gpus-per-node 4 --time 8:00:00 --dry-run -- train.py",
                "the batch script of a job of 8 processes; nothing is submitted",
            ),
            (
                "ddplaunch submit --to kubernetes --image train:1 --gpus-per-node 8 -- train.py",
                "the manifest of the same launch, for `kubectl apply -f -`",
            ),
        ),
        ("nodes", "gpus_per_node", "time", "partition", "account", "mem", "batch_size", "to", "wait", "dry_run"),
    ),
    "doctor": Help(
        LAUNCH,
        "Check this machine; add a launch to check it too.",
        (
            ("ddplaunch doctor", "drivers, GPUs, network, limits and files of this machine"),
            ("ddplaunch doctor 2 --device cpu -- train.py", "this launch and its script too"),
        ),
        ("comm", "hosts", "list_checks", "ignore", "data", "output", "report", "json"),
    ),
    "convert": Help(
        LAUNCH,
        "Say the launch lines of other launchers as its own.",
        (
            ("ddplaunch convert -- torchrun --nproc_per_node=4 train.py", "the command that starts the same ranks"),
            ("ddplaunch convert train.sh", "what changes in a script, as a diff; `--write` changes it"),
        ),
        more="It reads shell and sbatch scripts, accelerate's YAML, DeepSpeed's host files and PyTorchJob files.",
    ),
    "ps": Help(
        WATCH,
        "List running and recent runs of this machine.",
        (
            ("ddplaunch ps", "what runs, and what ended last in this directory"),
            ("ddplaunch ps --all --json", "every recorded run, with all details"),
        ),
    ),
    "logs": Help(
        WATCH,
        "Show what the ranks of a run printed.",
        (
            ("ddplaunch logs --rank 0 --lines 20", "the last 20 lines of rank 0 of the newest run"),
            ("ddplaunch logs --grep 'loss|error'", "the lines of all ranks that match"),
        ),
    ),
    "top": Help(
        WATCH,
        "Watch step rate, CPU, memory and GPU of every rank.",
        (
            ("ddplaunch top", "the youngest run of this directory, live"),
            ("ddplaunch top --json", "every sample as a line of JSON"),
        ),
    ),
    "stacks": Help(
        WATCH,
        "Show where every rank of a run is now, the odd one out first.",
        (
            ("ddplaunch stacks", "the innermost frames of every rank"),
            ("ddplaunch stacks --full", "every frame of every thread"),
        ),
    ),
    "stop": Help(
        WATCH,
        "End a run and the processes that it started.",
        (
            ("ddplaunch stop", "the only run of this directory"),
            ("ddplaunch stop --grace 2m", "two minutes to write a checkpoint"),
        ),
        more="Its torchrun gets SIGTERM; processes that outlive the grace get SIGKILL.",
    ),
    "explain": Help(
        AFTERWARDS,
        "Name the root cause of a failed run or of any log.",
        (
            ("ddplaunch explain", "the newest run of this directory"),
            ("ddplaunch explain shm-too-small", "what a code means, and what to do"),
        ),
        more="`-` reads a log from stdin.",
    ),
    "report": Help(
        AFTERWARDS,
        "Write one page about a run, for a colleague.",
        (
            ("ddplaunch report", "the newest run of this directory, as ddplaunch-RUN.html"),
            ("ddplaunch report --output run.html", "into run.html"),
        ),
        more="One file, no network: diagnosis, timeline, loss, environment and the last 10,000 lines.",
    ),
    "clean": Help(
        AFTERWARDS,
        "End processes whose launcher is gone; remove old records.",
        (
            ("ddplaunch clean --dry-run", "what would be ended and removed; changes nothing"),
            ("ddplaunch clean --keep 10 --yes", "keeps the records of ten runs, asks nothing"),
        ),
    ),
}


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether these words, in front of ``--``, ask for help rather than for a command."""
    return words[:1] == ["help"] or any(map(is_request, words))


def is_request(word: str) -> bool:
    """Whether this word asks for help."""
    return word in ("-h", "--help", "--help-all") or word.startswith("--help=")
