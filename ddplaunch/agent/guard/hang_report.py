"""Whether ranks stand still, by several looks at their stacks, and what is said and recorded of those that do.

Imported only when some do, because it brings in what explains, and what asks for stacks.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ddplaunch.agent.guard.attempt import Attempt, RankLife
from ddplaunch.agent.guard.rank_streams import Streams
from ddplaunch.explain.diagnosis import Diagnosis, of_process
from ddplaunch.explain.read.lines import read_lines
from ddplaunch.explain.read.traceback import Tracebacks
from ddplaunch.explain.stacks.hang import IMPORTED_ANEW, NoProgress, hang_diagnosis, with_ended_parts
from ddplaunch.explain.stacks.parse import (
    IMPORTS_AGAIN,
    CodePlace,
    Frame,
    Nap,
    RankStack,
    at_text,
    evidence_of,
    from_faulthandler,
    groups,
    is_own,
    place_of,
    stack_text,
    waits_for_program,
)
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, working_gpus
from ddplaunch.hosts.local.rank_stacks import with_workers as with_workers
from ddplaunch.machine.files import gpu_devices, read_end
from ddplaunch.machine.processes.process_table import read_stat, read_variable
from ddplaunch.machine.processes.stop_processes import send_signal
from ddplaunch.records.json_files import replace_file
from ddplaunch.script.loops import loop_kind, slept_s, source_text, waits_in_loop
from ddplaunch.ui.explain_view import as_finding
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Severity
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, ranks_text

_TAIL_BYTES = 1 << 16
_DUMP_S = 0.5
_PLACES = 4
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
    attempt.stacks = with_workers(attempt.stacks)
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
    found = [each for each in reader.finish() if (each.side or of_process(each.root.frames)) and not each.handled]
    if not found:
        return None
    last = found[-1].raised
    said = f"{last.type}: {last.message}"[:_SAID] + (f" at {last.frame}" if last.frame else "")
    again = any(name in IMPORTS_AGAIN for part in found[-1].parts for _, _, name in part.frames)
    return "thread" if found[-1].side else "process", f"{said} {IMPORTED_ANEW}" if again else said


_IDLE_LOOKS, _BUSY_LOOKS = 3, 5
_NAP_S, _NAP_TIMES = 60.0, 3  # a rank that sleeps on purpose is waited for as long, or for so many time-outs
_SAME_S = 0.2  # two looks at one sleep tell its end alike
#: Files of debuggers that wait for a person.
_DEBUGGERS = re.compile(
    r"/lib/python3[^/]*/(?:pdb|bdb|code)\.py$|/(?:ipdb|IPython/terminal|debugpy|pydevd\w*)/|/pydevd\.py$"
)


def hangs(
    looks: Sequence[Sequence[RankStack]], idle: Collection[int], *, stepped: bool, still_s: float, limit_s: float
) -> bool:
    """Return whether ranks that have not got on for ``still_s`` hang: they stand still, and none goes on by itself."""
    if not stands_still(looks, idle, _only_waits, _loop, stepped=stepped):
        return False
    now_s = time.monotonic()
    return not sleeps(looks, _sleep, now_s, now_s - still_s + max(_NAP_S, _NAP_TIMES * limit_s), limit_s / 2)


def sleeps(
    looks: Sequence[Sequence[RankStack]],
    sleep_s: Callable[[Frame], float],
    now_s: float,
    until_s: float,
    long_s: float,
) -> bool:
    """Return whether a rank that others may wait for sleeps in one sleep that is over by ``until_s`` at the latest.

    Of a loop that sleeps and asks again nobody knows the end; ``long_s`` is longer than such loops sleep at a time, as
    one does that waits longer after each try. ``sleep_s`` says how long a line of the user's sleeps, for where the
    kernel does not tell.
    """
    for last in looks[-1]:
        seen = [each for stacks in looks[-_IDLE_LOOKS:] for each in stacks if each.rank == last.rank]
        naps = [nap for each in seen if (nap := _nap(each, sleep_s)) is not None]
        if place_of(last).needs_others or len(naps) < _IDLE_LOOKS:
            continue
        one = all(
            nap.pid == later.pid and (later.woke == woken or abs(ends_s - end_s) < _SAME_S)
            for (nap, woken, end_s), (later, _, ends_s) in pairwise(naps)
        )
        end_s = min(end_s for _, _, end_s in (naps if one else naps[-1:]))
        if (one or end_s - naps[-1][0].seen_s > long_s) and now_s < end_s <= until_s:
            return True
    return False


def _nap(stack: RankStack, sleep_s: Callable[[Frame], float]) -> tuple[Nap, int, float] | None:
    """Return in what a rank, or the worker that it waits for, sleeps, how often it had slept by then, and the end."""
    workers = (each for each in stack.workers if each.nap and place_of(each).kind == "own")
    stack = next((each for each in workers if "/torch/utils/data/" not in place_of(each).path), stack)
    nap = stack.nap
    if nap is None or place_of(stack).kind == "loader":  # which looks after its workers every few seconds
        return None
    end_s = nap.ends_s
    if end_s is None:
        own = next(filter(is_own, stack.main), None)
        end_s = nap.seen_s + (sleep_s(own) if own is not None else 0.0)
    return nap, stack.woken if nap.pid == stack.pid else nap.woke, end_s


def stands_still(
    looks: Sequence[Sequence[RankStack]],
    idle: Collection[int],
    only_waits: Callable[[CodePlace], bool],
    loop: Callable[[Frame], str | None],
    *,
    stepped: bool,
) -> bool:
    """Return whether ranks that have not got on for the time-out stand still, from their stacks meanwhile.

    ``idle`` are the ranks that used no CPU; the others compute, and have to stay in the same loop. ``loop`` says of the
    one around a frame of the user's whether it "counts" to its end, is "endless", or something else, and None for none.

    A rank that sleeps again and again in a loop that counts gets on, and so does one whose started program computes:
    nobody sees where that is. While all others wait for ranks that compute, only an endless loop is a hang, or one that
    cannot be read: an evaluation looks the same, and torch's own time-out ends the wait. If all compute, they
    are at work but for three cases: the run had ``stepped`` and does not any more, and no rank is in a loop that
    may end, as in an evaluation; each rank is in a loop that ``only_waits``; or some stay in one collective while
    others never enter any. NCCL waits by spinning, as does a thread in `cudaStreamSynchronize`, so a rank that waits
    uses a core as well:
    https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__DEVICE.html (cudaDeviceScheduleSpin).
    """
    alike = [stacks for stacks in looks if {one.rank for one in stacks} == {one.rank for one in looks[-1]}]
    by_rank = {one.rank: [each for stacks in alike for each in stacks if each.rank == one.rank] for one in looks[-1]}
    if len(alike) < (_IDLE_LOOKS if idle else _BUSY_LOOKS) or any(map(_debugged, looks[-1])):
        return False
    if not all(_stays(stacks[-_IDLE_LOOKS:] if rank in idle else stacks) for rank, stacks in by_rank.items()):
        return False
    still = {rank: place_of(stacks[-1]).needs_others for rank, stacks in by_rank.items() if rank in idle}
    busy = [stacks[-1] for rank, stacks in by_rank.items() if rank not in idle]
    if any(_counts(by_rank[rank], loop) for rank in still) or any(map(waits_for_program, busy)):
        return False
    late = [_at_work(each) for each in busy if place_of(each).kind in ("own", "loader")]
    if still and all(still.values()) and late and not any(_loop_around(each, loop) == "endless" for each in late):
        return False
    if idle or stepped:
        return bool(idle) or not any(_loop_around(each, loop) in ("counts", "asks") for each in late)
    kinds = [_activity(stacks) for stacks in by_rank.values()]
    if "waits" in kinds and "apart" in kinds and len({*kinds}) == 2:
        return True
    return all(only_waits(place_of(stacks[-1])) for stacks in by_rank.values())


def _debugged(stack: RankStack) -> bool:
    """Return whether a rank waits in a debugger, which is a person's time."""
    return any(_DEBUGGERS.search(frame.file) for frame in stack.main)


