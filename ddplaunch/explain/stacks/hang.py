"""Why nothing moves, from the stacks of all ranks: which rank does not come to the collective, and what keeps it.

A stack shows where a rank is and not why, so every diagnosis here is at most likely. Whether anything moves is measured
in `agent.guard.hang_watch`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ddplaunch.explain.diagnosis import Diagnosis, Evidence
from ddplaunch.explain.stacks.parse import (
    EVIDENCE,
    UNGUARDED,
    Kind,
    RankGroup,
    RankStack,
    at_text,
    beside,
    calls_of,
    evidence_of,
    groups,
    is_at_its_end,
    is_own,
    is_through,
    kept_below,
    place_of,
    waits_for_program,
)
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text, ranks_text

if TYPE_CHECKING:
    from ddplaunch.explain.decide.collectives import Flight

_FILES = re.compile(r"nfs|rpc_|fuse|ceph|lustre|gpfs|cifs|smb|p9_|io_schedule|folio_wait|wait_on_page|jbd2|xfs_|ext4_")
#: What a rank does in a function of the kernel, and what to do about the user's line.
_IN_KERNEL = (
    (
        r"pipe_write|pipe_wait_writable|sock_alloc_send|sk_stream_wait_memory",
        "writes into a pipe or socket from which nobody reads",
        "look at what {} writes to: `communicate()` writes and reads at once, and a file takes it all",
    ),
    (
        r"wait_woken|pipe_read|fifo_open|wait_for_partner|tty_read|read_chan|splice_from_pipe",
        "waits for input: into its terminal, pipe or FIFO nobody writes",
        "look at what {} reads; ranks have no input to wait for",
    ),
    (
        r"lock_inode_wait|fcntl_setlk",
        "waits for the lock of a file that another process holds",
        "`lslocks` shows who holds what {} asks for",
    ),
    (
        r"poll_schedule|epoll_wait|ep_poll|do_select",
        "waits until a socket or pipe has something for it",
        "give what {} waits for a time-out",
    ),
    (
        r"unix_stream|skb_wait|sk_wait|inet_csk|tcp_",
        "waits for an answer over the network",
        "give what {} asks a time-out",
    ),
)
_COLLECTIVE_WHY = "a collective needs all ranks of its group: until the last one comes, the others wait"
SAME_ORDER = "look for collectives under an `if` on the rank, a `break` or an exception that only some ranks take"
EQUAL_BATCHES = (
    "give every rank equally many batches: DistributedSampler with `drop_last=True`, or `with Join([model]):`"
)
_TRANSPORT = "`--nccl-debug INFO` or `--env TORCH_DISTRIBUTED_DEBUG=DETAIL` shows what the group waits for"
_SILENT = "a loop that is meant to sleep in silence needs a longer `--hang-timeout`, or a line of output now and then"
_STOPPED = "look for what stops processes there: a debugger, Ctrl-Z, `scontrol suspend`, a script that sends SIGSTOP"
_WAITED, _FILE_OF = re.compile(r"\brank (\d+) (?:waited )?in "), re.compile(r"/rank-(\d+)\.")
_THREADS = 2  # that ended by an exception and are named
#: What is said of a process that multiprocessing started, and that failed below the script's own first lines.
IMPORTED_ANEW = "as it imported the script anew"


@dataclass(frozen=True)
class NoProgress:
    """What was measured: nothing moved for ``seconds``; ``busy`` ranks used a core meanwhile.

    ``left`` says how ranks have ended that the others may wait for: rank to ``exit status 0``. ``elsewhere`` is True
    where other hosts have ranks of this run. ``steps`` is the number of the last optimizer step, 0 where nobody counts,
    and ``raised`` which exception has ended a thread or a process of which rank: ``(1, "thread", "ValueError: bad")``.
    """

    seconds: float
    busy: Mapping[int, float]
    left: Mapping[int, str]
    host: str | None = None
    elsewhere: bool = False
    steps: int = 0
    raised: tuple[tuple[int, str, str], ...] = ()


def hang_diagnosis(stacks: Sequence[RankStack], measured: NoProgress) -> Diagnosis:
    """Return what the ranks wait for, with the rank that does not come where one can be told."""
    all_groups = groups(stacks)
    known_groups = [group for group in all_groups if group.place.kind != "unknown"]
    one_process = len(stacks) == 1 and not measured.elsewhere and not measured.left
    waiting = [group for group in known_groups if group.place.needs_others and not one_process]
    late_groups = [group for group in known_groups if group not in waiting]
    since = f"for {duration_text(round(measured.seconds))}"
    if measured.left and waiting:
        story = _waiting_for_ended(waiting, measured.left, since)
    elif waiting and late_groups:
        story = _waiting_for_late(late_groups, waiting, measured.busy, since)
    elif len(waiting) > 1 and all(group.place.kind in ("collective", "meeting") for group in waiting):
        story = _in_different_calls(waiting, since)  # and not at different moments of one training step
    elif waiting:
        story = _in_one_call(waiting, measured.elsewhere, since)
    elif known_groups:
        story = _none_waits(known_groups, [stack.rank for stack in stacks], measured.busy, since)
    else:
        story = _nothing_known(stacks, since)
    story = with_ended_parts(story, measured.raised)
    if measured.steps:
        story = replace(story, why=f"{story.why}; the last optimizer step was number {measured.steps}")
    return replace(story, host=None if story.rank is None else measured.host, evidence=evidence_of(all_groups))


def located(diagnosis: Diagnosis, stacks: Sequence[RankStack], recorded: Flight | None) -> Diagnosis:
    """Return the diagnosis of a collective that failed, with the ranks that did not join it and where each was.

    ``stacks`` are of the moment when the first rank said so, ``recorded`` is what flight recorders say.
    """
    missing, last = (recorded.missing, recorded.last) if recorded is not None else ((), ())
    suspects = set(missing or (() if diagnosis.rank is None else (diagnosis.rank,)))
    known_groups = [
        group for group in groups(stacks) if group.place.kind != "unknown" and not is_at_its_end(group.stacks[0])
    ]
    if recorded is not None and recorded.everyone and diagnosis.code == "collective-timeout":
        return _all_called_it(diagnosis, known_groups, recorded)
    busy_elsewhere = [
        group
        for group in known_groups
        if not group.place.needs_others and (not suspects or suspects & set(group.ranks))
    ]
    diagnosis = _with_those_late(diagnosis, busy_elsewhere)
    late_groups = busy_elsewhere or [group for group in known_groups if suspects.issuperset(group.ranks)]
    places = [(group.place, ranks_text(group.ranks)) for group in late_groups if group.place.path]
    place_texts = [
        f"{ranks_text(group.ranks)} {'were' if len(group.ranks) > 1 else 'was'} {at_text(group)}"
        for group in late_groups
        if group.place.path
    ]
    if not place_texts:
        places = [(place, f"rank {rank}") for rank, place in last if place.path]
        place_texts = [
            f"rank {rank} had called its last collective as {place.text}" for rank, place in last if rank in missing
        ]
    if not (late_groups or missing):
        return diagnosis
    reason, fix = _reasons(busy_elsewhere, {}) if busy_elsewhere else ("", SAME_ORDER if late_groups else "")
    fix = _STOPPED if fix.startswith("`kill") else fix  # by now it has been ended
    if busy_elsewhere and not fix and busy_elsewhere[0].place.path:
        fix = f"look at what {busy_elsewhere[0].place.code_line} waits for"
    general = [item for item in diagnosis.fixes if not (late_groups and "hangs shows where" in item)]
    rank = _only([*suspects] or [rank for group in busy_elsewhere for rank in group.ranks])
    return replace(
        diagnosis,
        what=recorded.what if recorded is not None and missing else diagnosis.what,
        why="; ".join(filter(None, (*place_texts[:2], reason, diagnosis.why))),
        fixes=tuple(filter(None, (fix, *general))),
        rank=diagnosis.rank if rank is None else rank,
        evidence=(
            *diagnosis.evidence,
            *(Evidence(place.path, place.line, f"{who}: {place.text}") for place, who in places[:EVIDENCE]),
        ),
        calls=(calls_of(late_groups[0].stacks[0]) if late_groups else ()) or diagnosis.calls,
    )


def _with_those_late(diagnosis: Diagnosis, late_groups: Sequence[RankGroup]) -> Diagnosis:
    """Return the diagnosis with ranks of ``late_groups`` as those that did not come.

    It said only that others waited, or that they did so in different calls: `broadcast` and its like let a rank go on
    that has what it needs, while another one still waits.
    """
    at_own_code = sorted(
        rank for group in late_groups for rank in group.ranks if any(map(is_own, group.stacks[0].main))
    )
    complain = {int(number) for number in _WAITED.findall(diagnosis.what)}
    complain |= {int(number) for evidence in diagnosis.evidence for number in _FILE_OF.findall(evidence.file)}
    if (
        diagnosis.rank is not None
        or not at_own_code
        or complain & set(at_own_code)
        or not diagnosis.code.startswith("collective-")
    ):
        return diagnosis
    what = f"{ranks_text(at_own_code)} did not come to a collective: {diagnosis.what}"
    return replace(diagnosis, code="collective-timeout", what=what, why=_COLLECTIVE_WHY, fixes=())


def _all_called_it(diagnosis: Diagnosis, known_groups: Sequence[RankGroup], recorded: Flight) -> Diagnosis:
    """Return the diagnosis of a collective that every rank of the run had called, and that did not end all the same."""
    one_rank = recorded.everyone == 1
    busy = "GPU was still busy with what it had been given before"
    why = f"all {recorded.everyone} ranks had called it: the data did not get through, or a {busy}"
    fixes = tuple(fix for fix in diagnosis.fixes if "py-spy" not in fix and "ddplaunch stacks" not in fix)
    return replace(
        diagnosis,
        why=f"the run has one process, and that had called it: its {busy}" if one_rank else why,
        fixes=fixes if one_rank else (_TRANSPORT, *fixes),
        evidence=(*diagnosis.evidence, *evidence_of(known_groups)),
    )


def with_ended_parts(story: Diagnosis, raised: Sequence[tuple[int, str, str]]) -> Diagnosis:
    """Name the exceptions that ended threads or processes of ranks that stand still: nobody does their work."""
    if not raised:
        return story
    named = [f"a {kind} of rank {rank} was ended by {words}" for rank, kind, words in raised[:_THREADS]]
    also = f"{' and '.join(named)}: what it was to do, nobody does any more"
    rank, kind, words = raised[0]
    first = f"look at the exception of rank {rank}'s {kind} first: a {kind} that ends tells no other"
    fixes = (UNGUARDED if IMPORTED_ANEW in words else first, *story.fixes)
    return replace(story, why=f"{also}; {story.why}", fixes=fixes)


def _waiting_for_ended(waiting: Sequence[RankGroup], reasons: Mapping[int, str], since: str) -> Diagnosis:
    ended_ranks = sorted(reasons)
    how = "; ".join(dict.fromkeys(reasons[rank] for rank in ended_ranks))
    what = f"{ranks_text(ended_ranks)} had ended ({how}) while {_where(waiting)} {since}"
    return Diagnosis(
        "collective-timeout", "likely", what, _COLLECTIVE_WHY, (EQUAL_BATCHES, SAME_ORDER), _only(ended_ranks)
    )


def _waiting_for_late(
    late_groups: Sequence[RankGroup], waiting: Sequence[RankGroup], busy: Mapping[int, float], since: str
) -> Diagnosis:
    ranks = [rank for group in late_groups for rank in group.ranks]
    reason, fix = _reasons(late_groups, busy)
    at = " and ".join(at_text(group) for group in late_groups[:2])
    what = f"{ranks_text(ranks)} {'are' if len(ranks) > 1 else 'is'} {at}, and {_where(waiting)} {since}"
    why = f"{reason}; {_COLLECTIVE_WHY}" if reason else _COLLECTIVE_WHY
    if not fix and late_groups[0].place.kind == "own" and late_groups[0].place.path:
        fix = f"look at what {late_groups[0].place.code_line} waits for: a lock, a queue, another thread"
    fixes = (fix,) if fix else (EQUAL_BATCHES, SAME_ORDER)
    calls = calls_of(late_groups[0].stacks[0])
    return Diagnosis("collective-timeout", "likely", what, why, fixes, _only(ranks), calls=calls)


def _in_different_calls(waiting: Sequence[RankGroup], since: str) -> Diagnosis:
    parts = [f"{ranks_text(group.ranks)} in {group.place.text}" for group in waiting[:3]]
    what = f"ranks wait for each other in different calls {since}: {', '.join(parts)}"
    why = "ranks pair up their collectives by order: if one calls another one, or one more, all wait for ever"
    rank = _only(waiting[0].ranks) if len(waiting[-1].ranks) > 1 else None
    return Diagnosis("collective-mismatch", "likely", what, why, (SAME_ORDER, EQUAL_BATCHES), rank)


def _in_one_call(waiting: Sequence[RankGroup], elsewhere: bool, since: str) -> Diagnosis:
    if elsewhere:
        what = f"{_where(waiting)} {since}; the rank that has not come is on another host"
        fixes = ("`ddplaunch stacks` on the other hosts shows where their ranks are", SAME_ORDER)
    else:
        what = f"all ranks: {_where(waiting)} {since}, and none is elsewhere"
        fixes = (_TRANSPORT, EQUAL_BATCHES)
    why = "the ranks are in the same line, but not in the same turn of a loop, or what carries data between them stalls"
    return Diagnosis("collective-timeout", "likely", what, why, fixes)


def _none_waits(
    known_groups: Sequence[RankGroup], ranks: Sequence[int], busy: Mapping[int, float], since: str
) -> Diagnosis:
    """Tell where the ranks are, first those that compute, because the others may wait for them unseen."""
    known_groups = sorted(known_groups, key=lambda group: not set(group.ranks) & busy.keys())
    first, computing = known_groups[0], [bool(set(group.ranks) & busy.keys()) for group in known_groups]
    reason, fix = _reason(first, busy)
    at = "; ".join(f"{ranks_text(group.ranks)} {at_text(group)}" for group in known_groups[:3])
    why = reason or "no rank computes, reads or prints anything: each waits for something that does not come"
    odd = computing.count(True) == 1 if any(computing) else len(first.ranks) < len(known_groups[-1].ranks)
    asleep = all("nanosleep" in stack.kernel for group in known_groups for stack in group.stacks)
    fixes = (fix or f"look at what {first.place.code_line} waits for", *((_SILENT,) if asleep else ()))
    rank = _only(first.ranks if odd and len(known_groups) > 1 else ranks)
    what = f"nothing has moved {since}: {at}"
    return Diagnosis("hang", "likely", what, why, fixes, rank, calls=calls_of(first.stacks[0]))


def _nothing_known(stacks: Sequence[RankStack], since: str) -> Diagnosis:
    problem = next((stack.problem for stack in stacks if stack.problem), "")
    what = f"{ranks_text([stack.rank for stack in stacks])}: no output and no computation {since}"
    why = f"where they are is not known: {problem}" if problem else "where they are is not known"
    return Diagnosis("hang", "unknown", what, why, ("`--stacks` lets ranks show where they are",))


def _only(ranks: Sequence[int]) -> int | None:
    return ranks[0] if len(ranks) == 1 else None


def _where(waiting: Sequence[RankGroup]) -> str:
    parts = []
    for group in waiting[:2]:
        verb = "wait" if len(group.ranks) > 1 else "waits"
        parts.append(f"{ranks_text(group.ranks)} {verb} in {group.place.text}")
    return " and ".join(parts) + (" and elsewhere" if len(waiting) > 2 else "")


def _reasons(late_groups: Sequence[RankGroup], busy: Mapping[int, float]) -> tuple[str, str]:
    reasons = [_reason(group, busy) for group in late_groups[:2]]
    return "; ".join(dict.fromkeys(why for why, _ in reasons if why)), reasons[0][1]


def _reason(group: RankGroup, busy: Mapping[int, float]) -> tuple[str, str]:
    """Return what keeps the ranks of ``group`` at their place, and what to do; empty where nothing tells.

    ``busy`` is how much of a core a rank used.
    """
    stack = group.stacks[0]
    who, line = ranks_text(group.ranks[:1]), group.place.code_line
    if stack.state in ("T", "t"):
        why = f"{who} is stopped, by SIGSTOP, Ctrl-Z or a debugger (state {stack.state})"
        return why, f"`kill -CONT {stack.pid}` lets it go on"
    if stack.state == "D" or _FILES.search(stack.kernel):
        why = f"{who} waits in the kernel{_function(stack.kernel)} for a disk or a file server"
        return why, "`findmnt` and `dmesg | tail` show mounts that do not answer"
    if (share := busy.get(stack.rank)) is not None or stack.state == "R":
        return _computes(stack, who, line, share)
    if group.place.kind in ("gpu", "loader"):
        return _waits_inside(stack, who, group.place.kind)
    if "nanosleep" in stack.kernel:
        alike = [each.rank for each in group.stacks if "nanosleep" in each.kernel]
        return f"{ranks_text(alike)} sleep{'s' * (len(alike) == 1)}", f"look at what {line} sleeps for"
    return _waits_in_kernel(stack, who, line)


def _waits_in_kernel(stack: RankStack, who: str, line: str) -> tuple[str, str]:
    if is_through(stack):
        why = f"{who} has come to its end, and waits for a thread or process of its own that does not{beside(stack)}"
        return why, "let that one end before the script does, or start it with `daemon=True`"
    if stack.reads and not stack.reads.startswith("socket:"):
        why = f"{who} reads from `{stack.reads}`, from which nothing comes{_function(stack.kernel)}"
        return why, f"look at what writes to `{stack.reads}`; ranks have no input to wait for"
    if waits_for_program(stack):
        below, fix = kept_below(stack)
        why = f"{who} waits for a program that it has started{below}"
        return why, fix or f"look at what {line} has started, which does not end"
    waits = "sk_wait" if stack.reads else stack.kernel  # from a socket, by whatever function
    for function, does, fix in _IN_KERNEL:
        if re.search(function, waits):
            return f"{who} {does}{_function(stack.kernel)}", fix.format(line)
    return (f"{who} waits for a lock or another thread{beside(stack)}" if "futex" in stack.kernel else ""), ""


def _computes(stack: RankStack, who: str, line: str, share: float | None) -> tuple[str, str]:
    if place_of(stack).kind == "gpu":  # by spinning
        return _waits_inside(stack, who, "gpu")
    used = "" if share is None else f" ({min(share, 1.0):.0%} of a core)"
    if waits_for_program(stack):
        return f"a program that {who} has started computes{used}", f"look at what {line} has started"
    return f"{who} computes{used} without coming to an end", f"look for a loop at {line} that never ends"


def _waits_inside(stack: RankStack, who: str, kind: Kind) -> tuple[str, str]:
    if kind == "gpu":
        return f"{who} waits for its GPU", "`nvidia-smi` shows whether that one computes"
    below, fix = kept_below(stack)
    why = f"{who} waits for its DataLoader workers, which send nothing{below}"
    return why, fix or "`--workers 0` if the script takes it, or `num_workers=0`, shows the error that a worker hides"


def _function(kernel: str) -> str:
    return f" (`{kernel}`)" if kernel else ""
