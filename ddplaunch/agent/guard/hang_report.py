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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent.guard.attempt import Attempt, RankLife
from ddplaunch.agent.guard.rank_streams import Streams
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.explain.read.lines import read_lines
from ddplaunch.explain.read.traceback import Traceback, Tracebacks
from ddplaunch.explain.stacks import parse
from ddplaunch.explain.stacks.hang import IMPORTED_ANEW, NoProgress, evidence_of, hang_diagnosis, with_ended_parts
from ddplaunch.explain.stacks.parse import CodePlace, Frame, RankStack, from_faulthandler, groups, stack_text
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, working_gpus
from ddplaunch.hosts.local.rank_stacks import with_workers as with_workers
from ddplaunch.machine.files import gpu_devices, read_end
from ddplaunch.machine.processes.process_table import read_stat, read_variable
from ddplaunch.machine.processes.stop_processes import send_signal
from ddplaunch.records.json_files import replace_file
from ddplaunch.script.source import loop_kind, read_text, waits_in_loop
from ddplaunch.ui.outcome_view import as_finding
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Severity
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, ranks_text

_TAIL_BYTES = 1 << 16
_DUMP_S = 0.5
_PLACES = 4
_IN_PROCESS, _IMPORTS_AGAIN = frozenset(("spawn_main", "_bootstrap")), "_fixup_main_from_path"  # of multiprocessing
_SAID = 160  # characters of an exception
_BUSY = 0.1  # of a core: a machine may be shared
ENDED = Diagnosis("hang", "unknown", "ranks that stood still were ended", "", ())


def take(pids: Mapping[int, int]) -> tuple[RankStack, ...]:
    """Return where each rank of ``pids`` (rank to pid) is."""
    return take_stacks(
        [LiveRank(rank, pid, seen.start_ticks) for rank, pid in sorted(pids.items()) if (seen := read_stat(pid))]
    )


def look_around(attempt: Attempt, node_directory: str | None) -> None:
    """Note where the ranks are that still run: the one that timed out ends soon, and torchrun ends the others then."""
    attempt.stacks = take({one.rank: one.pid for one in attempt.ranks.values() if one.pid and one.ended_s is None})
    if attempt.stacks and node_directory is not None:
        write(attempt.stacks, node_directory)