def _loop_around(stack: RankStack, loop: Callable[[Frame], str | None]) -> str | None:
    """Return what the innermost loop of the user's is that a rank is in."""
    return next(filter(None, (loop(frame) for frame in stack.main if is_own(frame))), None)


def _stays(stacks: Sequence[RankStack]) -> bool:
    """Return whether a rank goes round in one place: in one function of the user's, and through few of libraries.

    A shell script is where it was while the same programs run below it.
    """
    own = {tuple((frame.file, frame.function) for frame in stack.main if is_own(frame)) for stack in stacks}
    calls = {tuple((frame.file, frame.function) for frame in stack.main) for stack in stacks}
    alike = len({stack.programs for stack in stacks}) == 1
    return alike and len(own) == 1 and len(calls) <= max(2, len(stacks) // 2)


def _counts(stacks: Sequence[RankStack], loop: Callable[[Frame], str | None]) -> bool:
    """Return whether a rank, or a worker that it waits for, sleeps in a loop that counts, and woke up of late."""
    last = stacks[-_IDLE_LOOKS:]
    wakes = any("nanosleep" in later.kernel and earlier.woken < later.woke for earlier, later in pairwise(last))
    if wakes and _loop_around(last[-1], loop) == "counts":
        return True
    workers = [[one for stack in last for one in stack.workers if one.pid == each.pid] for each in last[-1].workers]
    return any(_counts(each, loop) for each in workers)


def _at_work(stack: RankStack) -> RankStack:
    """Return the DataLoader worker that a rank waits for, if one is in own code; else the rank."""
    return next((each for each in stack.workers if any(map(is_own, each.main))), stack)


def _activity(stacks: Sequence[RankStack]) -> str:
    places = [place_of(stack) for stack in stacks]
    if all(place.kind in ("collective", "meeting") for place in places):
        return "waits" if len({stack.main for stack in stacks}) == 1 else "works"
    if all(place.kind in ("own", "loader") for place in places):
        return "apart"
    return "works"


def _only_waits(place: CodePlace) -> bool:
    """Return whether a rank is in a loop of the user's that does nothing but wait."""
    text = source_text(place.path) if place.path else None
    return text is not None and waits_in_loop(text, place.line)


def _loop(frame: Frame) -> str | None:
    """Return the kind of the loop around a user's frame, None for none; what cannot be read may be endless."""
    text = source_text(frame.file)
    return "endless" if text is None else loop_kind(text, frame.line)


def _sleep(frame: Frame) -> float:
    text = source_text(frame.file)
    return 0.0 if text is None else slept_s(text, frame.line)


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
    where = "; ".join(f"{ranks_text(group.ranks)} {at_text(group)}" for group in found)
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
