"""Decides from several samples of stacks whether ranks hang, and describes and records the hang.

Imported only when ranks seem to hang, because it imports the code that explains and that takes stacks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent import has_other_nodes
from ddplaunch.agent.guard.attempt import Attempt, RankLife
from ddplaunch.explain.diagnosis import Diagnosis, of_process
from ddplaunch.explain.read.lines import read_lines
from ddplaunch.explain.read.traceback import Tracebacks
from ddplaunch.explain.stacks.hang import NoProgress, ended_part, hang_diagnosis, with_ended_parts
from ddplaunch.explain.stacks.parse import (
    RankStack,
    at_text,
    evidence_of,
    groups,
    place_of,
)
from ddplaunch.explain.wording import as_warned
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, with_workers
from ddplaunch.machine.files import read_end
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.records.find import read_run
from ddplaunch.records.json_files import replace_file
from ddplaunch.ui.explain_view import as_finding, stack_text
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.words import duration_text, ranks_text

_TAIL_BYTES = 1 << 16
_PLACES = 4
_BUSY = 0.1  # of a core, as the machine may be shared


def take(pids: Mapping[int, int]) -> tuple[RankStack, ...]:
    """Return the stacks of each rank in ``pids`` (rank to pid) and of its DataLoader workers."""
    ranks = [LiveRank(rank, pid, seen.start_ticks) for rank, pid in sorted(pids.items()) if (seen := read_stat(pid))]
    return with_workers(take_stacks(ranks))


def look_around(attempt: Attempt, node_directory: str | None) -> None:
    """Record the stacks of running ranks, before the one that timed out ends and torchrun ends the others."""
    attempt.stacks = take(attempt.pids())
    if attempt.stacks:
        write_stacks(attempt.stacks, node_directory)


def write_stacks(stacks: tuple[RankStack, ...], node_directory: str | None) -> str:
    """Write the stacks to ``node-K/stacks-TIME.txt`` in the record; return its path, "" if that fails."""
    if node_directory is None:
        return ""
    path = f"{node_directory}/stacks-{time.strftime('%H%M%S')}.txt"
    try:
        replace_file(path, "".join(map(stack_text, stacks)), errors="replace")
    except OSError:
        return ""
    return path


def _tail(path: str) -> str:
    return read_end(path, _TAIL_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")


def describe(
    stacks: tuple[RankStack, ...],
    ranks: Mapping[int, RankLife],
    still_s: float,
    shares: Mapping[int, float],
    steps: int,
    host: str,
    attempt: str | None,
) -> Diagnosis:
    """Return the diagnosis of this ``host``'s ranks, which have made no progress for ``still_s``.

    ``shares`` is how much of a core each rank used meanwhile, ``steps`` the number of the last optimizer step (0 if
    unknown), ``attempt`` the folder of the ranks' output, None without one.
    """
    left = {one.rank: "exit status 0" for one in ranks.values() if one.status == 0}
    busy = {rank: share for rank, share in shares.items() if share > _BUSY}
    still = NoProgress(still_s, busy, left, host, has_other_nodes(), steps)
    return _as_recorded(hang_diagnosis(stacks, still), attempt, ranks)


def _as_recorded(story: Diagnosis, attempt: str | None, ranks: Iterable[int]) -> Diagnosis:
    """Return the story with what the folder of the ranks' output shows, and with what the launch had warned of."""
    if attempt is None:
        return story
    parts = [(rank, *part) for rank in sorted(ranks) if (part := _ended_part(f"{attempt}/rank-{rank}"))]
    node = Path(attempt).parent
    run = read_run(node.parent, int(node.name.removeprefix("node-")))
    return as_warned(with_ended_parts(story, parts), run.get("findings") or ())


def _ended_part(output: str) -> tuple[str, str] | None:
    """Return which part of a rank an exception ended last, as `ended_part` does; None without one.

    A process that a rank starts by multiprocessing prints to the rank's files; its frames show what it is.
    """
    reader = Tracebacks()
    lines = (_tail(f"{output}.err") or _tail(f"{output}.out")).split("\n")
    for line in read_lines(enumerate(lines, 1), "tail"):
        reader.feed(line)
    of_parts = [each for each in reader.finish() if (each.side or of_process(each.root.frames)) and not each.handled]
    return ended_part(of_parts[-1]) if of_parts else None


IDLE_LOOKS, BUSY_LOOKS = 3, 5


def hangs(looks: Sequence[Sequence[RankStack]], idle: frozenset[int], *, stepped: bool) -> bool:
    """Return whether ranks that made no progress for the whole time-out hang, judged by their stacks during it.

    Each rank must have stayed at one place in its code. ``idle`` are the ranks that used no CPU. A rank that computes
    may take any time, and so may the ranks that wait for it. So it is a hang if an idle rank does not wait for another
    one, or if all ranks wait for each other. NCCL waits by spinning, as does a thread in `cudaStreamSynchronize`, so a
    waiting rank may use a core:
    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html (cudaDeviceScheduleSpin). If all ranks spin
    in the same collective, they may be making slow progress through a series of it; this is a hang only if there were
    optimizer steps before (``stepped``).
    """
    if len(looks) < (IDLE_LOOKS if idle else BUSY_LOOKS):
        return False
    by_rank = {one.rank: [stack for stacks in looks for stack in stacks if stack.rank == one.rank] for one in looks[-1]}
    if not all(_stays(stacks[-IDLE_LOOKS:] if rank in idle else stacks) for rank, stacks in by_rank.items()):
        return False
    places = {rank: place_of(stacks[-1]) for rank, stacks in by_rank.items()}
    waiting = {rank for rank, place in places.items() if place.needs_others}
    if idle:
        return bool(idle - waiting) or waiting == places.keys()
    spinning = all(place.kind in ("collective", "meeting") for place in places.values())
    return spinning and (stepped or len({place.text for place in places.values()}) > 1)


def _stays(stacks: Sequence[RankStack]) -> bool:
    """Return whether a rank stays at one place: in one function of the user, and in few functions of libraries.

    A shell script stays at one place while the same programs run below it.
    """
    calls, own = (
        {tuple((frame.file, frame.function) for frame in stack.main if every or frame.is_own) for stack in stacks}
        for every in (True, False)
    )
    alike = len({stack.programs for stack in stacks}) == 1
    return alike and len(own) == 1 and len(calls) <= max(2, len(stacks) // 2)


def time_is_up(stacks: tuple[RankStack, ...], limit_s: float, attempt: str | None) -> Diagnosis:
    """Return the diagnosis of a run that `--timeout` ended; ``attempt`` is the folder of its ranks' output."""
    found = [group for group in groups(stacks)[:_PLACES] if group.place.path]
    where = "; ".join(f"{ranks_text(group.ranks)} {at_text(group)}" for group in found)
    return _as_recorded(
        Diagnosis(
            "time-limit",
            "observed",
            f"the run was ended after {duration_text(limit_s)}, as `--timeout` says",
            f"it had not ended by then{f': {where}' if where else ''}",
            (f"`--timeout {2 * limit_s:.0f}s`, or none; `ddplaunch logs` shows how far it came",),
            evidence=evidence_of(found),
        ),
        attempt,
        [stack.rank for stack in stacks],
    )


def warning_of(diagnosis: Diagnosis, stacks_file: str) -> Finding:
    """Return the warning that ranks hang."""
    finding = replace(as_finding(diagnosis, None), severity=Severity.WARNING)
    return replace(finding, where=(*finding.where, os.path.relpath(stacks_file))) if stacks_file else finding
