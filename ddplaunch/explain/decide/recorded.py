"""Converts ends of ranks known to the launcher, the record, the kernel and the cgroup into the form of log contents."""

from __future__ import annotations

import re
from dataclasses import replace

from ddplaunch.explain.diagnosis import RankEnd, RunFacts
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.read.prefixes import NOBODY, Speaker
from ddplaunch.explain.read.scan import Scanned, matcher
from ddplaunch.explain.read.trailer import RankExit, exit_code
from ddplaunch.values.words import SIGNALS, number_of_signal, size_text

#: Codes of exits that say more than an abort or an exit status of the script.
_CRASHES = ("segmentation-fault", "killed")
#: NCCL's message about a CUDA call that failed in the rank itself.
OF_CUDA = re.compile(r"ncclUnhandledCudaError|unhandled cuda error")
_KILLED = re.compile(r"Killed? process \d+")
#: The second form is from kernels before 5.0.
_XID = re.compile(r"NVRM: Xid \(([^)]+)\): (\d+)\b")
_SHM_LEFT = 0.1  # fraction of /dev/shm; a batch needs more


def with_facts(scanned: Scanned, facts: RunFacts) -> Scanned:
    """Return ``scanned`` with the exits in the record instead of those that a launcher printed."""
    if not facts.ranks:
        return scanned
    at = scanned.lines[-1].at + 1 if scanned.lines else 0
    exits = [_exit(end, at + position) for position, end in enumerate(facts.ranks)]
    ranks, hosts = {end.rank for end in facts.ranks}, {end.host for end in facts.ranks}
    other_exits = [each for each in scanned.exits if each.rank is not None and each.rank not in ranks]
    exits = [each for each in exits if each.code] + [each for each in other_exits if each.host not in hosts]
    return replace(scanned, exits=tuple(exits))


def _exit(end: RankEnd, at: int) -> RankExit:
    code = end.exit_code or 0
    if end.signal:
        code = -(number_of_signal(end.signal) or 0)
    how = f"rank {end.rank} ended {f'by {end.signal}' if end.signal else f'with exit code {end.exit_code}'}"
    line = Line(at, "outcome.json", 0, how, Speaker(end.rank, end.host))
    return RankExit(code, line, end.rank, None, None, end.host, end.ended_by == "launcher", seen=True)


def rank_of_pid(pid: int, scanned: Scanned) -> int | None:
    """Return the rank of a process, or None."""
    return next((exit_rank(end, scanned) for end in scanned.exits if end.pid == pid), None)


def exit_rank(end: RankExit, scanned: Scanned) -> int | None:
    """Return the global rank of an exit; on a single host it equals the local rank."""
    if end.rank is not None or end.local is None:
        return end.rank
    return end.local if len(scanned.hosts) <= 1 else None


def only_failed_rank(scanned: Scanned) -> int | None:
    """Return the only rank that crashed, else that failed without an abort, else that failed; or None."""
    own_exits = [end for end in scanned.exits if not end.by_agent]
    crashed = [end for end in own_exits if exit_code(end.code) in _CRASHES or end.code == -7]
    not_aborted = [end for end in own_exits if exit_code(end.code) != "aborted"]
    for kind in (crashed, not_aborted, own_exits):
        ranks = {exit_rank(end, scanned) for end in kind}
        if ranks:
            named = ranks - {None}  # the exit of the process that ran the launcher names no rank
            return named.pop() if len(named) == 1 else None
    return None


def memory_says(code: str, exit_code: int | None, facts: RunFacts) -> tuple[str, Line] | None:
    """Return the code and the line that explain SIGKILL or SIGBUS by memory, or None.

    The line comes from the kernel, the cgroup or /dev/shm. ``code`` is what the logs lead to. A shell exits with 137 if
    its child was killed.
    """
    if code == "killed" or exit_code == 128 + SIGNALS["SIGKILL"]:
        line = out_of_memory(facts)
        return None if line is None else ("host-out-of-memory", line)
    line = shared_memory_full(facts) if exit_code == -SIGNALS["SIGBUS"] else None
    return None if line is None else ("shm-too-small", line)


