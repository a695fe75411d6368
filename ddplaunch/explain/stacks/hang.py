"""Explains from the stacks of all ranks why nothing moves: which rank does not reach the collective, and what keeps it.

A stack shows where a rank is, not why, so every diagnosis here is at most likely. Whether anything moves is measured in
`agent.guard.hang_watch`. The texts are in `families/stacks.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddplaunch.explain.decide.flight import Flight
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.explain.read.traceback import Traceback
from ddplaunch.explain.signatures import named, say, words_for
from ddplaunch.explain.stacks.parse import (
    IMPORTS_AGAIN,
    RankGroup,
    RankStack,
    at_text,
    calls_of,
    evidence_of,
    groups,
    is_at_its_end,
    is_through,
    waits_for_program,
)
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, ranks_text

_WAITED, _FILE_OF = re.compile(r"\brank (\d+) (?:waited )?in "), re.compile(r"/rank-(\d+)\.")
_SAID = 160  # characters of an exception
_THREADS = 2  # ended threads or processes that are named
#: Said of a process that multiprocessing started, if it failed while it imported the script.
IMPORTED_ANEW = "as it imported the script anew"


@dataclass(frozen=True)
class NoProgress:
    """What was measured: nothing moved for ``seconds``; meanwhile, ``busy`` ranks used a core.

    ``left`` maps ranks that have ended, and that others may wait for, to how they ended: ``exit status 0``.
    ``elsewhere``: other hosts have ranks of this run. ``steps`` is the number of the last optimizer step, 0 if it is
    not counted.
    """

    seconds: float
    busy: Mapping[int, float]
    left: Mapping[int, str]
    host: str | None = None
    elsewhere: bool = False
    steps: int = 0


def hang_diagnosis(stacks: Sequence[RankStack], measured: NoProgress) -> Diagnosis:
    """Return what the ranks wait for, and which rank does not come, if that can be told."""
    all_groups = groups(stacks)
    known_groups = [group for group in all_groups if group.place.kind != "unknown"]
    one_process = len(stacks) == 1 and not measured.elsewhere and not measured.left
    waiting = [group for group in known_groups if group.place.needs_others and not one_process]
    late_groups = [group for group in known_groups if group not in waiting]
    if waiting and (measured.left or not late_groups):
        story = _all_wait(waiting, measured)
    elif known_groups:
        story = _some_are_elsewhere(late_groups, waiting, measured)
    else:
        problem = next((f": {stack.problem}" for stack in stacks if stack.problem), "")
        story = _story("hang-unseen", measured, [stack.rank for stack in stacks], problem=problem)
        story = replace(story, certainty="unknown", rank=None)
    if measured.steps:
        story = replace(story, why=f"{story.why}; the last optimizer step was number {measured.steps}")
    return replace(story, host=None if story.rank is None else measured.host, evidence=evidence_of(all_groups))


def _story(name: str, measured: NoProgress, ranks: Sequence[int], **known: str) -> Diagnosis:
    """Return the diagnosis with the texts of this name; it blames ``ranks`` if that is a single rank."""
    words = say(name, since=f"for {duration_text(round(measured.seconds))}", ranks=ranks_text(ranks), **known)
    return Diagnosis(named(name).code, "likely", *words, _only(ranks))


def _all_wait(waiting: Sequence[RankGroup], measured: NoProgress) -> Diagnosis:
    """Return the diagnosis for ranks that wait for each other, or for ranks that have ended."""
    known = _waits(waiting, measured.steps)
    if measured.left:
        how = "; ".join(dict.fromkeys(measured.left[rank] for rank in sorted(measured.left)))
        return _story("hang-after-an-end", measured, sorted(measured.left), how=how, **known)
    kinds = {group.place.kind for group in waiting}
    if len(waiting) > 1 and "gpu" not in kinds:
        odd_ranks = waiting[0].ranks if len(waiting[-1].ranks) > 1 else ()
        name = "in-backward-and-elsewhere" if {"backward"} < kinds else "in-different-calls"
        return _story(f"hang-{name}", measured, odd_ranks, **known)
    if "init_process_group" in known["where"]:
        return _story("hang-in-meeting", measured, (), **known)
    return _story("hang-of-other-hosts" if measured.elsewhere else "hang-in-one-call", measured, (), **known)


def _some_are_elsewhere(
    late_groups: Sequence[RankGroup], waiting: Sequence[RankGroup], measured: NoProgress
) -> Diagnosis:
    """Return the diagnosis with the place of ranks that others wait for, or else of all ranks, computing ones first."""
    busy = measured.busy
    if not waiting:
        late_groups = sorted(late_groups, key=lambda group: not set(group.ranks) & busy.keys())
    first, ranks = late_groups[0], [rank for group in late_groups for rank in group.ranks]
    reason, fix = _reasons(late_groups[: 2 if waiting else 1], busy)
    places = [f"{ranks_text(group.ranks)} {_is(group.ranks)} {at_text(group)}" for group in late_groups[:3]]
    if waiting:
        story = _story("hang-late", measured, ranks, places=" and ".join(places), **_waits(waiting, measured.steps))
        story = replace(story, why="; ".join(filter(None, (reason, story.why))), fixes=(fix,) if fix else story.fixes)
    else:
        computing = [bool(set(group.ranks) & busy.keys()) for group in late_groups]
        is_odd = computing.count(True) == 1 if any(computing) else len(first.ranks) < len(late_groups[-1].ranks)
        ranks = list(first.ranks) if is_odd else ranks
        asleep = all("nanosleep" in stack.kernel for group in late_groups for stack in group.stacks)
        known = {"line": first.place.code_line} | ({"asleep": ""} if asleep else {})
        story = _story("hang-of-all", measured, ranks, places="; ".join(places), **known)
        story = replace(story, why=reason or story.why, fixes=(fix or story.fixes[0], *story.fixes[1:]))
    return replace(story, calls=calls_of(first.stacks[0]))


def located(diagnosis: Diagnosis, stacks: Sequence[RankStack], recorded: Flight | None) -> Diagnosis:
    """Return the diagnosis of a failed collective, with the ranks that did not join it and where each was.

    ``stacks`` are from the moment when the first rank reported the failure, ``recorded`` is from flight recorders.
    """
    recorded = recorded or Flight("")
    suspects = set(recorded.missing) or {diagnosis.rank} - {None}
    known_groups = [
        group for group in groups(stacks) if group.place.kind != "unknown" and not is_at_its_end(group.stacks[0])
    ]
    if recorded.everyone and diagnosis.code == "collective-timeout":
        return _all_called_it(diagnosis, known_groups, recorded)
    busy = [group for group in known_groups if not group.place.needs_others]
    busy = [group for group in busy if not suspects or suspects & set(group.ranks)]
    late_groups = busy or [group for group in known_groups if suspects.issuperset(group.ranks)]
    if not (late_groups or recorded.missing):
        return diagnosis
    diagnosis = _with_those_late(diagnosis, busy)
    were = [
        f"{ranks_text(group.ranks)} {_is(group.ranks, 'was', 'were')} {at_text(group)}"
        for group in late_groups
        if group.place.path
    ]
    called = [
        f"{ranks_text(group.ranks)} had called {_is(group.ranks, 'its', 'their')} last collective as {group.place.text}"
        for group in groups(stack for stack in recorded.last if stack.rank in recorded.missing)
    ]
    reason, fix = _reasons(busy[:2], {})
    if fix.startswith("`kill") or (late_groups and not fix):  # a stopped rank has been ended by now
        fix = say("was-stopped" if fix else "ranks-part").fixes[0]
    general = [item for item in diagnosis.fixes if not (late_groups and "hangs shows where" in item)]
    rank = _only([*suspects] or [rank for group in busy for rank in group.ranks])
    return replace(
        diagnosis,
        what=recorded.what if recorded.missing else diagnosis.what,
        why="; ".join(filter(None, (*(were or called)[:2], reason, diagnosis.why))),
        fixes=tuple(filter(None, (fix, *general))),
        rank=diagnosis.rank if rank is None else rank,
        evidence=(*diagnosis.evidence, *evidence_of(late_groups if were else groups(recorded.last))),
        calls=(calls_of(late_groups[0].stacks[0]) if late_groups else ()) or diagnosis.calls,
    )


def _with_those_late(diagnosis: Diagnosis, late_groups: Sequence[RankGroup]) -> Diagnosis:
    """Return the diagnosis with the ranks of ``late_groups`` as those that did not come.

    Before, it only said that others waited, or that they did so in different calls: `broadcast` and the like let a rank
    continue once it has what it needs, while another rank still waits.
    """
    own = sorted(
        rank for group in late_groups for rank in group.ranks if any(frame.is_own for frame in group.stacks[0].main)
    )
    complain = {int(number) for number in _WAITED.findall(diagnosis.what)}
    complain |= {int(number) for evidence in diagnosis.evidence for number in _FILE_OF.findall(evidence.file)}
    if diagnosis.rank is not None or not own or not complain.isdisjoint(own):
        return diagnosis
    words = say("did-not-come-here", ranks=ranks_text(own), what=diagnosis.what)
    return replace(diagnosis, code="collective-timeout", what=words.what, why=words.why, fixes=())


def _all_called_it(diagnosis: Diagnosis, known_groups: Sequence[RankGroup], recorded: Flight) -> Diagnosis:
    """Return the diagnosis of a collective that every rank of the run had called, but that did not end."""
    words = say("called-by-one" if recorded.everyone == 1 else "called-by-all", ranks=str(recorded.everyone))
    fixes = tuple(fix for fix in diagnosis.fixes if "py-spy" not in fix and "ddplaunch stacks" not in fix)
    evidence = (*diagnosis.evidence, *evidence_of(known_groups))
    return replace(diagnosis, why=words.why, fixes=(*words.fixes, *fixes), evidence=evidence)


def ended_part(traceback: Traceback) -> tuple[str, str]:
    """Return which part of a rank an exception ended: ("thread" or "process", the exception)."""
    raised = traceback.raised
    words = f"{raised.type}: {raised.message}"[:_SAID] + (f" at {raised.frame}" if raised.frame else "")
    again = any(frame.function in IMPORTS_AGAIN for part in traceback.parts for frame in part.frames)
    return "thread" if traceback.side else "process", f"{words} {IMPORTED_ANEW}" if again else words


def with_ended_parts(story: Diagnosis, raised: Sequence[tuple[int, str, str]]) -> Diagnosis:
    """Add the exceptions that ended threads or processes of stalled ranks, whose work is no longer done.

    ``raised`` has entries such as ``(1, "thread", "ValueError: bad")``.
    """
    if not raised:
        return story
    rank, kind, words = raised[0]
    parts = " and ".join(f"a {kind} of rank {rank} was ended by {words}" for rank, kind, words in raised[:_THREADS])
    of_import = {"anew": ""} if IMPORTED_ANEW in words else {}
    ended = say("part-ended", parts=parts, rank=str(rank), kind=kind, **of_import)
    return replace(story, why=f"{ended.why}; {story.why}", fixes=(ended.fixes[0], *story.fixes))


def _only(ranks: Sequence[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None


def _is(ranks: Sequence[int], one: str = "is", several: str = "are") -> str:
    return several if len(ranks) > 1 else one


def _waits(waiting: Sequence[RankGroup], steps: int) -> dict[str, str]:
    """Return where ranks wait; and the group that makes texts mention batches, from the first step on."""
    parts = [
        f"{ranks_text(group.ranks)} {_is(group.ranks, 'has waited', 'have waited')} in {group.place.text}"
        for group in waiting[:2]
    ]
    known = {"where": " and ".join(parts) + (" and elsewhere" if len(waiting) > 2 else "")}
    return {**known, "batches": ""} if steps or any(group.place.kind == "backward" for group in waiting) else known


def _reasons(late_groups: Sequence[RankGroup], busy: Mapping[int, float]) -> tuple[str, str]:
    """Return what keeps the ranks of each group at their place, and the fix for the first group; empty if unknown."""
    reasons = [_reason(group, busy) for group in late_groups]
    return "; ".join(dict.fromkeys(why for why, _ in reasons if why)), reasons[0][1] if reasons else ""


def _reason(group: RankGroup, busy: Mapping[int, float]) -> tuple[str, str]:
    """Return what keeps the ranks of ``group`` at their place, and the fix; ``busy`` is as in `NoProgress`."""
    stack = group.stacks[0]
    share = busy.get(stack.rank)
    text = (
        f"{group.place.kind} of a rank, state {stack.state},"
        f"{' busy' * (share is not None or stack.state == 'R')}{' with a program' * waits_for_program(stack)}"
        f"{' at its end' * is_through(stack)} reads {stack.reads or '-'} in the kernel: {stack.kernel}"
    )
    name = next((words.name for words, _ in words_for("", text)), "")
    if not name:
        return "", ""
    alike = [each.rank for each in group.stacks if "nanosleep" in each.kernel or name != "sleeps"]
    known = {
        "who": ranks_text(alike if name == "sleeps" else alike[:1]),
        "line": group.place.code_line,
        "in_kernel": f" (`{stack.kernel}`)" if stack.kernel else "",
        "used": "" if share is None else f" ({min(share, 1.0):.0%} of a core)",
        "below": "",
        "pid": str(stack.pid),
        "reads": stack.reads,
        "s": _is(alike, "s", ""),
    }
    for below in groups(worker for worker in stack.workers if any(frame.is_own for frame in worker.main)):
        if below.place.kind == "own":  # not a DataLoader worker that waits for its next index
            known |= {"below": f": one is {at_text(below)}", "place": below.place.code_line}
    words = say(name, **known)
    return words.why, words.fixes[0]
