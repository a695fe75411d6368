"""A run that runs on this host, as `top` follows it: its samples, restarts and end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ddplaunch.machine.processes.process_table import Process, process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in
from ddplaunch.records.launchers import read_processes
from ddplaunch.records.run_states import host_name, recorded_at, summary
from ddplaunch.ui.ps_view import size_of
from ddplaunch.values.finding import Finding
from ddplaunch.values.words import age_text, listed
from ddplaunch.watch.gpu_usage import GpuUsage
from ddplaunch.watch.phases import FollowedPhases
from ddplaunch.watch.sampler import Sampler
from ddplaunch.watch.samples import Progress, RankIdentity, Sample
from ddplaunch.watch.step_rate import Steps
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
            return {rank: each for one in steps for rank, each in one.progress(time.time()).items()}

        return Sampler(ranks, attempt, host_name(), progress, self._gpus)

    def about(self) -> About:
        """Return what stands above and below the samples."""
        of = self.summary
        ranks = size_of(of)
        words = [f"running {age_text(time.time() - of.started_s)}" if of.started_s else "running"]
        words += [(of.script or "").rpartition("/")[2], f"{ranks} ranks" if ranks else ""]
        words += [f"batch {of.effective_batch}"] if of.effective_batch else []
        notes = []
        if elsewhere := [host for host in of.hosts if host != host_name()]:
            notes.append(f"ranks on {listed(elsewhere)} are not shown: run `ddplaunch top` there")
        last = self.samples[-1] if self.samples else None
        if last is not None and not last.ranks:
            notes.append("no rank has started yet, or may be seen")
        if last is not None and last.no_gpus and of.device == "cuda":
            notes.append(f"no GPUs: {last.no_gpus}")
        return About(of.run_id, tuple(words), tuple(notes))


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
