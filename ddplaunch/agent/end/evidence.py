"""Explains why an attempt ended, from its files and from other evidence of torchrun, the kernel and run.json."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent import has_other_nodes
from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
from ddplaunch.explain.diagnosis import Diagnosis, Explanation, LogSource, RunFacts
from ddplaunch.machine.cgroups import OOM_KILLS_BEFORE, oom_kills
from ddplaunch.machine.hardware import probe_shm
from ddplaunch.planning.settings import Settings
from ddplaunch.records.directory import read_stop
from ddplaunch.records.explain_sources import facts_of_run, log_sources
from ddplaunch.records.find import read_run
from ddplaunch.records.first_failure import steady_s
from ddplaunch.records.outcome import RunOutcome, rank_end
from ddplaunch.values.words import size_text

_MOST_LINES = 400
_RECORD = re.compile(rb"^\d+,\d+,(\d+),[^;]*;([^\n]*)")
_ANNOUNCED_S = 3600.0  # at most this long before the time limit; earlier signals mean something else
_FULL_BYTES = 1 << 20  # a disk with less free space counts as full


def explain_attempt(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> Explanation:
    """Explain ``attempt`` (None: no rank was started); ``ended`` is the run, None while it goes on."""
    lost = ended and ended.state == "error" and not ended.launcher_died and has_other_nodes()
    if ended and lost and attempt and not ended.first_failed():
        return Explanation(_elsewhere(ended))
    try:
        from ddplaunch.explain.explain_logs import explain_texts

        facts = _facts(settings, attempt, ended)
        return _located(explain_texts(_sources(settings, attempt, ended), facts), settings, attempt, facts)
    except Exception as exception:  # a failed explanation must not hide the run's failure
        what = f"the run failed, and explaining why failed too: {type(exception).__name__}: {exception}"
        look = "`ddplaunch explain` reads all that was printed; the end of each rank's output is in the record"
        return Explanation(Diagnosis("unknown", "unknown", what, "ddplaunch has a bug there", (look,)))


def _located(
    explanation: Explanation, settings: Settings, attempt: EndedAttempt | None, facts: RunFacts
) -> Explanation:
    """Return ``explanation``; if a collective failed, add each rank's place from stacks and torch's flight recorder."""
    from ddplaunch.explain.decide.flight import flight, read_dumps
    from ddplaunch.explain.stacks.hang import located

    found = explanation.diagnosis
    if not found or not found.code.startswith("collective-"):
        return explanation
    size = (facts.plan or {}).get("world_size")
    dumps = read_dumps(Path(settings.directory)) if settings.directory else {}
    recorded = flight(dumps, size if isinstance(size, int) else 0)
    return replace(explanation, diagnosis=located(found, attempt.stacks if attempt else (), recorded))


def _elsewhere(ended: EndedRun) -> Diagnosis:
    """Return the diagnosis if no rank failed here but torchrun lost another node: the reason is not on this node."""
    return Diagnosis(
        "unknown",
        "unknown",
        "no rank failed on this node; torchrun ended them because another node was gone",
        f"the other nodes' torchruns hold the reason; this one saw {ended.error.partition(':')[0] or 'nothing'}",
        ("look at the other nodes: the one where a rank failed names it; `ddplaunch explain` there says it again",),
        host=ended.host,
    )


def _sources(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> list[LogSource]:
    """Return the files of the attempt, and torchrun's own messages if the run is over."""
    base = Path(settings.directory)
    ranks = attempt.ranks if attempt else ()
    unwritten = attempt.unwritten if attempt else {}
    sources: list[LogSource] = []
    for one in ranks:
        for name in filter(None, (one.out, one.err)):
            sources += log_sources(base, name, one.rank, one.host, unwritten.get(name, b""))
    if ended:
        name = f"node-{settings.node}/launcher.err"
        sources += log_sources(base, name, None, ended.host, unwritten.get(name, b""))
    return sources


