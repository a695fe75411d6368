"""A launch as a job for any kind of cluster: its name, size, limits and grace, from what was typed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.planning.options import Options
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, value_of
from ddplaunch.values.secrets import hide_words, in_words, is_secret

_GRACE_S = 60  # default with --requeue: ranks must be told to end before the time limit
_TIME = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,6})(?::([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_MEMORY = re.compile(r"[1-9][0-9]{0,9}([KMGT])?\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Submission:
    """One job. ``script`` is the name under which users know the script.

    ``processes`` is the number per node, None if the cluster's GPUs decide it. The ranks are told to end ``grace_s``
    seconds before the time limit ``time_s``, or get ``signal``, a name and its own number of seconds before the limit.
    ``memory`` is per node, as typed.
    """

    name: str
    script: str
    nodes: int
    processes: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    memory: str | None = None
    time: str | None = None
    time_s: int | None = None
    grace_s: int | None = None
    requeue: bool = False
    signal: tuple[str, int] | None = None


def decide_submission(options: Options, flags: Mapping[str, Any], script: str) -> Submission:
    """Return the job for the options of the launch and those of ``submit`` itself (``flags``, by name of the flag).

    Raises UsageError for options that contradict each other, impossible values, and values that the cluster decides.
    """
    _refuse_what_the_cluster_decides(options)
    for flag in ("nodes", "gpus_per_node", "cpus_per_task"):
        value = flags.get(flag)
        if value is not None and value < 1:
            raise impossible_value(flag, value, "it counts from 1", {"nodes": "2", "gpus_per_node": "4"}.get(flag, "8"))
    nodes = _nodes(options, flags.get("nodes"))
    processes = None if options.nproc is None or options.nproc.value == "auto" else options.nproc.value
    gpus = flags.get("gpus_per_node")
    if gpus is None and value_of(options.device, "auto") != "cpu":
        gpus = processes
    if processes is not None and gpus is not None and processes > gpus:
        raise usage(
            f"{processes} processes per node, but `--gpus-per-node {gpus}`",
            why="every process needs a GPU of its own",
            fix=f"`--gpus-per-node {processes}`, or leave the number of processes out",
        )
    time = flags.get("time")
    memory = flags.get("mem")
    if memory is not None and not _MEMORY.match(memory):
        raise impossible_value("mem", memory, "it is memory per node: a number and K, M, G or T", "200G")
    requeue, signal = bool(flags.get("requeue")), _signal(options, flags.get("signal"))
    time_s = None if time is None else parse_time(time)
    return Submission(
        name=job_name(flags.get("job_name") or script),
        script=script,
        nodes=nodes,
        processes=processes,
        gpus_per_node=gpus,
        cpus_per_task=flags.get("cpus_per_task"),
        memory=memory,
        time=time,
        time_s=time_s,
        grace_s=None if signal else _grace(options, requeue, time_s),
        requeue=requeue,
        signal=signal,
    )


def parse_time(text: str) -> int:
    """Return the seconds of a time limit in Slurm's spelling: MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS.

    https://slurm.schedmd.com/sbatch.html#OPT_time. Raises UsageError for anything else.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise impossible_value("time", text, "it is MINUTES, HH:MM:SS or DAYS-HH:MM:SS", "24:00:00")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part]
    if days is None and len(numbers) < 3:
        numbers.insert(0, 0)  # no hours
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        why = "Slurm takes 0 for no limit at all, which most partitions refuse"
        raise impossible_value("time", text, why, "24:00:00")
    return total


def job_name(text: str) -> str:
    """Return a name that every cluster accepts (a DNS label): ``my-train`` for ``src/My_train.py``."""
    stem = text.rpartition("/")[2].removesuffix(".py").lower()
    label = re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-")
    return label if label[:1].isalpha() else f"job-{label}".strip("-")


def refuse_secrets(env: tuple[Resolved[tuple[str, str]], ...], fix: str) -> None:
    """Raise UsageError for a secret in ``--env``: others can read a job's text. ``{name}`` in ``fix`` is replaced."""
    for item in env:
        name, value = item.value
        if is_secret(name, value):
            raise usage(
                f"`--env {name}=…` would write a secret into the text of the job",
                why="clusters keep that text and show it to others",
                fix=fix.replace("{name}", name),
                where=str(item.source),
                code="secret-in-job",
            )


