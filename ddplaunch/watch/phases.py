"""Reads how steps spent their time, as ranks wrote it with ``--phases``, sums it up, and puts it into words.

``agent/rank_site/ddplaunch_phases.py`` writes ``rank-N.phases.jsonl``. Values that a rank could not measure are None.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ddplaunch.machine.files import read_end
from ddplaunch.machine.hardware import probe_cpu
from ddplaunch.records.find import numbered
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count, size_text

#: The phases that ranks measure, in the order of a step.
PHASES = ("data", "forward", "backward", "comm", "optimizer")
MOST_BYTES = 1 << 26
_MOST = 1e18  # larger numbers in a file are not a rank's
_AT_ONCE = 5  # steps per median
_LIKE = 1.15  # medians that differ by a smaller factor are alike
_LATER = 1.1  # a rank that works this much longer than the others is waited for ...
_WAITED = 0.1  # ... if they wait this share of the step more than it does
_MOST_OF_IT = 0.5  # ... and its extra time is this share of their waiting
_BOUND = 0.25  # a phase with this share of the time holds the steps back
_COMPUTES = 0.5
_CROWDED = 2  # times as many threads as CPUs: then ranks wait for each other because of that
_FEW, _MOMENT_S = 10, 1.0  # in fewer steps and less time a rank may be late by chance
_END_BYTES = 1 << 16  # of each rank's file: some minutes of a long run, and many ranks are read in seconds
_ALL_WAIT = 0.5  # of the late rank's wait for data: ranks that wait as long have the same problem


class StepLine(NamedTuple):
    """One line: a step, or sums over ``steps``; times in seconds, ``end_s`` since 1970, ``waited_s`` for a CPU."""

    step: int
    end_s: float
    steps: int
    wall_s: float | None
    data_s: float | None
    forward_s: float | None
    backward_s: float | None
    comm_s: float | None
    optimizer_s: float | None
    samples: int | None
    peak_bytes: int | None
    waited_s: float | None = None


class RankFile(NamedTuple):
    """A rank's file so far. ``facts`` are world_size, device, threads, loader, gradient_bytes, not_finite_since."""

    facts: Mapping[str, Any]
    lines: tuple[StepLine, ...]


@dataclass(frozen=True)
class RankPhases:
    """The times of some steps of one rank: the median, tenth and ninetieth percentile, mean, and mean shares.

    ``shares`` are fractions of the time, by the names in ``PHASES`` and "rest", which includes all unknown time.
    ``waits`` is the fraction of the time that it waited for a CPU, None if unknown.
    """

    rank: int
    steps: int
    step_s: float
    fastest_s: float
    slowest_s: float
    mean_s: float
    shares: Mapping[str, float | None]
    samples_per_s: float | None
    peak_bytes: int | None
    facts: Mapping[str, Any]
    waits: float | None = None

    @property
    def own_s(self) -> float:
        """How long the rank works in a mean step, without waiting for communication, which counts as 0 if unknown."""
        return self.mean_s - self.takes_s("comm")

    def takes_s(self, phase: str) -> float:
        """Return how long a phase takes in a mean step; 0 if unknown."""
        return (self.shares[phase] or 0) * self.mean_s


def phases_path(attempt: Path, rank: int) -> Path:
    """Return the path of the file to which a rank of an attempt writes its phases."""
    return attempt / f"rank-{rank}.phases.jsonl"


def phases_ranks(attempt: Path) -> list[int]:
    """Return the ranks of an attempt that write their phases."""
    names = (path.name.removeprefix("rank-").split(".")[0] for path in attempt.glob("rank-*.phases.jsonl"))
    return sorted(int(name) for name in names if name.isdecimal())


def read_phases(attempt: Path, ranks: Sequence[int] | None = None, most_bytes: int = MOST_BYTES) -> dict[int, RankFile]:
    """Return the ends of the files of ``ranks`` (None: all ranks) by rank, without those that do not exist."""
    file_by_rank = {}
    for rank in phases_ranks(attempt) if ranks is None else sorted(ranks):
        if data := read_end(phases_path(attempt, rank), most_bytes):
            file_by_rank[rank] = parsed(data.split(b"\n")[:-1])
    return file_by_rank


def parsed(lines: Sequence[bytes]) -> RankFile:
    """Return the contents of whole lines of a file; malformed lines are skipped."""
    facts: dict[str, Any] = {}
    steps = []
    for text in lines:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            facts.update(value)
        elif (line := _line(value)) is not None:
            steps.append(line)
    return RankFile(facts, tuple(steps))


