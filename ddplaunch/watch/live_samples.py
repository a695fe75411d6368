"""Follows a run for `top`, on this host or on the hosts of its launch: samples, restarts and its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.machine.sample import HostSample, RankSample, Sample, sample_of
from ddplaunch.records.launchers import Launched, NodeProcesses, read_processes
from ddplaunch.records.run_states import recorded_at
from ddplaunch.values.finding import Finding, RefusedError
from ddplaunch.values.words import host_name, listed
from ddplaunch.watch.gpu_usage import GpuUsage
from ddplaunch.watch.phases import late_host
from ddplaunch.watch.sampler import RankUsage, host_sample
from ddplaunch.watch.step_rate import FollowedPhases, Progress, Steps
from ddplaunch.watch.stragglers import phases_of, stragglers

_KEPT = 60
_JUDGED_EVERY = 5  # samples; findings are based on medians, which change slowly
_BARS = "▁▂▃▄▅▆▇█"
_FIRST_LOOK_S, _SELDOM_S, _LOOKS = 10.0, 600.0, 20  # at a launch's hosts: the pause before, which doubles; samples
_FRESH_S = 10.0  # beyond the interval, after which the sample of a silent host is no longer shown

#: Yields, until the run has ended, the newest sample of each host by node.
Samples = Iterator[Mapping[int, Sample]]


class Watched:
    """A run under observation: its recent samples, and the findings from them."""

    def __init__(self, samples: Samples) -> None:
        """``samples`` are ``samples_here`` or ``samples_of_hosts``."""
        self.samples: deque[Sample] = deque(maxlen=_KEPT)
        self.findings: tuple[Finding, ...] = ()
        self.ended = False
        self._losses: deque[float] = deque(maxlen=20)  # as many bars fit into narrow terminals
        self._source, self._looks = samples, 0
        self._by_node: dict[int, deque[Sample]] = {}

    def look(self) -> None:
        """Take a sample, or note that the run has ended."""
        newest = next(self._source, None)
        if newest is None:
            self.ended = True
            return
        for node, sample in newest.items():
            series = self._by_node.setdefault(node, deque(maxlen=_KEPT))
            if not series or series[-1] is not sample:
                series.append(sample)
        joined = _joined(list(newest.values()))
        if joined.ranks or not self.samples:
            self.samples.append(joined)
        for rank in joined.ranks[:1]:
            if isinstance(rank.loss, float) and rank.loss not in [*self._losses][-1:]:
                self._losses.append(rank.loss)
        self._looks += 1
        if self._looks % _JUDGED_EVERY == 0:
            recent = [self._by_node[node] for node in newest]
            slow_host = late_host([(samples[-1].name, phases_of(samples)) for samples in recent])
            self.findings = (*slow_host, *(finding for samples in recent for finding in stragglers(samples)))

    def curve(self) -> tuple[str, ...]:
        """Return the first rank's last losses as bars between the oldest and the newest; nothing for fewer than two."""
        losses = self._losses
        if len(losses) < 2:
            return ()
        low, high = min(losses), max(losses)
        bars = "".join(_BARS[round(7 * (loss - low) / (high - low))] for loss in losses)
        return (f"loss {losses[0]:.4g} {bars} {losses[-1]:.4g}",)


def samples_here(run: RunProcesses) -> Samples:
    """Yield samples of the ranks on this host, and follow restarts."""
    gpus, directory = GpuUsage(), recorded_at(run)
    current: RunProcesses | None = run
    while current is not None:
        pids, followed = {process.pid for process in current.ranks}, _followed(current, directory)
        take_sample = _sampler(current, followed, gpus)
        sample = take_sample()
        while True:
            yield {0: sample}
            sample = take_sample()
            restarted = _followed(current, directory) != followed
            if restarted or not pids or {rank.pid for rank in sample.ranks} != pids:
                break
        current = _as_it_is_now(current, directory)


def _followed(run: RunProcesses, directory: Path | None) -> dict[Path, NodeProcesses]:
    """Return the recorded processes of the ranks on this host, by the directory of their attempt."""
    pids = {process.pid for process in run.ranks}
    nodes = () if directory is None else read_processes(directory)
    return {
        Path(f"{directory}/node-{node.node}/attempt-{node.attempt}"): node
        for node in nodes
        if pids & {rank.pid for rank in node.ranks}
    }


def _as_it_is_now(run: RunProcesses, directory: Path | None) -> RunProcesses | None:
    """Return the current processes of a run, None if it has ended."""
    key = attrgetter("run_id", "uid", "launch")
    same = [candidate for candidate in runs_in(process_table()) if key(candidate) == key(run)]
    return next((candidate for candidate in same if recorded_at(candidate) == directory), next(iter(same), None))


