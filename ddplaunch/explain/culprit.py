"""Which rank and host a root cause belongs to; refuses to name one where several show it alike."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.explain.candidates import NOISE, Candidate
from ddplaunch.explain.endings import exit_code
from ddplaunch.explain.matching import Hit
from ddplaunch.explain.scan import Scanned
from ddplaunch.explain.stuck import Stuck
from ddplaunch.explain.trailer import RankExit

_TELLING = ("segmentation-fault", "killed")
_ALIKE = 8  # weights this close are the same failure, told more or less exactly


def exit_rank(known: RankExit, scanned: Scanned) -> int | None:
    """Return the global rank of an exit; on one host the local rank is the global one."""
    if known.rank is not None or known.local is None:
        return known.rank
    hosts = {line.speaker.host for line in scanned.lines if line.speaker.host}
    return known.local if len(hosts) <= 1 else None


def rank_of(
    best: Candidate, found: Sequence[Candidate], echoes: Sequence[Hit], scanned: Scanned, waits: Stuck
) -> int | None:
    """Return the one rank that shows the cause, None where several do, or where nothing tells."""
    same = [each for each in found if each.code == best.code and each.weight <= best.weight + _ALIKE]
    ranks = {_own(each, scanned) for each in same} - {None}
    if ranks:
        return ranks.pop() if len(ranks) == 1 else None
    if len({each.speaker for each in same}) > 1:
        return None
    told = _by_exit(scanned)
    return told if told is not None else _left_over(found, echoes, waits)


def _own(each: Candidate, scanned: Scanned) -> int | None:
    speaker, groups = each.speaker, dict(each.groups)
    if groups.get("culprit", "").isdecimal():
        return int(groups["culprit"])
    if speaker.rank is not None:
        return speaker.rank
    if groups.get("rank", "").isdecimal():
        return int(groups["rank"])
    pid = groups.get("pid", "")
    if pid.isdecimal() and (rank := _of_pid(int(pid), scanned)) is not None:
        return rank
    for known in scanned.exits:
        rank = exit_rank(known, scanned)
        if rank is None:
            continue
        if speaker.pid is not None and known.pid == speaker.pid:
            return rank
        if speaker.local is not None and known.local == speaker.local and known.host in (speaker.host, None):
            return rank
    return speaker.local if speaker.host is None else None


def _of_pid(pid: int, scanned: Scanned) -> int | None:
    """Return the rank that is this process, or that has spoken of it: a DataLoader worker is named by its parent."""
    for known in scanned.exits:
        if known.pid == pid:
            return exit_rank(known, scanned)
    named = re.compile(rf"\bpids?\b\D{{0,5}}{pid}\b")
    for line in scanned.lines:
        if line.speaker.rank is not None and named.search(line.text):
            return line.speaker.rank
    return None


def _by_exit(scanned: Scanned) -> int | None:
    """Return the only rank that ended by itself, or the only one of them whose end says more than that."""
    own = [each for each in scanned.exits if not each.by_agent]
    telling = [each for each in own if exit_code(each.code) in _TELLING or each.code == -7]
    plain = [each for each in own if exit_code(each.code) != "aborted"]
    for kind in (telling, plain, own):
        ranks = {exit_rank(each, scanned) for each in kind}
        if len(ranks) == 1:
            return ranks.pop()
        if ranks:
            return None
    return None


def _left_over(found: Sequence[Candidate], echoes: Sequence[Hit], waits: Stuck) -> int | None:
    """Return the only rank that does not complain about the others, where all others do."""
    if waits.world_size is None or waits.world_size < 2:
        return None
    complaining = {hit.line.speaker.rank for hit in echoes if hit.signature.code not in NOISE}
    complaining |= {each.rank for each in waits.waited}
    quiet = [rank for rank in range(waits.world_size) if rank not in complaining]
    return quiet[0] if len(quiet) == 1 else None
