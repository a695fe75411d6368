"""Evidence from outside of the logs, in the same shape as what the logs hold; refuses to gather it."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from ddplaunch.explain.diagnosis import RankEnd, RunFacts
from ddplaunch.explain.read.lines import NOBODY, Line, Speaker
from ddplaunch.explain.read.scan import Hit, Scanned, matcher
from ddplaunch.explain.read.trailer import RankExit

#: What the kernel says is believed about a run only if something in the run fits to it.
_KERNEL = frozenset(("host-out-of-memory", "gpu-fault", "gpu-p2p-broken", "segmentation-fault"))
_SHM_LEFT = 0.1  # of /dev/shm, or less: full for what a batch needs


def with_facts(scanned: Scanned, facts: RunFacts | None) -> Scanned:
    """Return ``scanned`` with the exits that the record knows in the place of those that a launcher printed."""
    if facts is None or not facts.ranks:
        return scanned
    at = scanned.lines[-1].at + 1 if scanned.lines else 0
    exits = [_exit(end, at + position) for position, end in enumerate(facts.ranks)]
    known = {each.rank for each in exits}
    others = [each for each in scanned.exits if each.rank not in known and each.host not in _hosts(facts)]
    kept = [each for each in exits if each is not None and each.code]
    return Scanned(
        scanned.lines,
        scanned.hits,
        scanned.tracebacks,
        tuple(kept + [each for each in others if each.rank is not None]),
        scanned.trailer_lines,
        scanned.summary,
    )


def _hosts(facts: RunFacts) -> set[str | None]:
    return {end.host for end in facts.ranks}


def _exit(end: RankEnd, at: int) -> RankExit:
    code = end.exit_code or 0
    if end.signal:
        code = -int(getattr(signal, end.signal, 0) or 0)
    how = f"ended by {end.signal}" if end.signal else f"ended with exit code {end.exit_code}"
    line = Line(at, "outcome.json", 0, f"rank {end.rank} {how}", Speaker(end.rank, end.host))
    return RankExit(code, line, end.rank, None, None, end.host, by_agent=end.ended_by == "launcher")


def kernel_hits(facts: RunFacts | None) -> list[Hit]:
    """Return what the kernel's lines show."""
    if facts is None:
        return []
    hits: list[Hit] = []
    for position, text in enumerate(facts.dmesg):
        found = matcher().hits(Line(position, "dmesg", 0, text, NOBODY))
        hits += [hit for hit in found[:1] if hit.signature.is_root and hit.signature.code in _KERNEL]
    return hits


def out_of_memory(facts: RunFacts | None) -> Line | None:
    """Return the line of ``memory.events`` or of the kernel that says that a process was killed for its memory."""
    for hit in kernel_hits(facts):
        if hit.signature.code == "host-out-of-memory":
            return hit.line
    if facts is not None and facts.oom_kills:
        times = "once" if facts.oom_kills == 1 else f"{facts.oom_kills} times"
        return Line(0, "memory.events", 0, f"oom_kill: the cgroup's limit was reached {times} during the run", NOBODY)
    return None


def shared_memory_full(facts: RunFacts | None) -> Line | None:
    """Return what is left of /dev/shm, if that is next to nothing."""
    if facts is None or facts.shm_free_bytes is None or not facts.shm_size_bytes:
        return None
    if facts.shm_free_bytes > _SHM_LEFT * facts.shm_size_bytes:
        return None
    free, size = facts.shm_free_bytes / 2**20, facts.shm_size_bytes / 2**20
    return Line(0, "/dev/shm", 0, f"{free:.0f} MiB of {size:.0f} MiB are free", NOBODY)


def ended_later(facts: RunFacts | None) -> frozenset[int]:
    """Return the ranks that ended well or were ended by the launcher, where another one failed before by itself.

    What these print is what they survived, or what they noticed of the others.
    """
    ends: Sequence[RankEnd] = facts.ranks if facts is not None else ()
    if not any(end.ended_by == "itself" and (end.exit_code or end.signal) for end in ends):
        return frozenset()
    return frozenset(end.rank for end in ends if end.ended_by == "launcher" or end.exit_code == 0)


def order(facts: RunFacts | None) -> dict[int, float]:
    """Return when each rank ended, in seconds since the epoch; files of ranks have no order among themselves."""
    ends: Sequence[RankEnd] = facts.ranks if facts is not None else ()
    return {end.rank: end.ended_s for end in ends if end.ended_s is not None}