def _line(value: Any) -> StepLine | None:
    if not isinstance(value, list) or len(value) != len(StepLine._fields) or None in value[:3] or not value[2]:
        return None
    if any(type(number) not in (int, float) or not 0 <= number < _MOST for number in value if number is not None):
        return None
    step, end_s, steps, *times, samples, peak_bytes, waited = value
    *seconds, waited_s = (None if time is None else time / 1e6 for time in (*times, waited))
    return StepLine._make((step, end_s, steps, *seconds, samples, peak_bytes, waited_s))


def settled(lines: Sequence[StepLine], least: int = 0) -> int | None:
    """Return the index of the line from which step times are stable, None if they are not stable yet.

    They are stable where the medians of the next five steps and of the five after those are alike. The first ``least``
    steps are skipped.
    """
    walls = [line.wall_s / line.steps for line in lines if line.wall_s]
    unknown = len(lines) - len(walls)  # the first one
    for at in range(max(0, least - unknown), len(walls) - 2 * _AT_ONCE + 1):
        this_median, next_median = (median(walls[begin : begin + _AT_ONCE]) for begin in (at, at + _AT_ONCE))
        if max(this_median, next_median) <= _LIKE * min(this_median, next_median):
            return at + unknown
    return None


def summed(rank: int, facts: Mapping[str, Any], lines: Sequence[StepLine]) -> RankPhases | None:
    """Return the summary of these steps, None if the length of none is known."""
    timed_lines = [line for line in lines if line.wall_s]
    if not timed_lines:
        return None
    step_lengths = sorted((line.wall_s or 0) / line.steps for line in timed_lines)
    wall, steps = sum(line.wall_s or 0 for line in timed_lines), sum(line.steps for line in timed_lines)
    shares: dict[str, float | None] = {name: _per_second(timed_lines, f"{name}_s", 1.0) for name in PHASES}
    shares["rest"] = max(0.0, 1 - sum(share or 0 for share in shares.values()))
    return RankPhases(
        rank=rank,
        steps=steps,
        step_s=median(step_lengths),
        fastest_s=step_lengths[len(step_lengths) // 10],
        slowest_s=step_lengths[-1 - len(step_lengths) // 10],
        mean_s=wall / steps,
        shares=shares,
        samples_per_s=_per_second(timed_lines, "samples", _MOST),
        peak_bytes=max((line.peak_bytes for line in lines if line.peak_bytes), default=None),
        facts=facts,
        waits=_waits(lines),
    )


def phases_in(attempt: Path, most_bytes: int = MOST_BYTES) -> list[RankPhases]:
    """Return how steps spent their time on the ranks of an attempt, from where step times have settled.

    ``most_bytes`` from the end of each file are read.
    """
    return [
        one
        for rank, file in read_phases(attempt, None, most_bytes).items()
        if (one := summed(rank, file.facts, file.lines[settled(file.lines) or 0 :]))
    ]


def _waits(lines: Sequence[StepLine]) -> float | None:
    looks = [(line.end_s, line.waited_s) for line in lines if line.waited_s is not None]
    took_s = looks[-1][0] - looks[0][0] if looks else 0.0
    return min(1.0, max(0.0, (looks[-1][1] - looks[0][1]) / took_s)) if took_s > 0 else None


def _per_second(lines: Sequence[StepLine], name: str, most: float) -> float | None:
    """Return how much of ``name`` there is in a second, ``most`` if it is more; None unless most lines contain it."""
    known_lines = [line for line in lines if getattr(line, name) is not None]
    if len(known_lines) <= len(lines) / 2:
        return None
    together: float = sum(getattr(line, name) for line in known_lines)
    return min(most, together / sum(line.wall_s or 0 for line in known_lines))


def waited_for(ranks: Sequence[RankPhases]) -> tuple[RankPhases, float, str] | None:
    """Return the rank that the others wait for, how long those work in a step, and the phase in which it is late.

    None if no rank is late. Ranks end their steps together, so they differ in how long they wait for communication: the
    late rank hardly waits.
    """
    if len(ranks) < 2 or None in [one.shares["comm"] for one in ranks]:
        return None
    if all(one.steps < _FEW and one.steps * one.mean_s < _MOMENT_S for one in ranks):
        return None
    late_rank = max(ranks, key=lambda one: one.own_s)
    other_ranks = [one for one in ranks if one is not late_rank]
    usual_s = median(one.own_s for one in other_ranks)
    waits = median(one.shares["comm"] or 0 for one in other_ranks) - (late_rank.shares["comm"] or 0)
    if late_rank.own_s <= _LATER * usual_s or waits < _WAITED:
        return None
    if late_rank.own_s - usual_s < _MOST_OF_IT * median(one.takes_s("comm") for one in other_ranks):
        return None  # they would also wait without it
    more = {
        name: late_rank.takes_s(name) - median(one.takes_s(name) for one in other_ranks)
        for name in (*PHASES, "rest")
        if name != "comm"
    }
    return late_rank, usual_s, max(more, key=more.__getitem__)


def late_host(ranks_by_host: Sequence[tuple[str, Sequence[RankPhases]]]) -> tuple[Finding, ...]:
    """Return a finding about the host that all others wait for, none if there is no such host.

    A host counts by its fastest rank: if only some of its ranks are late, it is not the host.
    """
    fastest = {host: min(ranks, key=lambda one: one.own_s) for host, ranks in ranks_by_host if ranks}
    late = waited_for([*fastest.values()])
    if late is None:
        return ()
    name = next(host for host, rank in fastest.items() if rank is late[0])
    fix = f"`ddplaunch top` shows whether its CPUs or GPUs are slowed down or shared; `--exclude {name}` leaves it out"
    return (_late("host-late", f"host {name}", fix, *late),)


def late_host_of_run(directory: Path, hosts: Sequence[str]) -> tuple[Finding, ...]:
    """Return the finding about a late host in the last steps of a run; ``hosts`` are in the order of its nodes."""
    return late_host(
        [
            (host, phases_in(attempt, _END_BYTES))
            for node, host in enumerate(hosts)
            for _, attempt in numbered(directory / f"node-{node}", "attempt")[-1:]
        ]
    )


#: The name of each phase in a sentence.
WORDS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "comm": "communication",
    "optimizer": "optimizer",
    "rest": "the rest",
}


def mean_shares(ranks: Sequence[RankPhases]) -> dict[str, float | None]:
    """Return the mean shares of all ranks, None for a phase that is unknown in any rank."""
    columns = {name: [one.shares[name] for one in ranks] for name in (*PHASES, "rest")}
    return {
        name: None if None in column else sum(share or 0 for share in column) / len(column)
        for name, column in columns.items()
    }


def phase_line(ranks: Sequence[RankPhases]) -> str:
    """Return how the steps spent their time."""
    shares = mean_shares(ranks)
    known_shares = [f"{WORDS[name]} {percent(share)}" for name, share in shares.items() if share is not None]
    unknown = [WORDS[name] for name, share in shares.items() if share is None]
    words = ", ".join(known_shares) + (f"; unknown: {', '.join(unknown)}" if unknown else "")
    steps = count(max(one.steps for one in ranks), "step")
    return f"phases: {steps} of {milliseconds(median(one.step_s for one in ranks))}: {words}"


def threads_of(ranks: Sequence[RankPhases]) -> int:
    """Return the number of threads that the ranks compute with, as far as it is known."""
    return sum(threads for one in ranks if isinstance(threads := one.facts.get("threads"), int))


def held_back(ranks: Sequence[RankPhases], cpus: int, workers: str = "") -> Finding | None:
    """Return what slows down the steps of these ranks most, which share ``cpus``; None if nothing stands out.

    ``workers`` is the script's option for DataLoader workers, as in ``--num-workers {}``; "" if unknown.
    """
    shares = mean_shares(ranks)
    threads = threads_of(ranks)
    computes = sum(shares[name] or 0 for name in ("forward", "backward", "optimizer"))
    # First, because with too many threads each rank is late at times, and the others wait for it.
    waits_for_ranks = shares["comm"] or 0
    if (
        threads > cpus
        and computes >= _COMPUTES * (1 - waits_for_ranks)
        and (computes >= waits_for_ranks or threads >= _CROWDED * cpus)
        and all(one.facts.get("device") == "cpu" for one in ranks)
    ):
        return warning(
            "threads-exceed-cpus",
            f"{count(len(ranks), 'rank')} compute with {threads} threads on {count(cpus, 'CPU')}",
            why="threads that have to wait for a CPU hold up the others of their rank at the end of every operation",
            fix=f"`--env OMP_NUM_THREADS={max(1, cpus // len(ranks))}`, and no `torch.set_num_threads` in the script",
        )
    if (late := waited_for(ranks)) is not None and not _all_wait_for_data(ranks, late[0]):
        name, waits = f"rank {late[0].rank}", late[0].shares["data"] or 0
        if late[2] == "data" and waits >= _BOUND and _workers(ranks):  # workers catch up while their rank waits
            return _input_bound(ranks, waits, cpus, workers, f"the others wait for {name}, and it waits")
        return _late("rank-late", name, _OF_A_LATE_ONE.get(late[2], _SLOW), *late)
    if (data := shares["data"] or 0) >= _BOUND:
        return _input_bound(ranks, data, cpus, workers, "the ranks wait")
    if waits_for_ranks < _BOUND or all(one.facts.get("world_size", len(ranks)) == 1 for one in ranks):
        return None  # DDP also works alone
    size = next((size for one in ranks if isinstance(size := one.facts.get("gradient_bytes"), int)), None)
    each_s = median(one.takes_s("comm") for one in ranks)
    gradients = "" if size is None else f", {size_text(size)} of gradients"
    return warning(
        "communication-bound",
        f"communication that does not overlap with computation takes {percent(waits_for_ranks)} of the time: "
        f"{milliseconds(each_s)} of a mean step{gradients}",
        why="all ranks wait for each other's gradients at the end of every backward pass",
        fix="more work for each step: a larger `--batch-size`, or `--accum 4` where the script uses `no_sync()`; "
        "`ddplaunch doctor --comm` measures the links, `ddplaunch top` compares hosts",
    )


def _all_wait_for_data(ranks: Sequence[RankPhases], late_rank: RankPhases) -> bool:
    least_s = min(one.takes_s("data") for one in ranks)
    return least_s >= _ALL_WAIT * late_rank.takes_s("data") and all(
        (one.shares["data"] or 0) >= _BOUND for one in ranks
    )


#: The fix for a late rank; for some phases in which it is late a better one.
_SLOW = "`ddplaunch top` shows whether its CPUs or its GPU are slowed down or shared, and `ddplaunch stacks` its calls"
_OF_A_LATE_ONE = {
    "data": "look at what it loads: longer samples, a slower disk, workers without a CPU; `ddplaunch top` shows them",
    "rest": "look at what only this rank does beside its steps: logging, saving, validation, `if rank == 0:`",
}


def _late(code: str, name: str, fix: str, late_rank: RankPhases, usual_s: float, phase: str) -> Finding:
    return warning(
        code,
        f"the others waited for {name}: it works {milliseconds(late_rank.own_s)} in a step, they "
        f"{milliseconds(usual_s)}",
        why=f"{WORDS[phase]} takes longer on it, and every step ends when the last rank arrives",
        fix=fix,
        where=name,
    )


def _workers(ranks: Sequence[RankPhases]) -> int:
    loaders = [loader for one in ranks if isinstance(loader := one.facts.get("loader"), dict)]
    return max((each["workers"] for each in loaders if isinstance(each.get("workers"), int)), default=0)


def _input_bound(ranks: Sequence[RankPhases], share: float, cpus: int, typed: str, who: str) -> Finding:
    workers, most = _workers(ranks), max(1, cpus // len(ranks))
    most *= 1 + (workers >= most)  # a worker that waits for a disk leaves its CPU to another
    cheaper = "load cheaper: decode and resize once, ahead of the training, or move transforms to the GPU"
    more = f"`{typed.replace('{}', str(most))}` of the script" if typed else f"`num_workers={most}` in the DataLoader"
    return warning(
        "input-bound",
        f"{who} for data {percent(share)} of the time, with {count(workers, 'DataLoader worker')} each",
        why=f"the next batch is not ready when the last step is over; {count(len(ranks), 'rank')} "
        f"{'shares' if len(ranks) == 1 else 'share'} {count(cpus, 'CPU')}",
        fix=f"{more}; where that does not help, {cheaper}" if workers < most else cheaper,
    )


def milliseconds(seconds: float) -> str:
    """Return a duration in ms or s with three digits."""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def percent(share: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100 * share:.0f} %"


def phase_words(attempt: Path) -> str:
    """Return for stderr how an attempt on this node spent its time."""
    every, terminal = phases_in(attempt), Terminal.of(sys.stderr)
    if not every:
        none = "phases: no optimizer step was seen twice; `ddplaunch.step(samples=…)` in the script marks one by hand"
        for rank, file in reversed(read_phases(attempt).items()):
            if "broken" in file.facts:
                none = f"phases: measuring ended in rank {rank}: {str(file.facts['broken'])[:200]}"
        return terminal.note(none)
    finding = held_back(every, max(1, probe_cpu().usable))
    return terminal.note(phase_line(every)) + ("" if finding is None else findings_text((finding,), terminal) + "\n")