def out_of_memory(facts: RunFacts) -> Line | None:
    """Return the line of the kernel or of ``memory.events`` that says that a process was killed for lack of memory.

    The kernel's line with the process and its size is preferred to the line that begins its report.
    """
    lines: list[Line] = []
    for at, text in enumerate(facts.dmesg):
        line = Line(at, "dmesg", 0, text, NOBODY)
        hits = matcher().hits(line)
        if hits and hits[0].signature.code == "host-out-of-memory" and hits[0].signature.is_root:
            lines.append(line)
    if lines:
        return min(lines, key=lambda line: _KILLED.search(line.text) is None)
    if facts.oom_kills:
        times = "once" if facts.oom_kills == 1 else f"{facts.oom_kills} times"
        return Line(0, "memory.events", 0, f"oom_kill: the cgroup's limit was reached {times} during the run", NOBODY)
    return None


def xid(facts: RunFacts) -> str:
    """Return a clause on what the driver reported about a GPU during the run; "" for nothing.

    Xid 45 is skipped: it means that a program's channels were closed, a consequence:
    https://docs.nvidia.com/deploy/xid-errors/.
    """
    reports = (_XID.search(text) for text in facts.dmesg)
    report = next((match for match in reports if match and match[2] != "45"), None)
    return "" if report is None else f"the driver reported Xid {report[2]} for the GPU at {report[1]}"


def shared_memory_full(facts: RunFacts) -> Line | None:
    """Return a line with the free bytes of /dev/shm; None if enough are free, or it is unknown."""
    if facts.shm_free_bytes is None or not facts.shm_size_bytes:
        return None
    if facts.shm_free_bytes > _SHM_LEFT * facts.shm_size_bytes:
        return None
    text = f"{size_text(facts.shm_free_bytes)} of {size_text(facts.shm_size_bytes)} are free"
    return Line(0, "/dev/shm", 0, text, NOBODY)


def _failed_by_themselves(facts: RunFacts) -> list[RankEnd]:
    return [end for end in facts.ranks if end.ended_by == "itself" and (end.exit_code or end.signal)]


def ended_later(facts: RunFacts, lost_another: frozenset[int | None]) -> frozenset[int]:
    """Return the ranks that succeeded or were ended by the launcher, if another rank failed by itself.

    They print errors that they survived, or failures of others that they noticed. If all failed ranks only report that
    they ``lost_another`` one, that one may be among those that the launcher ended; then these are not returned.
    """
    failed = {end.rank for end in _failed_by_themselves(facts)}
    if not failed:
        return frozenset()
    ranks_told = failed - lost_another
    return frozenset(
        end.rank for end in facts.ranks if end.exit_code == 0 or (ranks_told and end.ended_by == "launcher")
    )


def end_times(facts: RunFacts) -> dict[int | None, float]:
    """Return when each rank ended, in seconds since the epoch; this orders the lines of separate files."""
    return {end.rank: end.ended_s for end in facts.ranks if end.ended_s is not None}


def first_by_itself(facts: RunFacts) -> RankEnd | None:
    """Return the rank that failed by itself first; None if no record has the times of ends."""
    own_ends = [end for end in _failed_by_themselves(facts) if end.ended_s is not None]
    return min(own_ends, key=lambda end: (end.ended_s or 0.0, end.rank), default=None)


def left_before(facts: RunFacts, first: RankEnd) -> tuple[RankEnd, ...]:
    """Return the ranks that ended by themselves with status 0 before ``first`` failed, earliest first."""
    well = (end for end in facts.ranks if end.exit_code == 0 and end.ended_by == "itself" and end.ended_s is not None)
    ends = sorted((end.ended_s or 0.0, end.rank, end) for end in well)
    return tuple(end for ended_s, _, end in ends if ended_s <= (first.ended_s or 0.0))


def aborted_when_through(facts: RunFacts, rank: int | None) -> RankEnd | None:
    """Return the end of ``rank`` (None: of any rank) if it failed by an abort after its program had finished."""
    own_ends = [end for end in _failed_by_themselves(facts) if rank is None or end.rank == rank]
    return own_ends[0] if own_ends and all(end.signal == "SIGABRT" and end.through for end in own_ends) else None
