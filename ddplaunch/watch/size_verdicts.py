"""Judges short trainings with several numbers of processes: speed-up, efficiency, and what slows each size down."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count
from ddplaunch.watch.phases import WORDS, RankPhases, held_back, mean_shares, milliseconds, percent, threads_of

_AS_IT_SHOULD = 0.8  # of the ideal speed-up: what guides call good scaling
_GREW = 1.25  # computing that takes this many times as long as at the smallest size has grown
_COMPUTE = ("forward", "backward", "optimizer")
_COMPUTES = 0.2  # of the time: with less, ranks do not wait for CPUs
_WAITING = 0.25  # a rank that waits for a CPU this share of the time lacks one
#: Findings that may only mean that there are more ranks than CPUs.
_OF_TOO_MANY = frozenset({"threads-exceed-cpus", "communication-bound", "rank-late"})
#: Findings that ranks do not train together: their samples are those of separate trainings.
_SEPARATE = frozenset({"no-process-group", "gradients-not-averaged"})
#: If the slow end of the spread of steps is this many times the fast end, the figures are unsure.
_NOISY = 1.5


@dataclass(frozen=True)
class SizeMeasured:
    """The measurement of one size, a number of ``processes``.

    ``ranks`` is empty if nothing was measured, and ``problem`` says why. ``samples_per_s`` counts all ranks.
    ``effective_batch`` and ``lr`` are what this size would train with, None if not given. ``cpus`` is the number of
    CPUs that the ranks share. ``settled`` is False if step times were not stable yet.
    ``workers`` is the script's option for DataLoader workers (``--num-workers {}``), "" without one. ``observed`` are
    the findings from its ranks' first steps, as `run` reports them.
    Sizes are in bytes, times in seconds.
    """

    processes: int
    ranks: tuple[RankPhases, ...] = ()
    samples_per_s: float | None = None
    effective_batch: int | None = None
    lr: str | None = None
    cpus: int = 1
    settled: bool = True
    workers: str = ""
    record: str = ""
    problem: Finding | None = None
    observed: tuple[Finding, ...] = ()

    @property
    def apart(self) -> Finding | None:
        """The finding that each rank trains its own model, None if they train one."""
        return next((finding for finding in self.observed if finding.code in _SEPARATE), None)

    @property
    def waits(self) -> float:
        """The share of the time that the median rank waits for a CPU; 0 if unknown."""
        return median([one.waits for one in self.ranks if one.waits is not None] or [0.0])

    @property
    def disturbed(self) -> str:
        """Why its times tell nothing about the script: other programs used its CPUs; "" if they do."""
        lacks_cpus = self.waits >= _WAITING and max(threads_of(self.ranks), self.processes) <= self.cpus
        return f"ranks waited {percent(self.waits)} of the time for CPUs used by others" if lacks_cpus else ""

    @property
    def mean_s(self) -> float | None:
        """A mean step, in seconds."""
        return sum(one.mean_s for one in self.ranks) / len(self.ranks) if self.ranks else None

    @property
    def step_s(self) -> float | None:
        """The median step, in seconds."""
        return median(one.step_s for one in self.ranks) if self.ranks else None

    @property
    def spread_s(self) -> tuple[float, float] | None:
        """The smallest tenth and the largest ninetieth percentile of the ranks' steps, in seconds."""
        fastest_s, slowest_s = [one.fastest_s for one in self.ranks], [one.slowest_s for one in self.ranks]
        return (min(fastest_s), max(slowest_s)) if self.ranks else None

    @property
    def peak_bytes(self) -> int | None:
        """The most memory of a rank."""
        return max((one.peak_bytes for one in self.ranks if one.peak_bytes), default=None)

    @property
    def shares(self) -> dict[str, float | None]:
        """The mean share of the time of each phase, by name."""
        return mean_shares(self.ranks)

    @property
    def compute_s(self) -> float | None:
        """How long the median rank computes in a mean step, without communication; None if unknown."""
        seconds_by_rank = [sum(map(one.takes_s, _COMPUTE)) for one in self.ranks if one.shares["backward"] is not None]
        return median(seconds_by_rank) if seconds_by_rank else None


@dataclass(frozen=True)
class SpeedUp:
    """How many times as fast a size is as the smallest measured one, and this as a share of the ideal."""

    speed_up: float
    efficiency: float


def base_of(sizes: Sequence[SizeMeasured]) -> SizeMeasured | None:
    """Return the size to which the others are compared: the smallest measured one."""
    return min((one for one in sizes if one.ranks), key=lambda one: one.processes, default=None)


