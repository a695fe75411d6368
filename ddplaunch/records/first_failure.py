"""Decides who failed first and which exit status follows, from the first rank's end to a run on many hosts.

Each step knows more than the one before:

1. The guard sees ranks end, in order: `first_to_fail`, `who_ended`.
2. When a node's run ends, torchrun's messages tell which ranks torchrun ended (`failed_by_itself`), and the logs may
   accuse a rank (`first_failed`). `run_state` and `exit_status` follow; if the guard is gone, the plug-in calls
   `exit_status` with what torchrun alone knows.
3. Over several hosts, the nodes' own failures (`node_failure`) are compared by one clock (`first_node_to_fail`), and
   `status_of_all` returns the exit status of the whole launch. Under Slurm `first_failed_node` does both.

The guard, a light interpreter without site-packages, imports this module: no dataclasses here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from ddplaunch.values.words import SIGNALS

if TYPE_CHECKING:
    from ddplaunch.records.outcome import EndedBy, RankOutcome, RunOutcome, RunState

SIGHUP, SIGINT, SIGQUIT = SIGNALS["SIGHUP"], SIGNALS["SIGINT"], SIGNALS["SIGQUIT"]
SIGKILL, SIGTERM = SIGNALS["SIGKILL"], SIGNALS["SIGTERM"]

#: torchrun's state at its end. "signal": a signal told it to end. "error": an exception of its own.
TorchrunState = Literal["succeeded", "failed", "signal", "error"]
#: The code of the diagnosis of a run that ``--timeout`` ended.
TIME_LIMIT = "time-limit"

_TIMED_OUT = 124  # ExitStatus.TIMED_OUT; importing it is too slow for the guard
_TORCHRUN_KILLED = 128 + SIGKILL
#: A rank that is told to end is ended by one of these signals, or exits with 128 + its number, as shells do.
_ORDERS = (SIGTERM, SIGKILL, SIGINT, SIGHUP, SIGQUIT)
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)  # continues while a laptop sleeps; Linux only


def _passed_s() -> float:
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


_OFFSET_S = time.time() - _passed_s()


def steady_s() -> float:
    """Return seconds since the epoch from a steady clock, for times and durations of events in a run.

    It is the wall clock at the start of this process plus the time passed since. The wall clock itself may be set
    during a run, by hand or by NTP, and a run could seem to end before it began.
    """
    return _OFFSET_S + _passed_s()


class SeenEnd(NamedTuple):
    """The end of one rank as its guard saw it. ``ended_s`` is None while it runs; ``signal`` is a number.

    ``told_to_end``: it ended after the guard knew that ranks were being ended. ``seen_alive`` is False for a rank that
    had already ended when the guard first looked.
    """

    rank: int
    exit_code: int | None
    signal: int | None
    ended_s: float | None
    told_to_end: bool = False
    seen_alive: bool = True


# 1. What the guard sees


def first_to_fail(in_order: Sequence[SeenEnd], unordered: Iterable[SeenEnd]) -> SeenEnd | None:
    """Return the rank that failed first, or None. ``in_order`` are the ranks that were seen to end.

    - Ranks that were not seen to end follow, by torchrun's time.
    - Ranks already gone at the first look come last if they ended by SIGTERM: torchrun sends it.
    - A rank that ended as it was told to has not failed.
    - A rank with unknown status is first if the next one was ended because of it, by SIGTERM.
    """
    order = [*in_order, *sorted(unordered, key=lambda end: (end.ended_s or math.inf, end.rank))]
    unseen = None
    for one in sorted(order, key=lambda end: not end.seen_alive and end.signal == SIGTERM):
        if one.told_to_end and obeyed(one):
            continue
        if one.exit_code is None and one.signal is None and one.ended_s is not None:
            unseen = unseen or one
        elif one.exit_code or one.signal:
            return unseen if unseen is not None and one.signal == SIGTERM else one
    return None


def who_ended(one: SeenEnd, first: SeenEnd | None) -> EndedBy | None:
    """Return who ended a rank, None while it runs; torchrun ends the other ranks as soon as ``first`` has failed."""
    if one.ended_s is None:
        return None
    first_s = math.inf if first is None else first.ended_s or math.inf
    later = one.told_to_end or ((first is None or one.rank != first.rank) and one.ended_s >= first_s)
    return "launcher" if later and obeyed(one) else "itself"


def obeyed(one: SeenEnd) -> bool:
    """Return whether a rank ended as a signal to end asks for."""
    return (one.told_to_end and one.exit_code == 0) or one.signal in _ORDERS or (one.exit_code or 0) - 128 in _ORDERS


# 2. The end of one node's run


def failed_by_itself(end: RankOutcome) -> bool:
    """Return whether the rank failed before it was told to end."""
    return end.ended_by != "launcher" and bool(end.exit_code or end.signal)


def first_failed(ends: Iterable[RankOutcome], accused: int | None, seen_first: int | None) -> RankOutcome | None:
    """Return the rank that failed first: ``accused`` by the evidence, else ``seen_first``, else the earliest.

    Only ranks that failed by themselves count; None if there are none.
    """
    failed = {end.rank: end for end in ends if failed_by_itself(end)}
    for rank in (accused, seen_first):
        if rank is not None and rank in failed:
            return failed[rank]
    return min(failed.values(), key=lambda end: (end.ended_s is None, end.ended_s or 0.0, end.rank), default=None)


def run_state(state: TorchrunState, *, launcher_died: bool = False, stopped: str | None = None) -> RunState:
    """Return how the run ended, as torchrun says; a run whose torchrun died without a word was killed.

    ``stopped`` is the code of the diagnosis with which the guard ended the run: after `--timeout` the state is
    "terminated", after a hang with `--on-hang stop` it is "failed".
    """
    if stopped is not None:
        return "terminated" if stopped == TIME_LIMIT else "failed"
    if launcher_died:
        return "killed"
    if state == "signal":
        return "terminated"
    return "succeeded" if state == "succeeded" else "failed"


def exit_status(
    state: TorchrunState,
    first: RankOutcome | None = None,
    failures: Iterable[tuple[int, int]] = (),
    *,
    signal: int | None = None,
    launcher_died: bool = False,
    stopped: bool = False,
) -> int:
    """Return the exit status of torchrun's process. The first rule that applies decides:

    - 124, as timeout(1), if `--timeout` or `--on-hang stop` ended the run (``stopped``);
    - 137 if torchrun was killed;
    - 0 for success, 128 + ``signal`` if a signal told torchrun to end;
    - the exit status of ``first``, the rank that failed first;
    - the earliest of torchrun's own ``failures``, pairs of time in s and exit code (negative for a signal); SIGTERM
      only counts if there is nothing else, because torchrun sends it;
    - 1.
    """
    if stopped:
        return _TIMED_OUT
    if launcher_died:
        return _TORCHRUN_KILLED
    if state == "succeeded":
        return 0
    if state == "signal" and signal:
        return 128 + signal
    if first is not None:
        return own_status(first)
    codes = [code for _, code in sorted(failures, key=lambda failure: failure[0])]
    code = next((code for code in codes if code != -SIGTERM), codes[0] if codes else 1)
    return code if code > 0 else 128 - code


def own_status(end: RankOutcome) -> int:
    """Return a rank's exit code, or 128 + the signal that ended it, as in a shell."""
    if end.exit_code:
        return end.exit_code
    name = end.signal or ""
    number = name.removeprefix("signal ")  # a signal without a name
    return 128 + (int(number) if number.isdecimal() else SIGNALS.get(name, 0))


