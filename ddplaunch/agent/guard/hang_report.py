"""What is said and recorded of ranks that stand still; refuses to decide that they do.

Imported only then: it brings in what explains, and what asks for stacks.
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
from typing import TYPE_CHECKING

from ddplaunch.agent.guard.hang_watch import uses_gpu
from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.explain.stacks.hang import Stillness, hang_diagnosis
from ddplaunch.explain.stacks.parse import RankStack, from_faulthandler, groups, stack_text
from ddplaunch.hosts.local.rank_stacks import Asked, take_stacks, with_workers, working_gpus
from ddplaunch.machine.processes.process_table import read_stat, read_variable
from ddplaunch.machine.processes.stop_processes import send_signal
from ddplaunch.ui.outcome_view import as_finding
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Severity
from ddplaunch.values.words import duration_text, ranks_text

if TYPE_CHECKING:
    from ddplaunch.agent.guard.attempt import Attempt
    from ddplaunch.agent.guard.guarded_run import GuardedRun

_TAIL_BYTES = 1 << 16
_DUMP_S = 0.5
_PLACES = 4
_BUSY = 0.1  # of a core: a machine may be shared


def look(
    run: GuardedRun, pids: Mapping[int, int], *, record: bool = True, fatally: bool = False
) -> tuple[RankStack, ...]:
    """Return where the ranks are, and write it into the record as ``node-K/stacks-TIME.txt``. Never raises OSError.

    ``fatally`` ends ranks of which none tells, by SIGABRT, upon which faulthandler prints where they are.
    """
    asked = [Asked(rank, pid, seen.start_ticks) for rank, pid in sorted(pids.items()) if (seen := read_stat(pid))]
    stacks = take_stacks(asked)
    if fatally and stacks and not any(stack.threads for stack in stacks):
        stacks = _by_abort(run, stacks)
    stacks = with_workers(stacks)
    if record and run.directory:
        text = "".join(stack_text(stack) for stack in stacks)
        run.stacks_file = f"{run.directory}/stacks-{time.strftime('%H%M%S')}.txt"
        try:
            Path(run.stacks_file).write_text(text, encoding="utf-8", errors="replace")
        except OSError:
            run.stacks_file = ""
    return stacks


def _by_abort(run: GuardedRun, stacks: tuple[RankStack, ...]) -> tuple[RankStack, ...]:
    """End the ranks by SIGABRT, without core dumps, and read what faulthandler printed upon it."""
    run.stopped = Diagnosis("hang", "unknown", "ranks that stood still were ended", "", ())  # until more is known
    for stack in stacks:
        if (seen := read_stat(stack.pid)) is not None:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(stack.pid, resource.RLIMIT_CORE, (0, 0))
            send_signal(seen, signal.SIGABRT)
    until_s = time.monotonic() + _DUMP_S
    while time.monotonic() < until_s and any((seen := read_stat(stack.pid)) and seen.alive for stack in stacks):
        time.sleep(0.01)
    time.sleep(0.05)  # what was printed goes through the loop into the record
    run.capture.settle(_DUMP_S)
    folder = f"{run.directory}/attempt-{run.attempts[-1].number}"
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
    run: GuardedRun, attempt: Attempt | None, stacks: tuple[RankStack, ...], shares: Mapping[int, float], still_s: float
) -> Diagnosis:
    """Return the diagnosis of ranks that have stood still for ``still_s`` seconds."""
    ranks = attempt.ranks if attempt else {}
    left = {one.rank: "exit status 0" for one in ranks.values() if one.status == 0}
    busy = {rank: share for rank, share in shares.items() if share > _BUSY}
    elsewhere = any(_world_size(stack.pid) > len(ranks) for stack in stacks[:1])
    return hang_diagnosis(stacks, Stillness(still_s, busy, left, run.host, elsewhere))


def _world_size(pid: int) -> int:
    size = read_variable(pid, b"WORLD_SIZE") or b""
    return int(size) if size.isdigit() else 0


def gpus_work(diagnosis: Diagnosis, pids: Mapping[int, int]) -> bool:
    """Return whether GPUs compute for ranks that only seem to stand still.

    Where ranks wait for each other the use of GPUs says nothing: a collective that waits is a kernel that runs.
    """
    if diagnosis.code != "hang" or not all(uses_gpu(pid) for pid in pids.values()):
        return False
    return working_gpus() >= len(pids) > 0


def time_is_up(run: GuardedRun, stacks: tuple[RankStack, ...]) -> Diagnosis:
    """Return the diagnosis of a run that moved when its time was up."""
    limit_s = run.settings.timeout_s or 0.0
    found = groups(stacks)
    where = "; ".join(
        f"{ranks_text(group.ranks)} at {group.place.text}" for group in found[:_PLACES] if group.place.path
    )
    why = "it had not ended by then" + (f": {where}" if where else "")
    evidence = tuple(
        Evidence(group.place.path, group.place.line, f"{ranks_text(group.ranks)}: {group.place.text}")
        for group in found[:_PLACES]
        if group.place.path
    )
    what = f"the run was ended after {duration_text(limit_s)}, as `--timeout` says"
    fixes = (f"`--timeout {2 * limit_s:.0f}s`, or none; `ddplaunch logs` shows how far it came",)
    return Diagnosis("time-limit", "observed", what, why, fixes, None, None, evidence)


def tell(run: GuardedRun, diagnosis: Diagnosis) -> None:
    """Say on the console that the ranks stand still."""
    finding = replace(as_finding(diagnosis, None), severity=Severity.WARNING)
    if run.stacks_file:
        finding = replace(finding, where=(*finding.where, os.path.relpath(run.stacks_file)))
    stream = sys.stderr
    run.console.say(finding_text(finding, Terminal.of(stream)))