def _facts(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> RunFacts:
    """Return the facts of the run that are not in the log files."""
    run = read_run(Path(settings.directory), settings.node) if settings.directory else {}
    shm = probe_shm()
    stop = (
        None
        if not ended or ended.signal != signal.SIGTERM or not settings.directory
        else read_stop(Path(settings.directory), ended.started_s)
    )
    now, before = oom_kills(), os.environ.get(OOM_KILLS_BEFORE, "")
    return replace(
        facts_of_run(run),
        ranks=tuple(map(rank_end, attempt.ranks)) if attempt else (),
        state=ended.run_state() if ended else None,
        signal=ended.signal if ended else None,
        oom_kills=now - int(before) if now is not None and before.isdecimal() else None,
        dmesg=kernel_lines(attempt.started_s) if attempt else (),
        shm_free_bytes=getattr(shm, "free_bytes", None),
        shm_size_bytes=getattr(shm, "size_bytes", None),
        full_disks=full_disks([settings.directory or ".", ".", *settings.outputs]),
        stopped_by=None if not stop or stop.launcher_lost else stop.user,
        launcher_lost=stop is not None and stop.launcher_lost,
        just_ended=True,
    )


def full_disks(folders: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return those of ``folders``, home and the temporary folder that have no room, as (folder, how much is free)."""
    folder_by_room: dict[str, str] = {}
    for folder in (*folders, "~", os.environ.get("TMPDIR", "/tmp")):
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: no home
            size_bytes, _, free_bytes = shutil.disk_usage(Path(folder).expanduser())
            if free_bytes < _FULL_BYTES:
                folder_by_room.setdefault(f"{size_text(free_bytes)} of {size_text(size_bytes)} are free", folder)
    return tuple((folder, room) for room, folder in folder_by_room.items())


def announced(settings: Settings, ended: EndedRun, outcome: RunOutcome) -> Diagnosis | None:
    """Return the diagnosis of ranks that exited after the signal by which schedulers announce an end.

    None if there was no such signal, or the exit has another explanation. Only node 0 asks Slurm.
    """
    found, came = outcome.diagnosis, ended.announced
    left = next(
        (each for each in outcome.last_ranks if each.rank == outcome.first_failed_rank and each.exit_code), None
    )
    known = found and found.code != "unknown"
    if came is None or left is None or known or outcome.state != "failed" or (left.ended_s or 0.0) < came[1] - 1.0:
        return None
    how = f"rank {left.rank} ended with exit code {left.exit_code} after {came[0]}"
    said = Diagnosis(
        "terminated",
        "observed",
        how,
        "schedulers announce an end by it, and a rank that has saved leaves then; no line gives another reason",
        ("nothing, if the script saves then and resumes: `--signal` with `--requeue` queues its job again",),
        left.rank,
        left.host or ended.host,
    )
    if settings.node:
        return said
    from ddplaunch.hosts.slurm.job_reasons import why_ended

    slurms = why_ended(os.environ, _ANNOUNCED_S, came[1], how)
    if not slurms or slurms.code != "time-limit":
        return slurms or said
    return replace(said, code=slurms.code, what=slurms.what, evidence=slurms.evidence)


def kernel_lines(since_s: float) -> tuple[str, ...]:
    """Return the kernel's log lines since ``since_s`` (epoch), () if this user may not read ``/dev/kmsg``.

    https://docs.kernel.org/admin-guide/abi-testing.html (ABI file dev-kmsg).
    """
    since_boot_us = (since_s - steady_s() + time.clock_gettime(time.CLOCK_MONOTONIC)) * 1e6
    lines: list[str] = []
    with contextlib.suppress(OSError), open(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK), "rb") as log:
        while True:
            try:
                match = _RECORD.match(os.read(log.fileno(), 8192))  # raises BlockingIOError at the end
            except BrokenPipeError:  # the line was overwritten: read the next one
                continue
            if match and int(match[1]) >= since_boot_us:
                lines.append(match[2].decode("utf-8", "replace"))
    return tuple(lines[-_MOST_LINES:])