def write(stacks: tuple[RankStack, ...], node_directory: str) -> str:
    """Write them into the record; return the file, "" if that is impossible."""
    path = f"{node_directory}/stacks-{time.strftime('%H%M%S')}.txt"
    try:
        replace_file(path, "".join(map(stack_text, stacks)), errors="replace")
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
    return read_end(path, _TAIL_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")


@dataclass(frozen=True)
class Seen:
    """What was measured of this ``host``'s ranks, which stand still.

    For how long, how much of a core each used meanwhile, and the number of the last optimizer step (0: nobody counts).
    """

    still_s: float
    shares: Mapping[int, float]
    steps: int
    host: str


def describe(
    stacks: tuple[RankStack, ...], ranks: Mapping[int, RankLife], seen: Seen, attempt: str | None
) -> Diagnosis:
    """Return the diagnosis of this node's ``ranks``; ``attempt`` is the folder of what they printed, None for none."""
    left = {one.rank: "exit status 0" for one in ranks.values() if one.status == 0}
    busy = {rank: share for rank, share in seen.shares.items() if share > _BUSY}
    elsewhere = any(_world_size(stack.pid) > len(ranks) for stack in stacks[:1])
    raised = _ended_parts(attempt, ranks)
    return hang_diagnosis(stacks, NoProgress(seen.still_s, busy, left, seen.host, elsewhere, seen.steps, raised))


def _ended_parts(attempt: str | None, ranks: Iterable[int]) -> tuple[tuple[int, str, str], ...]:
    told = [(rank, _ended_part(f"{attempt}/rank-{rank}")) for rank in sorted(ranks) if attempt]
    return tuple((rank, *part) for rank, part in told if part is not None)


def _ended_part(output: str) -> tuple[str, str] | None:
    """Return what of a rank was ended by an exception last, "thread" or "process", and by which; None where none was.

    A process that a rank starts by multiprocessing prints into the rank's files, and its frames say so.
    """
    reader = Tracebacks()
    lines = (_tail(f"{output}.err") or _tail(f"{output}.out")).split("\n")
    for line in read_lines(enumerate(lines, 1), "tail"):
        reader.feed(line)
    found = [each for each in reader.finish() if (each.side or _of_process(each)) and not each.handled]
    if not found:
        return None
    last = found[-1].raised
    said = f"{last.type}: {last.message}"[:_SAID] + (f" at {last.frame}" if last.frame else "")
    again = any(name == _IMPORTS_AGAIN for part in found[-1].parts for _, _, name in part.frames)
    return "thread" if found[-1].side else "process", f"{said} {IMPORTED_ANEW}" if again else said


def _of_process(told: Traceback) -> bool:
    return any("multiprocessing/" in file and name in _IN_PROCESS for file, _, name in told.root.frames)


def stands_still(looks: Sequence[Sequence[RankStack]], idle: Collection[int], *, stepped: bool) -> bool:
    """Return whether ranks that have not got on stand still, see ``explain.stacks.parse.stands_still``."""
    return parse.stands_still(looks, idle, _only_waits, _loop, stepped=stepped)


def _only_waits(place: CodePlace) -> bool:
    """Return whether a rank is in a loop of the user's that does nothing but wait."""
    text = read_text(Path(place.path)) if place.path else None
    return text is not None and waits_in_loop(text.text, place.line)


def _loop(frame: Frame) -> str | None:
    """Return the kind of the loop around a user's frame, None for none; what cannot be read may be endless."""
    text = read_text(Path(frame.file))
    return "endless" if text is None else loop_kind(text.text, frame.line)


def _world_size(pid: int) -> int:
    size = read_variable(pid, b"WORLD_SIZE") or b""
    return int(size) if size.isdigit() else 0


def gpus_work(diagnosis: Diagnosis, pids: Mapping[int, int]) -> bool:
    """Return whether GPUs compute for ranks that only seem to stand still.

    Where ranks wait for each other the use of GPUs says nothing: a collective that waits is a kernel that runs.
    """
    if diagnosis.code != "hang" or not all(gpu_devices(pid) for pid in pids.values()):
        return False
    return working_gpus() >= len(pids) > 0


def time_is_up(
    stacks: tuple[RankStack, ...], limit_s: float, still: Diagnosis | None, attempt: str | None
) -> Diagnosis:
    """Return the diagnosis of a run whose time was up; ``still`` says of one that stood still then why it did.

    ``attempt`` is the folder of what its ranks printed, None for none.
    """
    what = f"the run was ended after {duration_text(limit_s)}, as `--timeout` says"
    if still is not None:
        return replace(still, code="time-limit", what=what, why=f"by then {still.what}: {still.why}")
    found = [group for group in groups(stacks)[:_PLACES] if group.place.path]
    where = "; ".join(f"{ranks_text(group.ranks)} at {group.place.text}" for group in found)
    why = "it had not ended by then" + (f": {where}" if where else "")
    fixes = (f"`--timeout {2 * limit_s:.0f}s`, or none; `ddplaunch logs` shows how far it came",)
    story = Diagnosis("time-limit", "observed", what, why, fixes, None, None, evidence_of(found))
    return with_ended_parts(story, _ended_parts(attempt, [stack.rank for stack in stacks]))


def warning_text(diagnosis: Diagnosis, stacks_file: str) -> str:
    """Return the lines which say that ranks stand still."""
    finding = replace(as_finding(diagnosis, None), severity=Severity.WARNING)
    if stacks_file:
        finding = replace(finding, where=(*finding.where, os.path.relpath(stacks_file)))
    return finding_text(finding, Terminal.of(sys.stderr))
