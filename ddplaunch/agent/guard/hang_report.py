"""What is said and recorded of ranks that stand still: their stacks, a diagnosis, a warning.

Imported only when some do, because it brings in what explains, and what asks for stacks.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent.guard.attempt import RankLife
from ddplaunch.agent.guard.rank_streams import Streams
from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.explain.stacks.hang import NoProgress, hang_diagnosis
from ddplaunch.explain.stacks.parse import RankStack, from_faulthandler, groups, stack_text
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, working_gpus
from ddplaunch.hosts.local.rank_stacks import with_workers as with_workers
from ddplaunch.machine.processes.process_table import read_stat, read_variable
from ddplaunch.machine.processes.stop_processes import send_signal
from ddplaunch.ui.outcome_view import as_finding
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Severity
from ddplaunch.values.words import duration_text, ranks_text

_TAIL_BYTES = 1 << 16
_DUMP_S = 0.5
_PLACES = 4
_BUSY = 0.1  # of a core: a machine may be shared
ENDED = Diagnosis("hang", "unknown", "ranks that stood still were ended", "", ())


def take(pids: Mapping[int, int]) -> tuple[RankStack, ...]:
    """Return where each rank of ``pids`` (rank to pid) is."""
    return take_stacks(
        [LiveRank(rank, pid, seen.start_ticks) for rank, pid in sorted(pids.items()) if (seen := read_stat(pid))]
    )


def write(stacks: tuple[RankStack, ...], node_directory: str) -> str:
    """Write them into the record; return the file, "" if that is impossible."""
    path = f"{node_directory}/stacks-{time.strftime('%H%M%S')}.txt"
    try:
        Path(path).write_text("".join(map(stack_text, stacks)), encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return path


def by_abort(stacks: tuple[RankStack, ...], streams: Streams, folder: str) -> tuple[RankStack, ...]:
    """End the ranks by SIGABRT, without core dumps, and read what faulthandler printed upon it into ``folder``."""
    for stack in stacks:
        if (seen := read_stat(stack.pid)) is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(stack.pid, resource.RLIMIT_CORE, (0, 0))
            send_signal(seen, signal.SIGABRT)
    until_s = time.monotonic() + _DUMP_S
    while time.monotonic() < until_s and any((seen := read_stat(stack.pid)) and seen.alive for stack in stacks):
        time.sleep(0.01)
    time.sleep(0.05)  # what was printed goes through the loop into the record
    streams.settle(_DUMP_S)
    told = []
    for stack in stacks:
        text = _tail(f"{folder}/rank-{stack.rank}.err") or _tail(f"{folder}/rank-{stack.rank}.out")
        found = from_faulthandler(text.rpartition("Fatal Python error: Aborted")[2])
        told.append(replace(stack, threads=found, source="faulthandler", problem="") if found else stack)
    return tuple(told)


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:
        return ""


def describe(
    stacks: tuple[RankStack, ...],
    ranks: Mapping[int, RankLife],
    shares: Mapping[int, float],
    still_s: float,
    host: str,
) -> Diagnosis:
    """Return the diagnosis of this node's ``ranks``, which have stood still for ``still_s`` seconds."""
    left = {one.rank: "exit status 0" for one in ranks.values() if one.status == 0}
    busy = {rank: share for rank, share in shares.items() if share > _BUSY}
    elsewhere = any(_world_size(stack.pid) > len(ranks) for stack in stacks[:1])
    return hang_diagnosis(stacks, NoProgress(still_s, busy, left, host, elsewhere))


def _world_size(pid: int) -> int:
    size = read_variable(pid, b"WORLD_SIZE") or b""
    return int(size) if size.isdigit() else 0


def gpus_work(diagnosis: Diagnosis, pids: Mapping[int, int]) -> bool:
    """Return whether GPUs compute for ranks that only seem to stand still.

    Where ranks wait for each other the use of GPUs says nothing: a collective that waits is a kernel that runs.
    """
    if diagnosis.code != "hang" or not all(_uses_gpu(pid) for pid in pids.values()):
        return False
    return working_gpus() >= len(pids) > 0


def _uses_gpu(pid: int) -> bool:
    """Return whether the process has an NVIDIA device open."""
    with contextlib.suppress(OSError):
        return any(str(link.readlink()).startswith("/dev/nvidia") for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


def time_is_up(stacks: tuple[RankStack, ...], limit_s: float) -> Diagnosis:
    """Return the diagnosis of a run that moved when its time was up."""
    found = [group for group in groups(stacks)[:_PLACES] if group.place.path]
    where = "; ".join(f"{ranks_text(group.ranks)} at {group.place.text}" for group in found)
    why = "it had not ended by then" + (f": {where}" if where else "")
    evidence = tuple(
        Evidence(group.place.path, group.place.line, f"{ranks_text(group.ranks)}: {group.place.text}")
        for group in found
    )
    what = f"the run was ended after {duration_text(limit_s)}, as `--timeout` says"
    fixes = (f"`--timeout {2 * limit_s:.0f}s`, or none; `ddplaunch logs` shows how far it came",)
    return Diagnosis("time-limit", "observed", what, why, fixes, None, None, evidence)


def warning_text(diagnosis: Diagnosis, stacks_file: str) -> str:
    """Return the lines which say that ranks stand still."""
    finding = replace(as_finding(diagnosis, None), severity=Severity.WARNING)
    if stacks_file:
        finding = replace(finding, where=(*finding.where, os.path.relpath(stacks_file)))
    return finding_text(finding, Terminal.of(sys.stderr))
