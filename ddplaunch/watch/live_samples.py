"""A run as `top` follows it, on this host or on those that it was launched on: its samples, restarts and end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.session.frames import unpack
from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.records.launchers import Launched, read_processes
from ddplaunch.records.run_states import RunSummary, recorded_at, summary
from ddplaunch.ui.ps_view import size_of
from ddplaunch.values.finding import Finding
from ddplaunch.values.words import age_text, host_name, listed
from ddplaunch.watch.gpu_usage import GpuUsage
from ddplaunch.watch.sampler import Sampler
from ddplaunch.watch.samples import HostSample, Progress, RankIdentity, Sample, sample_of
from ddplaunch.watch.step_rate import FollowedPhases, Steps
from ddplaunch.watch.stragglers import stragglers
from ddplaunch.watch.top_view import About

_KEPT = 60
_JUDGED_EVERY = 5  # samples; findings are made of medians, which do not change faster


class WatchedRun:
    """A run under observation: its samples so far, and what they tell."""

    def __init__(self, run: RunProcesses, steps: Callable[[Path, Sequence[int]], Steps]) -> None:
        """Read who its ranks are."""
        self.run, self.directory = run, recorded_at(run)
        self.samples: deque[Sample] = deque(maxlen=_KEPT)
        self.findings: tuple[Finding, ...] = ()
        self.ended = False
        self._steps_in = steps
        self._gpus = GpuUsage()
        self._table_s: float | None = None
        self._taken = 0
        self.summary = summary(self.directory, run, host_name())
        self._sampler = self._new_sampler()

    def look(self) -> Sample:
        """Take a sample; ranks that were started anew are found, and a run that is gone is noted."""
        sample = self._sampler.sample()
        known = {rank.pid for rank in self.run.ranks}
        if {rank.pid for rank in sample.ranks} != known or not known or self._restarted():
            self._find_again()
            if {rank.pid for rank in self.run.ranks} != known:
                self._sampler = self._new_sampler()
                sample = self._sampler.sample()
        if sample.ranks or not self.samples:
            self.samples.append(sample)
        self._taken += 1
        if self._taken % _JUDGED_EVERY == 0:
            self.findings = stragglers(tuple(self.samples))
        return sample

    def _find_again(self) -> None:
        same = [run for run in runs_in(process_table()) if _who(run) == _who(self.run)]
        here = [run for run in same if recorded_at(run) == self.directory] or same
        if here:
            self.run = here[0]
        else:
            self.ended = True

    def _restarted(self) -> bool:
        """Whether processes.json was written anew; a directory that is gone says nothing."""
        times = []
        for path in () if self.directory is None else self.directory.glob("node-*/processes.json"):
            with suppress(OSError):
                times.append(path.stat().st_mtime)
        before, self._table_s = self._table_s, max(times, default=None)
        return before is not None and self._table_s is not None and self._table_s != before

    def _new_sampler(self) -> Sampler:
        ranks = [_identity(process, position) for position, process in enumerate(self.run.ranks)]
        nodes = () if self.directory is None else read_processes(self.directory)
        mine = [node for node in nodes if {each.pid for each in node.ranks} & {rank.pid for rank in ranks}]
        attempt = max((node.attempt for node in mine), default=0)
        attempts = [
            (
                self.directory / f"node-{node.node}" / f"attempt-{node.attempt}",
                [each.rank for each in node.ranks if each.rank is not None],
            )
            for node in mine
            if self.directory is not None
        ]
        steps: list[Steps | FollowedPhases] = [self._steps_in(*each) for each in attempts]
        steps += [FollowedPhases(*each) for each in attempts]

        def progress() -> dict[int, Progress]:
            found: dict[int, Progress] = {}
            for one in steps:
                for rank, each in one.progress(time.time()).items():
                    printed = found[rank].loss if rank in found else None
                    found[rank] = each if printed is None else replace(each, loss=printed)
            return found

        return Sampler(ranks, attempt, host_name(), progress, self._gpus)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.run.run_id

    def about(self) -> About:
        """Return what stands above and below the samples."""
        of = self.summary
        notes = []
        if elsewhere := [host for host in of.hosts if host != host_name()]:
            notes.append(f"ranks on {listed(elsewhere)} are not shown: run `ddplaunch top` there")
        last = self.samples[-1] if self.samples else None
        if last is not None and not last.ranks:
            notes.append("no rank has started yet, or may be seen")
        if last is not None and last.no_gpus and of.device == "cuda":
            notes.append(f"no GPUs: {last.no_gpus}")
        return About(of.run_id, _words(of), tuple(notes))


_FRESH_S = 10.0  # beyond the interval, before the sample of a host that says nothing is shown no more


class WatchedHosts:
    """A run over several hosts under observation from where it was launched: each host sends samples of its ranks."""

    def __init__(self, launched: Launched, hosts: EachHost, interval_s: float) -> None:
        """``hosts`` are those of ``launched``, asked for samples every ``interval_s`` seconds."""
        self.run_id, self.directory = launched.run_id, launched.directory
        self.samples: deque[Sample] = deque(maxlen=_KEPT)
        self.findings: tuple[Finding, ...] = ()
        self._hosts, self._places = hosts, launched.places
        self._by_node: dict[int, deque[Sample]] = {}
        self._heard_s: dict[int, float] = {}
        self._fresh_s = interval_s + _FRESH_S
        self._taken = 0
        self._summary = summary(launched.directory, None, host_name())

    @property
    def ended(self) -> bool:
        """Whether no host has more to tell."""
        return not self._hosts.open

    def look(self) -> Sample:
        """Return the newest sample of all hosts together."""
        until_s = time.monotonic() + (0.0 if self.samples else self._fresh_s)
        while self._hear(until_s) and time.monotonic() < until_s and len(self._heard_s) < len(self._places):
            pass  # the first sample has all hosts, or those that answer in time
        now_s = time.monotonic()
        fresh = [node for node in sorted(self._by_node) if now_s - self._heard_s[node] < self._fresh_s]
        joined = joined_sample([self._by_node[node][-1] for node in fresh])
        if joined.ranks or not self.samples:
            self.samples.append(joined)
        self._taken += 1
        if self._taken % _JUDGED_EVERY == 0:
            self.findings = tuple(found for node in fresh for found in stragglers(tuple(self._by_node[node])))
        return joined

    def _hear(self, until_s: float) -> bool:
        """Take what has arrived by then; return whether more can come."""
        for place, _, body in self._hosts.frames(max(0.0, until_s - time.monotonic())):
            sample = sample_of(unpack(body))
            if sample is not None:
                self._by_node.setdefault(place.node, deque(maxlen=_KEPT)).append(sample)
                self._heard_s[place.node] = time.monotonic()
        return self._hosts.open

    def about(self) -> About:
        """Return what stands above and below the samples."""
        notes = [f"{place.host}: no samples" for place in self._places if place.node not in self._heard_s]
        if len({gpu.index for sample in self._by_node.values() for gpu in sample[-1].gpus}) > 0:
            notes.append("GPUs are numbered through all hosts")
        return About(self.run_id, (*_words(self._summary), f"{len(self._places)} hosts"), tuple(notes))


def joined_sample(samples: Sequence[Sample]) -> Sample:
    """Return one sample of several hosts: their ranks in order, sums of what they have, GPUs numbered through.

    The CPU percentage is the mean over all CPUs. Without samples it has no ranks.
    """
    if not samples:
        return Sample(time.time(), "", 0, HostSample(0))
    most = max((gpu.index for sample in samples for gpu in sample.gpus), default=-1) + 1
    ranks, gpus = [], []
    for at, sample in enumerate(samples):
        ranks += [each if each.gpu is None else replace(each, gpu=each.gpu + at * most) for each in sample.ranks]
        gpus += [replace(each, index=each.index + at * most) for each in sample.gpus]
    hosts = [sample.host for sample in samples]

    def total(name: str) -> int | None:
        known = [value for each in hosts if (value := getattr(each, name)) is not None]
        return sum(known) if len(known) == len(hosts) else None

    cpus = sum(each.cpus for each in hosts)
    used = [each.cpus * each.cpu_percent for each in hosts if each.cpu_percent is not None]
    sums = {field.name: total(field.name) for field in fields(HostSample) if not field.name.startswith("cpu")}
    return Sample(
        at_s=max(sample.at_s for sample in samples),
        name=listed([sample.name for sample in samples], 3),
        attempt=max(sample.attempt for sample in samples),
        host=HostSample(cpus, sum(used) / cpus if cpus and len(used) == len(hosts) else None, **sums),
        ranks=tuple(sorted(ranks, key=lambda each: each.rank)),
        gpus=tuple(gpus),
    )


def _words(of: RunSummary) -> tuple[str, ...]:
    ranks = size_of(of)
    words = [f"running {age_text(time.time() - of.started_s)}" if of.started_s else "running"]
    words += [(of.script or "").rpartition("/")[2], f"{ranks} ranks" if ranks else ""]
    return (*words, *([f"batch {of.effective_batch}"] if of.effective_batch else []))


def _identity(process: Process, position: int) -> RankIdentity:
    """Another user's environment may not be read: there the order of pids has to do, which is that of the ranks."""
    rank, local_rank = (process.number(name) for name in ("RANK", "LOCAL_RANK"))
    return RankIdentity(
        position if rank is None else rank,
        position if local_rank is None else local_rank,
        process.pid,
        process.start_ticks,
    )


def _who(run: RunProcesses) -> tuple[str, int, str]:
    return (run.run_id, run.uid, run.launch)
