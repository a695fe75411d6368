"""One attempt of a run, its files and what is known beside them, to an explanation; refuses to fail over any of it.

Evidence outside the logs, read when a run has failed: the kernel's and the record's; refuses to judge it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
from ddplaunch.agent.end.verdict import first_failed, signal_name, state_of
from ddplaunch.explain.diagnosis import Diagnosis, Explanation, LogSource, RankEnd, RunFacts
from ddplaunch.launch.settings import Settings
from ddplaunch.machine.files import read
from ddplaunch.machine.hardware import levels

#: The variable with which the plug-in leaves to the guard what ``oom_kills`` was before the run.
OOM_KILLS_BEFORE = "DDPLAUNCH_OOM_KILLS_BEFORE"
_MOST_LINES = 400
_RECORD = re.compile(rb"^\d+,\d+,(\d+),[^;]*;([^\n]*)")


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for memory in this process's cgroup so far, None if unknown.

    ``oom_kill`` of memory.events, of memory.oom_control with cgroup v1:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    found = levels("memory")
    for folder in found.folders:
        for name in ("memory.events", "memory.oom_control"):
            match = re.search(r"^oom_kill (\d+)$", read(f"{folder}/{name}") or "", re.MULTILINE)
            if match:
                return int(match[1])
    return None


def kernel_lines(since_s: float) -> tuple[str, ...]:
    """Return what the kernel has logged since (epoch), where this user may read it; ``/dev/kmsg`` is in its docs:
    https://docs.kernel.org/admin-guide/abi-testing.html (ABI file dev-kmsg).
    """
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    since_boot_us = (since_s - time.time() + time.clock_gettime(time.CLOCK_MONOTONIC)) * 1e6
    lines: list[str] = []
    try:
        while True:
            try:
                match = _RECORD.match(os.read(log, 8192))
            except BrokenPipeError:  # overwritten while it was read: the next one is there
                continue
            if match and int(match[1]) >= since_boot_us:
                lines.append(match[2].decode("utf-8", "replace"))
    except OSError:  # BlockingIOError at the end
        pass
    finally:
        os.close(log)
    return tuple(lines[-_MOST_LINES:])


def space(path: str) -> tuple[int, int] | None:
    """Return free and all bytes of the file system that holds ``path``, None if it cannot be asked."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def run_record(directory: Path | None, node: int) -> Mapping[str, Any]:
    """Return run.json of this node, empty where there is none."""
    for holder in () if directory is None else (directory / f"node-{node}", directory):
        try:
            value = json.loads((holder / "run.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def explain_attempt(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> Explanation:
    """Explain ``attempt`` (None: no rank was ever started); ``ended`` is the run, None while it goes on."""
    lost = ended is not None and ended.state == "error" and not ended.launcher_died
    if ended is not None and lost and attempt is not None and first_failed(attempt, None) is None:
        return Explanation(_elsewhere(ended))
    try:
        from ddplaunch.explain.explain_logs import explain_texts

        explanation = explain_texts(sources(settings, attempt, ended), facts(settings, attempt, ended))
    except Exception as exception:  # what explains a failure must not hide it
        return Explanation(by_exit(attempt, ended, f"; explaining it failed: {type(exception).__name__}: {exception}"))
    return explanation if explanation.diagnosis is not None else Explanation(by_exit(attempt, ended, ""))


def _elsewhere(ended: EndedRun) -> Diagnosis:
    """Ranks ran, none of them failed, and torchrun lost the others: the reason is not on this node."""
    return Diagnosis(
        "unknown",
        "unknown",
        "no rank failed on this node; torchrun ended them because another node was gone",
        f"the other nodes' torchruns hold the reason; this one saw {ended.error.partition(':')[0] or 'nothing'}",
        ("look at the other nodes: the one where a rank failed names it; `ddplaunch explain` there says it again",),
        host=ended.host,
    )


def sources(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> list[LogSource]:
    """Return the files of the attempt, and torchrun's own messages where the run is over."""
    base = settings.directory or "."
    host = ended.host if ended is not None else os.uname().nodename
    found = []
    for rank in () if attempt is None else attempt.ranks:
        for path in (rank.out, rank.err):
            if path is not None and path.is_file():
                found.append(LogSource(os.path.relpath(path, base), path, rank.rank, host))
    launcher = Path(base) / f"node-{settings.node}" / "launcher.err"
    if ended is not None and launcher.is_file():
        found.append(LogSource(os.path.relpath(launcher, base), launcher, None, host))
    return found


def facts(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> RunFacts:
    """Return what is known beside the files."""
    directory = Path(settings.directory) if settings.directory else None
    record = run_record(directory, settings.node)
    host = ended.host if ended is not None else os.uname().nodename
    shm = space("/dev/shm")
    now, before = oom_kills(), os.environ.get(OOM_KILLS_BEFORE, "")
    argv = record.get("argv")
    return RunFacts(
        ranks=tuple(
            RankEnd(each.rank, host, each.exit_code, _signal(each.signal), each.ended_s, each.ended_by)
            for each in (() if attempt is None else attempt.ranks)
        ),
        state=None if ended is None else state_of(ended),
        signal=None if ended is None else ended.signal,
        plan=record.get("plan"),
        argv=tuple(map(str, argv)) if isinstance(argv, list) else None,
        oom_kills=now - int(before) if now is not None and before.isdecimal() else None,
        dmesg=kernel_lines(attempt.started_s) if attempt is not None else (),
        shm_free_bytes=shm[0] if shm else None,
        shm_size_bytes=shm[1] if shm else None,
    )


def _signal(number: int | None) -> str | None:
    return None if number is None else signal_name(number)


def by_exit(attempt: EndedAttempt | None, ended: EndedRun | None, also: str) -> Diagnosis | None:
    """Return what can be said without any log: which rank ended first and how; None where nothing failed."""
    first = None if attempt is None else first_failed(attempt, None)
    look = "`ddplaunch explain` reads all that was printed; the end of each rank's output is in the record"
    if first is not None:
        how = f"was killed by {_signal(first.signal)}" if first.signal else f"exited with status {first.exit_code}"
        what = f"rank {first.rank} {how} before the others, and no line says why{also}"
        return Diagnosis("unknown", "unknown", what, "its output names no cause that is known", (look,), first.rank)
    if ended is None or ended.state in ("succeeded", "signal"):
        return None
    what = f"torchrun failed: {ended.error}" if ended.error else "torchrun ended without a word"
    return Diagnosis("unknown", "unknown", f"{what.splitlines()[0]}{also}", "no rank failed by itself", (look,))
