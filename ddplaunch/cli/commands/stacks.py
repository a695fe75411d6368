"""``ddplaunch stacks``: where every rank of a run is now."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.parsing.command import LIVE_RUN, RUN_DIR, Command
from ddplaunch.cli.streams import answer, answer_json, say, tell_findings
from ddplaunch.cli.which_run import launched_from_here, live_run, not_here, other_hosts
from ddplaunch.explain.decide.collectives import Flight, flight, flight_dumps
from ddplaunch.explain.stacks.hang import NoProgress, hang_diagnosis
from ddplaunch.explain.stacks.parse import RankGroup, RankStack, groups, stack_text
from ddplaunch.hosts.local.rank_stacks import LiveRank, take_stacks, with_workers
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, rank_of, runs_in
from ddplaunch.planning.flag import Flag
from ddplaunch.records.launchers import Launched
from ddplaunch.records.log_files import log_parts
from ddplaunch.records.run_states import recorded_at
from ddplaunch.ui.outcome_view import as_finding
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal, visible, wrap
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

_LOOK_S = 0.5  # for the CPU use
_STILL_S = 30.0  # without output, before ranks that wait are called stuck
_IDLE_PERCENT = 5.0
_SCHEMA = 1


def stacks(run: str | None, full: bool | None, json: bool | None, run_dir: str | None) -> int:
    """Show where the ranks are, equal places together, the odd one out first."""
    running = [each for each in runs_in(process_table()) if each.ranks]
    if (launched := launched_from_here(running, run, run_dir)) is not None:
        return _of_hosts(launched, bool(full), bool(json))
    chosen = live_run(running, run, run_dir, "stacks", "looks at")
    if chosen is None:
        say(not_here(running, run, run_dir, "stacks"))
        return ExitStatus.DONE
    seen = look(chosen)
    directory = recorded_at(chosen)
    _show(chosen.run_id, host_name(), seen, None if directory is None else flight(flight_dumps(directory)), full, json)
    if directory is not None and (others := other_hosts(directory)):
        say(f"its other ranks are on {listed(others)}: `ddplaunch stacks {chosen.run_id}` there shows them")
    tell_findings(_findings(chosen.run_id, seen, host_name()))
    return ExitStatus.DONE if any(stack.threads for stack in seen.stacks) else ExitStatus.FINDINGS


@dataclass(frozen=True)
class RanksSeen:
    """Where ranks are, what percentage of a core each used, and for how many seconds none printed, None: unknown."""

    stacks: tuple[RankStack, ...]
    cpu: tuple[tuple[int, float], ...]
    silent_s: float | None


def look(run: RunProcesses) -> RanksSeen:
    """Return where the ranks of a run of this host are; it takes half a second."""
    ranks = {rank_of(process)[0]: process for process in run.ranks}
    usage = RankUsage(ranks)
    usage.sample()
    time.sleep(_LOOK_S)
    cpu = [(each.rank, (each.cpu_percent or 0.0) + (each.workers_cpu_percent or 0.0)) for each in usage.sample()]
    found = with_workers(
        take_stacks([LiveRank(rank, each.pid, each.start_ticks) for rank, each in sorted(ranks.items())])
    )
    directory = recorded_at(run)
    return RanksSeen(tuple(found), tuple(cpu), None if directory is None else _silent_s(directory))


def _of_hosts(launched: Launched, full: bool, json: bool) -> int:
    """Show the ranks of all hosts together, asked at once."""
    with EachHost(launched, "stacks") as hosts:
        seen = [from_plain(each["seen"], RanksSeen) for each in hosts.answers.values() if each.get("seen")]
    silent = [each.silent_s for each in seen if each.silent_s is not None]
    stacks = sorted((stack for each in seen for stack in each.stacks), key=lambda stack: stack.rank)
    whole = RanksSeen(tuple(stacks), tuple(used for each in seen for used in each.cpu), min(silent, default=None))
    tell_findings(hosts.problems)
    if whole.stacks:
        asked = [place.host for place in launched.places if hosts.answers.get(place.node, {}).get("seen")]
        _show(launched.run_id, host_name(), whole, None, full, json, f"on {listed(asked, 3, ' and ')}")
        tell_findings(_findings(launched.run_id, whole, None))
    elif not hosts.problems:
        say(f"{launched.run_id}: no rank runs on {listed([place.host for place in launched.places])} now")
    return ExitStatus.DONE if any(stack.threads for stack in whole.stacks) else ExitStatus.FINDINGS


def _show(
    run_id: str,
    host: str,
    seen: RanksSeen,
    recorded: Flight | None,
    full: bool | None,
    json: bool | None,
    where: str = "here",
) -> None:
    if json:
        answer_json(stacks_json(run_id, host, seen.stacks, dict(seen.cpu), seen.silent_s, recorded))
        return
    out = sys.stdout
    answer(stacks_text(run_id, seen.stacks, dict(seen.cpu), seen.silent_s, Terminal.of(out), where))
    if recorded is not None:
        answer(flight_text(recorded, Terminal.of(out).width))
    if full:
        answer("\n" + full_text(seen.stacks))


def _findings(run_id: str, seen: RanksSeen, host: str | None) -> tuple[Finding, ...]:
    """Return why nothing is seen, or what the ranks wait for; ``host`` is where all of them are."""
    found, cpu, silent_s = seen.stacks, dict(seen.cpu), seen.silent_s
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
    diagnosis = hang_diagnosis(found, NoProgress(silent_s, busy, {}, host))
    return (replace(as_finding(diagnosis, None), severity=Severity.WARNING),)


def _silent_s(directory: Path) -> float | None:
    """Return for how long no rank of this host has printed anything, None where that is not recorded."""
    newest = max((part.written_s for part in log_parts(directory)), default=0.0)
    return max(0.0, time.time() - newest) if newest else None


def stacks_text(
    run_id: str,
    stacks: Sequence[RankStack],
    cpu: Mapping[int, float],
    silent_s: float | None,
    terminal: Terminal,
    where: str = "here",
) -> str:
    """Return a line for each place where ranks are, the odd ones out first.

    ``where`` are the hosts that were asked. ``cpu`` is what each rank used of a core in the moment before, in percent;
    ``silent_s`` for how long none printed.
    """
    found = groups(stacks)
    quiet = "" if silent_s is None or silent_s < 1 else f"; nothing printed for {duration_text(silent_s)}"
    places = "one place" if len(found) == 1 else f"{len(found)} places"
    head = f"{run_id}: {count(len(stacks), 'rank')} {where}, in {places}{quiet}"
    rows = [(ranks_text(group.ranks), group.place.text, _state(group, cpu)) for group in found]
    lines = [*wrap(visible(head), terminal.width, "", "  "), *table(("ranks", "where", "doing"), rows, terminal)]
    lines[0] = terminal.paint(run_id, "bold") + lines[0][len(run_id) :] if lines[0].startswith(run_id) else lines[0]
    return terminal.spell("\n".join(lines)) + "\n"


def _state(group: RankGroup, cpu: Mapping[int, float]) -> str:
    """Return what the first rank of the group does, and how much of a core its ranks use."""
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


def full_text(stacks: Sequence[RankStack]) -> str:
    """Return every thread of every rank."""
    return "".join(stack_text(stack) for stack in stacks)


def flight_text(flight: Flight, width: int) -> str:
    """Return what the flight recorders of the ranks say of collectives that did not end."""
    return "\n".join(wrap(visible(flight.what), width, "flight recorder: ", "  ")) + "\n"


def stacks_json(
    run_id: str,
    host: str,
    stacks: Sequence[RankStack],
    cpu: Mapping[int, float],
    silent_s: float | None,
    flight: Flight | None,
) -> dict[str, Any]:
    """Return all of it; ``groups`` lists the odd ones out first."""
    return {
        "schema": _SCHEMA,
        "run_id": run_id,
        "host": host,
        "silent_s": None if silent_s is None else round(silent_s, 1),
        "groups": [
            {"ranks": list(group.ranks), "place": group.place.text, "kind": group.place.kind}
            for group in groups(stacks)
        ],
        "ranks": [_rank(stack, cpu.get(stack.rank)) for stack in stacks],
        "flight_recorder": None if flight is None else {"what": flight.what, "missing_ranks": list(flight.missing)},
    }


def _rank(stack: RankStack, cpu: float | None) -> dict[str, Any]:
    known = {name: getattr(stack, name) or None for name in ("kernel", "reads", "source", "problem")}
    rest_s = None if stack.nap is None or stack.nap.rest_s is None else round(stack.nap.rest_s, 1)
    workers = [_rank(each, None) for each in stack.workers]
    told = {name: value for name, value in plain(stack).items() if name != "nap"}
    return {**told, **known, "cpu_percent": cpu, "wakes_in_s": rest_s, "workers": workers}
