"""What `ddplaunch stacks` prints: where the ranks of a run are, the odd ones out first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.explain.decide.collectives import Flight
from ddplaunch.explain.stacks.parse import RankGroup, RankStack, groups, stack_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.words import count, duration_text, ranks_text

_SCHEMA = 1


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
