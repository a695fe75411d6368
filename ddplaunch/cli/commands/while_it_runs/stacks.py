"""``ddplaunch stacks``: where every rank of a run is now."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.parsing.command import LIVE_RUN, RUN_DIR, Command
from ddplaunch.cli.streams import answer, answer_json, say, tell_findings
from ddplaunch.cli.which_run import other_hosts, running_run
from ddplaunch.explain.stacks.hang import NoProgress, hang_diagnosis
from ddplaunch.explain.stacks.parse import RankGroup, RankStack, groups
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, with_workers
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.processes.run_processes import RunProcesses, rank_of
from ddplaunch.planning.flag import Flag
from ddplaunch.records.launchers import Launched
from ddplaunch.records.log_files import log_parts
from ddplaunch.records.run_states import recorded_at
from ddplaunch.ui.explain_view import as_finding, stack_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import from_plain, plain
from ddplaunch.values.finding import ExitStatus, Finding, Severity, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count, duration_text, host_name, listed, ranks_text
from ddplaunch.watch.sampler import RankUsage

COMMAND = Command(
    examples=(
        ("ddplaunch stacks", "the innermost frames of every rank"),
        ("ddplaunch stacks --full", "every frame of every thread"),
    ),
    options=(
        LIVE_RUN,
        Flag("full", "switch", "", "Every frame of every thread."),
        Flag("json", "switch", "", "All stacks as JSON."),
        RUN_DIR,
    ),
)

_LOOK_S = 0.5  # over which CPU use is measured
_ANSWER_S = 30.0
_STILL_S = 30.0  # without output, before waiting ranks are called stuck
_IDLE_PERCENT = 5.0
_SCHEMA = 3


def stacks(run: str | None, full: bool | None, json: bool | None, run_dir: str | None) -> int:
    """Show where the ranks are, grouped by place, the odd one out first."""
    chosen = running_run(run, run_dir)
    if chosen is None or chosen.processes is None:
        return ExitStatus.DONE
    hosts: tuple[str, ...] = (host_name(),)
    if chosen.launched is not None:
        ranks, hosts = _ask_hosts(chosen.launched)
    else:
        ranks = ranks_seen(chosen.processes)
    if json:
        answer_json(_stacks_json(chosen.run_id, ranks))
    elif ranks.stacks:
        place = "here" if chosen.launched is None else f"on {listed(hosts, 3, ' and ')}"
        answer(_stacks_text(chosen.run_id, ranks, place, Terminal.of(sys.stdout)))
        if full:
            answer("\n" + "".join(map(stack_text, ranks.stacks)))
    elif hosts:
        say(f"{chosen.run_id}: no rank runs on {listed(hosts)} now")
    if chosen.launched is None and chosen.directory is not None and (elsewhere := other_hosts(chosen.directory)):
        say(f"its other ranks are on {listed(elsewhere)}: `ddplaunch stacks {chosen.run_id}` there shows them")
    tell_findings(_findings(chosen.run_id, ranks, hosts[0] if chosen.launched is None else None))
    return ExitStatus.DONE if any(stack.threads for stack in ranks.stacks) else ExitStatus.FINDINGS


@dataclass(frozen=True)
class RanksSeen:
    """Where ranks are, each one's CPU use in percent of a core, and the seconds since one printed, None if unknown."""

    stacks: tuple[RankStack, ...]
    cpu: Mapping[int, float]
    silent_s: float | None


def ranks_seen(run: RunProcesses) -> RanksSeen:
    """Return where the ranks of a run on this host are; takes half a second and more."""
    ranks = {rank_of(process)[0]: process for process in run.ranks}
    usage = RankUsage(ranks)
    usage.sample()
    time.sleep(_LOOK_S)
    cpu = {each.rank: (each.cpu_percent or 0.0) + (each.workers_cpu_percent or 0.0) for each in usage.sample()}
    stacks = with_workers(
        take_stacks([LiveRank(rank, each.pid, each.start_ticks) for rank, each in sorted(ranks.items())])
    )
    directory = recorded_at(run)
    return RanksSeen(stacks, cpu, None if directory is None else _silent_s(directory))