def refuse_secret_words(words: Sequence[str], fix: str, place: str) -> None:
    """Raise UsageError for a word that holds a secret. ``{name}`` in ``fix`` becomes a name of a variable for it."""
    for i, spans in enumerate(in_words(words)):
        if spans:
            previous = words[i - 1] if i and spans[0] == (0, len(words[i])) else ""
            shown = " ".join([*([previous] if previous.startswith("-") else []), hide_words(words)[i]])
            named = (previous or words[i].partition("=")[0]).lstrip("-").replace("-", "_").upper()
            raise usage(
                f"`{shown}` would write a secret into the text of the job",
                why="clusters keep that text and show it to others",
                fix=fix.replace("{name}", named if named.isidentifier() else "SECRET"),
                where=place,
                code="secret-in-job",
            )


def _nodes(options: Options, nodes: int | None) -> int:
    if options.nnodes is None:
        return 1 if nodes is None else nodes
    fewest, most = options.nnodes.value
    if fewest != most:
        raise usage(
            f"`--nnodes {fewest}:{most}` cannot be submitted",
            why="a job is given a fixed number of nodes",
            fix=f"`--nodes {most}`",
            where=str(options.nnodes.source),
        )
    if nodes is not None and nodes != most:
        raise usage(
            f"`--nodes {nodes}` contradicts {most} {'node' if most == 1 else 'nodes'} from {options.nnodes.source}",
            why="both set the number of nodes",
            fix=f"`--nodes {nodes}` alone",
        )
    return most


def _refuse_what_the_cluster_decides(options: Options) -> None:
    decided: tuple[tuple[str, Resolved[Any] | None, str], ...] = (
        ("--gpus", options.gpus, "`--gpus-per-node N`"),
        ("--node-rank", options.node_rank, "leave it out"),
        ("--master-addr", options.master_addr, "leave it out"),
    )
    for flag, value, fix in decided:
        if value is not None:
            raise usage(
                f"`{flag} {value.value}` cannot be known before the job runs",
                why="the cluster chooses nodes and GPUs, and ddplaunch reads its share on each node",
                fix=fix,
                where=str(value.source),
            )


_SIGNAL = re.compile(r"(?:SIG)?(USR1|USR2|TERM|INT|HUP)@([1-9][0-9]{0,5})\Z")


def _signal(options: Options, text: str | None) -> tuple[str, int] | None:
    """Return (name, seconds) of `--signal USR1@120`. Raises UsageError for other spellings, and with `--grace`."""
    if text is None:
        return None
    match = _SIGNAL.match(text)
    if match is None:
        why = "it is USR1, USR2, TERM, INT or HUP, `@`, and the seconds before the time limit"
        raise impossible_value("signal", text, why, "USR1@120")
    if options.grace_s is not None:
        raise usage(
            f"`--signal {text}` with `--grace {options.grace_s.value:g}`",
            why="Slurm sends one signal before the time limit, and both ask for one: `--grace` for SIGTERM",
            fix=f"one of them; `--grace {match[2]}` is `--signal TERM@{match[2]}`",
            where="flag: --signal",
        )
    return match[1], int(match[2])


def _grace(options: Options, requeue: bool, time_s: int | None) -> int | None:
    default = _GRACE_S if requeue and time_s is not None else None
    grace = default if options.grace_s is None else round(options.grace_s.value)
    if grace is not None and time_s is not None and grace >= time_s:
        raise usage(
            f"`--grace {grace}` is not less than the time limit of {time_s} s",
            why="the ranks would get the signal to end before they start",
            fix=f"`--grace {max(1, time_s // 10)}`, or a longer `--time`",
        )
    return grace


def impossible_value(flag: str, value: object, why: str, example: str) -> UsageError:
    """Return the error for a value of one of ``submit``'s own flags; an empty value counts as missing."""
    spelled = "--" + flag.replace("_", "-")
    what = f"`{spelled}` is missing" if value == "" else f"`{spelled} {value}` is not possible"
    return usage(what, why=why, fix=f"`{spelled} {example}`", where=f"flag: {spelled}")
