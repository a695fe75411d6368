"""``ddplaunch stacks``: where every rank of a run is now."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings
from ddplaunch.cli.which_run import live_run, not_here, other_hosts
from ddplaunch.explain.decide.collectives import flight, flight_dumps
from ddplaunch.explain.stacks.hang import NoProgress, hang_diagnosis
from ddplaunch.explain.stacks.parse import RankStack
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, with_workers
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import rank_of, runs_in
from ddplaunch.records.log_files import log_parts
from ddplaunch.records.run_states import host_name, recorded_at
from ddplaunch.ui.outcome_view import as_finding
from ddplaunch.ui.stacks_view import flight_text, full_text, stacks_json, stacks_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, Severity, warning
from ddplaunch.values.words import listed
from ddplaunch.watch.sampler import RankUsage
from ddplaunch.watch.samples import RankIdentity

_LOOK_S = 0.5  # for the CPU use
_STILL_S = 30.0  # without output, before ranks that wait are called stuck
_IDLE_PERCENT = 5.0


def stacks(run: str | None, full: bool | None, json: bool | None, run_dir: str | None) -> int:
    """Show where the ranks are, equal places together, the odd one out first."""
    running = [each for each in runs_in(process_table()) if each.ranks]
    chosen = live_run(running, run, run_dir, "stacks", "looks at")
    if chosen is None:
        tell(not_here(running, run, run_dir, "stacks"))
        return ExitStatus.DONE
    ranks = {rank_of(process)[0]: process for process in chosen.ranks}
    usage = RankUsage([RankIdentity(rank, rank, each.pid, each.start_ticks) for rank, each in ranks.items()])
    usage.sample()
    time.sleep(_LOOK_S)
    cpu = {each.rank: (each.cpu_percent or 0.0) + (each.workers_cpu_percent or 0.0) for each in usage.sample()}
    found = with_workers(
        take_stacks([LiveRank(rank, each.pid, each.start_ticks) for rank, each in sorted(ranks.items())])
    )
    directory = recorded_at(chosen)
    silent_s = None if directory is None else _silent_s(directory)
    recorded = None if directory is None else flight(flight_dumps(directory))
    if json:
        answer_json(stacks_json(chosen.run_id, host_name(), found, cpu, silent_s, recorded))
    else:
        out = sys.stdout
        answer(stacks_text(chosen.run_id, found, cpu, silent_s, Terminal.of(out)))
        if recorded is not None:
            answer(flight_text(recorded, Terminal.of(out).width))
        if full:
            answer("\n" + full_text(found))
    if directory is not None and (others := other_hosts(directory)):
        tell(f"its other ranks are on {listed(others)}: `ddplaunch stacks {chosen.run_id}` there shows them\n")
    tell_findings(_findings(chosen.run_id, found, cpu, silent_s))
    return ExitStatus.DONE if any(stack.threads for stack in found) else ExitStatus.FINDINGS


def _findings(
    run_id: str, found: Sequence[RankStack], cpu: dict[int, float], silent_s: float | None
) -> tuple[Finding, ...]:
    blind = [stack for stack in found if not stack.threads]
    if found and len(blind) == len(found):
        return (
            warning(
                "stacks-unavailable",
                f"no rank of {run_id} shows where it is: {blind[0].problem}",
                why="a process shows its Python stack to a debugger that may look, or on a signal that it has prepared",
                fix="`pip install py-spy`, and where it may not look start the run with `--stacks`",
            ),
        )
    idle = [rank for rank, used in cpu.items() if used < _IDLE_PERCENT]
    if silent_s is None or silent_s < _STILL_S or not idle:
        return ()
    busy = {rank: used / 100 for rank, used in cpu.items() if rank not in idle}
    diagnosis = hang_diagnosis(found, NoProgress(silent_s, busy, {}, host_name()))
    return (replace(as_finding(diagnosis, None), severity=Severity.WARNING),)


def _silent_s(directory: Path) -> float | None:
    """Return for how long no rank of this host has printed anything, None where that is not recorded."""
    newest = max((part.written_s for part in log_parts(directory)), default=0.0)
    return max(0.0, time.time() - newest) if newest else None