def _ask_hosts(launched: Launched) -> tuple[RanksSeen, tuple[str, ...]]:
    """Return the ranks of all hosts, asked at once, and the hosts that answered; print which did not."""
    with EachHost(launched, "stacks", "--json") as hosts:
        answers = hosts.answers(_ANSWER_S)
    tell_findings(hosts.problems)
    ranks = [rank for answer in answers.values() for rank in answer.get("ranks", ())]
    silent = [answer["silent_s"] for answer in answers.values() if answer.get("silent_s") is not None]
    stacks = sorted((from_plain(rank, RankStack) for rank in ranks), key=lambda stack: stack.rank)
    cpu = {rank["rank"]: rank["cpu_percent"] for rank in ranks if rank["cpu_percent"] is not None}
    names = tuple(place.host for place in launched.places if place.node in answers)
    return RanksSeen(tuple(stacks), cpu, min(silent, default=None)), names


def _findings(run_id: str, ranks: RanksSeen, host: str | None) -> tuple[Finding, ...]:
    """Return why no stack is visible, or what the ranks wait for; ``host`` is the host of all ranks, if only one."""
    stacks, silent_s = ranks.stacks, ranks.silent_s
    blind = [stack for stack in stacks if not stack.threads]
    if stacks and len(blind) == len(stacks):
        return (
            warning(
                "stacks-unavailable",
                f"no rank of {run_id} shows where it is: {blind[0].problem}",
                why="a rank shows its Python stack on a signal that it has prepared",
                fix="`py-spy dump --pid PID` where it is installed and may look; the next run without `--no-stacks`",
            ),
        )
    idle = [rank for rank, used in ranks.cpu.items() if used < _IDLE_PERCENT]
    if silent_s is None or silent_s < _STILL_S or not idle:
        return ()
    busy = {rank: used / 100 for rank, used in ranks.cpu.items() if rank not in idle}
    diagnosis = hang_diagnosis(stacks, NoProgress(silent_s, busy, {}, host))
    return (replace(as_finding(diagnosis, None), severity=Severity.WARNING),)


def _silent_s(directory: Path) -> float | None:
    """Return how many seconds no rank of this host has printed anything, None where that is not recorded."""
    newest = max((part.written_s for part in log_parts(directory)), default=0.0)
    return max(0.0, time.time() - newest) if newest else None


def _stacks_text(run_id: str, ranks: RanksSeen, place: str, terminal: Terminal) -> str:
    """Return a line for each place where ranks are, the odd ones out first; ``place`` names the hosts in the title."""
    places = groups(ranks.stacks)
    quiet = "" if (ranks.silent_s or 0) < 1 else f"; nothing printed for {duration_text(ranks.silent_s or 0)}"
    counted = "one place" if len(places) == 1 else f"{len(places)} places"
    head = f"{run_id}: {count(len(ranks.stacks), 'rank')} {place}, in {counted}{quiet}"
    rows = [
        {"ranks": ranks_text(group.ranks), "where": group.place.text, "doing": _state(group, ranks.cpu)}
        for group in places
    ]
    return terminal.page([*terminal.lines(head), *table(rows, terminal)])


def _state(group: RankGroup, cpu: Mapping[int, float]) -> str:
    """Return how much of a core the group's ranks use, and what the first of them does."""
    stack = group.stacks[0]
    words = []
    used = [cpu[rank] for rank in group.ranks if rank in cpu]
    if used:
        least, most = round(min(used)), round(max(used))
        words.append(f"{least} % CPU" if most - least < 10 else f"{least}-{most} % CPU")
    if stack.state in ("T", "t"):
        words.append("stopped by a signal")
    elif stack.reads and not stack.reads.startswith("socket:"):
        words.append(f"reads {stack.reads}")
    elif stack.kernel and not used:
        words.append(stack.kernel)
    return ", ".join(words)


def _stacks_json(run_id: str, ranks: RanksSeen) -> dict[str, Any]:
    """Return stacks, groups and CPU use as JSON values; ``groups`` lists the odd ones out first."""
    return {
        "schema": _SCHEMA,
        "run_id": run_id,
        "host": host_name(),
        "silent_s": None if ranks.silent_s is None else round(ranks.silent_s, 1),
        "groups": [
            {"ranks": list(group.ranks), "place": group.place.text, "kind": group.place.kind}
            for group in groups(ranks.stacks)
        ],
        "ranks": [{**plain(stack), "cpu_percent": ranks.cpu.get(stack.rank)} for stack in ranks.stacks],
    }