def _sampler(run: RunProcesses, followed: Mapping[Path, NodeProcesses], gpus: GpuUsage) -> Callable[[], Sample]:
    """Return a function that samples these ranks; ``followed`` are the recorded nodes of this host, by attempt."""
    # unreadable for another user's: pids are in rank order
    positions = [
        position if (number := process.number("RANK")) is None else number for position, process in enumerate(run.ranks)
    ]
    usage = RankUsage(dict(zip(positions, run.ranks, strict=True)))
    sources: list[Steps | FollowedPhases] = []
    for folder, node in followed.items():
        ranks = [rank.rank for rank in node.ranks if rank.rank is not None]
        sources += [Steps(folder, ranks), FollowedPhases(folder, ranks)]

    def sample() -> Sample:
        progress = [source.progress(time.time()) for source in sources]
        ranks, gpu_samples = gpus.sample(usage.sample(), usage.rank_by_pid)
        return Sample(
            at_s=round(time.time(), 3),
            name=host_name(),
            attempt=max((node.attempt for node in followed.values()), default=0),
            host=host_sample(),
            ranks=tuple(_with_progress(rank, progress) for rank in ranks),
            gpus=gpu_samples,
            no_gpus=None if gpu_samples else gpus.reason,
        )

    return sample


def _with_progress(rank: RankSample, progress: Sequence[Mapping[int, Progress]]) -> RankSample:
    """Return the rank with its steps; those counted with ``--phases`` replace those read from its output."""
    for source in [by_rank[rank.rank] for by_rank in progress if rank.rank in by_rank]:
        loss = rank.loss if source.loss is None else source.loss
        rank = replace(rank, step=source.step, step_rate=source.rate, loss=loss, phases=source.phases)
    return rank


def samples_of_hosts(hosts: EachHost, interval_s: float) -> Samples:
    """Yield samples of all ``hosts``, each of which prints one every ``interval_s`` s; first wait for all hosts."""
    newest: dict[int, tuple[float, Sample]] = {}
    until_s = time.monotonic() + interval_s + _FRESH_S
    while hosts.open:
        for place, printed in hosts.lines(max(0.0, until_s - time.monotonic())):
            if (sample := sample_of(printed)) is not None:
                newest[place.node] = time.monotonic(), sample
        now_s = time.monotonic()
        if now_s >= until_s or len(newest) == len(hosts.nodes):
            until_s = 0.0
            fresh_s = now_s - interval_s - _FRESH_S
            yield {node: sample for node, (heard_s, sample) in sorted(newest.items()) if heard_s >= fresh_s}


def name_late_host(launched: Launched, say: Callable[[str], None]) -> None:
    """Look at a launch's hosts now and then until one is late, and ``say`` it once; for a thread beside the launch."""
    pause_s, late = _FIRST_LOOK_S, list[Finding]()
    while not late:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _SELDOM_S)
        with suppress(RefusedError, OSError), EachHost(launched, "top", "--json") as hosts:
            watched = Watched(samples_of_hosts(hosts, 1.0))
            for _ in range(_LOOKS):
                watched.look()
                time.sleep(1.0)
            late = [finding for finding in watched.findings if finding.code == "host-late"]
    say(f"{late[0].what}; {late[0].fix}")


def _joined(samples: Sequence[Sample]) -> Sample:
    """Return one sample for several hosts: all ranks in order, sums of CPUs and memory, GPUs renumbered.

    The CPU percentage is the mean over all CPUs. Without samples, the result has no ranks.
    """
    if len(samples) == 1:
        return samples[0]
    most = max((gpu.index for sample in samples for gpu in sample.gpus), default=-1) + 1
    ranks, gpus = [], []
    for position, sample in enumerate(samples):
        offset = position * most
        ranks += [rank if rank.gpu is None else replace(rank, gpu=rank.gpu + offset) for rank in sample.ranks]
        gpus += [replace(gpu, index=gpu.index + offset) for gpu in sample.gpus]
    hosts = [sample.host for sample in samples]
    columns = ([getattr(host, name) for host in hosts] for name in ("memory_total_bytes", "memory_available_bytes"))
    memory = (None if None in column else sum(column) for column in columns)
    cpus = sum(host.cpus for host in hosts)
    used = sum(host.cpus * (host.cpu_percent or 0.0) for host in hosts)
    return Sample(
        at_s=max((sample.at_s for sample in samples), default=time.time()),
        name=listed([sample.name for sample in samples], 3),
        attempt=max((sample.attempt for sample in samples), default=0),
        host=HostSample(cpus, used / cpus if cpus else None, *memory),
        ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)),
        gpus=tuple(gpus),
    )