# 3. A run on several nodes


class NodeFailure(NamedTuple):
    """One node's own failure: when, by a clock shared by all nodes, and what failed."""

    at_s: float
    node: int
    kind: Literal["ranks", "torchrun", "lost", "other"]


def node_failure(
    node: int,
    outcome: RunOutcome | None,
    status: int | None,
    *,
    told: int | None = None,
    lost: bool = False,
    heard_s: float = 0.0,
) -> NodeFailure | None:
    """Return a node's own failure; None if it succeeded, or ended because it was told to.

    ``status`` is its exit status, ``told`` the signal that the launcher had sent it before, ``lost`` whether the
    launcher lost the host, ``heard_s`` when it last heard from it. The first that applies:

    - the host was lost: it failed when it was last heard;
    - ranks of the last attempt failed by themselves: the earliest of them;
    - torchrun was killed, but not by the launcher: one second before the guard ended its ranks, because the time of
      torchrun's death is not recorded; ranks that ended well do not count;
    - any other end with a nonzero status, unless it was told to end.
    """
    if lost:
        return NodeFailure(heard_s, node, "lost")
    if status == 0:
        return None
    if outcome is None:
        return None if told is not None else NodeFailure(heard_s, node, "other")
    own_ends = [rank.ended_s for rank in outcome.last_ranks if failed_by_itself(rank) and rank.ended_s is not None]
    if own_ends:
        return NodeFailure(min(own_ends), node, "ranks")
    if outcome.state == "killed":
        bad_ranks = [rank for rank in outcome.last_ranks if rank.exit_code or rank.signal]  # others ended earlier
        ends = [rank.ended_s for rank in bad_ranks if rank.ended_s is not None]
        died_s = min(ends, default=outcome.ended_s) - 1.0
        return None if told == SIGKILL else NodeFailure(died_s, node, "torchrun")
    if outcome.state == "terminated" or told is not None:
        return None
    return NodeFailure(outcome.ended_s, node, "other")


def first_node_to_fail(failures: Iterable[NodeFailure], interrupted: bool = False) -> NodeFailure | None:
    """Return the earliest failure, or None; if the launch was ``interrupted``, None unless a rank failed by itself."""
    in_order = sorted(failures, key=lambda failure: (failure.at_s, failure.node))
    if interrupted and not any(failure.kind == "ranks" for failure in in_order):
        return None
    return in_order[0] if in_order else None


def status_of_all(
    first: NodeFailure, accused: int | None, outcomes: Mapping[int, RunOutcome], status: int | None
) -> int:
    """Return the exit status of a launch on all nodes: that of the ``accused`` rank, else ``status``, the first node's.

    The accused rank may be on any node; it only counts if ranks failed.
    """
    ends = (rank for outcome in outcomes.values() for rank in outcome.last_ranks)
    for rank in ends if first.kind == "ranks" and accused is not None else ():
        if rank.rank == accused and (rank.exit_code or rank.signal):
            return own_status(rank)
    return status or 1


def first_failed_node(outcomes: Mapping[int, RunOutcome]) -> RunOutcome | None:
    """Return the outcome of the node that failed first in a Slurm job; None if no node failed.

    srun exits with the highest status of its tasks, often that of a node that srun ended itself (143), and Slurm kills
    torchrun at its limits; so only nodes whose state is "failed" count. Times of different hosts are compared as they
    are; clocks that differ by more than the job takes to end can mislead.
    """
    failed = [
        (node, outcome) for node, outcome in outcomes.items() if outcome.state == "failed" and outcome.exit_status
    ]
    first = first_node_to_fail(
        failure for node, outcome in failed if (failure := node_failure(node, outcome, outcome.exit_status)) is not None
    )
    return None if first is None else outcomes[first.node]
