"""Why one attempt of a run ended, from its files and from what torchrun, the kernel and run.json know beside them."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
from ddplaunch.explain.diagnosis import Diagnosis, Explanation, LogSource, RunFacts
from ddplaunch.launch.settings import Settings
from ddplaunch.machine.files import read
from ddplaunch.machine.hardware import levels
from ddplaunch.records.explain_sources import facts_of_run
from ddplaunch.records.find import read_run
from ddplaunch.records.first_failure import failed_by_itself, first_failed, signal_name
from ddplaunch.records.outcome import rank_end

#: The variable with which the plug-in leaves to the guard what ``oom_kills`` was before the run.
OOM_KILLS_BEFORE = "DDPLAUNCH_OOM_KILLS_BEFORE"
_MOST_LINES = 400
_RECORD = re.compile(rb"^\d+,\d+,(\d+),[^;]*;([^\n]*)")
_CLOSING = re.compile(rb"Sending process (\d+) closing signal")
_TAIL_BYTES = 1 << 20


def explain_attempt(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> Explanation:
    """Explain ``attempt`` (None: no rank was ever started); ``ended`` is the run, None while it goes on."""
    lost = ended is not None and ended.state == "error" and not ended.launcher_died
    if ended is not None and lost and attempt is not None and first_failed(attempt.ranks, None, attempt.first) is None:
        return Explanation(_elsewhere(ended))
    try:
        from ddplaunch.explain.explain_logs import explain_texts

        explanation = explain_texts(_sources(settings, attempt, ended), _facts(settings, attempt, ended))
    except Exception as exception:  # what explains a failure must not hide it
        return Explanation(_by_exit(attempt, ended, f"; explaining it failed: {type(exception).__name__}: {exception}"))
    return explanation if explanation.diagnosis is not None else Explanation(_by_exit(attempt, ended, ""))


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


def _sources(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> list[LogSource]:
    """Return the files of the attempt, and torchrun's own messages where the run is over."""
    base = settings.directory or "."
    host = ended.host if ended is not None else os.uname().nodename
    found = []
    for rank in () if attempt is None else attempt.ranks:
        for path in (rank.out, rank.err):
            if path is not None and path.is_file():
                found.append(LogSource(os.path.relpath(path, base), path, rank.rank, host))
    launcher = _launcher_err(settings)
    if ended is not None and launcher.is_file():
        found.append(LogSource(os.path.relpath(launcher, base), launcher, None, host))
    return found


def _facts(settings: Settings, attempt: EndedAttempt | None, ended: EndedRun | None) -> RunFacts:
    """Return what is known beside the files."""
    run = read_run(Path(settings.directory), settings.node) if settings.directory else {}
    host = ended.host if ended is not None else os.uname().nodename
    shm = space("/dev/shm")
    now, before = oom_kills(), os.environ.get(OOM_KILLS_BEFORE, "")
    return replace(
        facts_of_run(run),
        ranks=() if attempt is None else tuple(rank_end(each, host) for each in attempt.ranks),
        state=None if ended is None else ended.run_state(),
        signal=None if ended is None else ended.signal,
        oom_kills=now - int(before) if now is not None and before.isdecimal() else None,
        dmesg=kernel_lines(attempt.started_s) if attempt is not None else (),
        shm_free_bytes=shm[0] if shm else None,
        shm_size_bytes=shm[1] if shm else None,
    )


def _by_exit(attempt: EndedAttempt | None, ended: EndedRun | None, also: str) -> Diagnosis | None:
    """Return what can be said without any log: which rank ended first and how; None where nothing failed."""
    first = None if attempt is None else first_failed(attempt.ranks, None, attempt.first)
    look = "`ddplaunch explain` reads all that was printed; the end of each rank's output is in the record"
    if first is not None:
        how = f"was killed by {signal_name(first.signal)}" if first.signal else f"exited with status {first.exit_code}"
        what = f"rank {first.rank} {how} before the others, and no line says why{also}"
        return Diagnosis("unknown", "unknown", what, "its output names no cause that is known", (look,), first.rank)
    if ended is None or ended.state in ("succeeded", "signal"):
        return None
    what = f"torchrun failed: {ended.error}" if ended.error else "torchrun ended without a word"
    return Diagnosis("unknown", "unknown", f"{what.splitlines()[0]}{also}", "no rank failed by itself", (look,))


def _launcher_err(settings: Settings) -> Path:
    return Path(settings.directory or ".") / f"node-{settings.node}" / "launcher.err"


def attributed(settings: Settings, attempt: EndedAttempt) -> EndedAttempt:
    """Return the attempt with ``ended_by`` "launcher" for each rank that torchrun says it ended; none is ``first``.

    The guard sees that a rank died of SIGTERM, not who sent it. On a node without a failure of its own, torchrun ends
    the ranks because another node failed or came, and says so: ``SubprocessContext._close`` in
    torch/distributed/elastic/multiprocessing/api.py logs ``Sending process PID closing signal SIGTERM`` for each.
    """
    closed = closed_by_torchrun(settings)
    ranks = tuple(replace(each, ended_by="launcher") if each.pid in closed else each for each in attempt.ranks)
    own = {each.rank for each in ranks if failed_by_itself(each)}
    return replace(attempt, ranks=ranks, first=attempt.first if attempt.first in own else None)


def closed_by_torchrun(settings: Settings) -> frozenset[int]:
    """Return the pids that torchrun says it has ended; none where its messages are not recorded."""
    try:
        with open(_launcher_err(settings), "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return frozenset(int(pid) for pid in _CLOSING.findall(file.read(_TAIL_BYTES)))
    except OSError:
        return frozenset()


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