def speed_up(one: SizeMeasured, base: SizeMeasured | None, *, strong: bool) -> SpeedUp | None:
    """Return how many times as fast ``one`` is as ``base``.

    None if one of them was not measured, was disturbed or trains separate models, or if ``one`` is the base and has
    several processes.
    Compares samples per second, or steps if samples are not counted: a step has the same number of samples per rank, or
    with ``strong`` in total.
    """
    if base is None or one.mean_s is None or base.mean_s is None or one.processes == base.processes > 1:
        return None
    if any(size.apart or size.disturbed for size in (one, base)):
        return None
    ideal = one.processes / base.processes
    factor = base.mean_s / one.mean_s * (1.0 if strong else ideal)
    if one.samples_per_s and base.samples_per_s:
        factor = one.samples_per_s / base.samples_per_s
    return SpeedUp(factor, factor / ideal)


def verdict(one: SizeMeasured, base: SizeMeasured | None, *, strong: bool) -> Finding | str | None:
    """Return the finding of what slows a size down most, or words that nothing does; None if it was not measured."""
    if not one.ranks:
        return None
    if one.disturbed and not one.apart:
        return f"not judged: {one.disturbed}; measure again once they are free"
    faster = None if base is None or one.processes == base.processes else speed_up(one, base, strong=strong)
    finding = one.apart or held_back(one.ranks, one.cpus, one.workers)
    if finding and finding.code in _OF_TOO_MANY and _is_too_many(one):
        waiting = f"; each waits for one {percent(one.waits)} of the time" if one.waits >= _WAITING else ""
        finding = warning(
            "cpus-used-up",
            f"{count(one.processes, 'process')} compute on {count(one.cpus, 'CPU')}{waiting}",
            why="each of them has one thread at least, and waits for a CPU while another one computes",
            fix=f"at most {count(one.cpus, 'process')} on this machine: `ddplaunch scale {one.cpus} …`",
        )
    if base and faster:
        finding = finding or _of_speed(one, base, faster, strong=strong)
    ideal = f"scaling as it should: {percent(faster.efficiency)} of the ideal" if faster else ""
    return finding or ideal or "nothing holds its steps back"


def _is_too_many(one: SizeMeasured) -> bool:
    """Return whether more ranks compute than there are CPUs: some always wait for a CPU, and the others for them.

    Ranks that compute little need CPUs too, for gloo's transfers between them.
    """
    if one.processes <= one.cpus or any(rank.facts.get("device") != "cpu" for rank in one.ranks):
        return False
    computes = sum(one.shares[name] or 0.0 for name in _COMPUTE)
    return computes >= _COMPUTES or one.waits >= _WAITING


def _of_speed(one: SizeMeasured, base: SizeMeasured, faster: SpeedUp, *, strong: bool) -> Finding | None:
    """Return why a size is slow if its phases do not show it, such as computing that takes longer than at the base."""
    if faster.efficiency >= _AS_IT_SHOULD:
        return None
    what = f"{count(one.processes, 'process')}: {faster.speed_up:.2g} times as fast as {base.processes}"
    what += f", {percent(faster.efficiency)} of the ideal"
    now_s, then_s = one.compute_s or 0.0, base.compute_s or 0.0
    work = base.processes / one.processes if strong else 1.0
    longer = 0 < _GREW * then_s * work < now_s
    if longer:
        what += f"; a rank computes {milliseconds(now_s)} in a step, it was {milliseconds(then_s)}"
    if longer and all(rank.facts.get("device") == "cpu" for rank in one.ranks):
        return warning(
            "cpus-used-up",
            what,
            why=f"{count(base.processes, 'process')} computed with {count(threads_of(base.ranks), 'thread')} already, "
            f"and more share the same {count(one.cpus, 'CPU')}",
            fix="more processes on this machine do not help; `ddplaunch run --hosts a,b` takes other machines",
        )
    shares = {name: share for name, share in one.shares.items() if share is not None and name not in _COMPUTE}
    if shares and not longer:
        most = max(shares, key=lambda name: shares[name])
        what += f"; {WORDS[most]} takes {percent(shares[most])}"
    why, fix = (
        "no phase alone takes a quarter of the time",
        "with a larger `--batch-size` the fixed cost of a step weighs less; `ddplaunch fit` finds the largest",
    )
    if longer:
        why = "GPUs that work together get hot, share power, PCIe and the CPUs that feed them"
        fix = "`ddplaunch top --json` shows each GPU's clock, power and number of other processes"
    return warning("speed-up-low", what, why=why, fix=fix)


def noise(one: SizeMeasured) -> str:
    """Return why the figures of a size that is not ``disturbed`` are unsure, as a clause; "" if they are not."""
    spread = one.spread_s
    if not one.settled:
        return "step times still moved"
    if spread is not None and spread[1] > _NOISY * spread[0]:
        return f"steps took from {milliseconds(spread[0])} to {milliseconds(spread[1])}"
    return ""
