"""Takes samples of a run on this host, all its parts together; refuses to keep them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ddplaunch.probes.gpu_usage import GpuOfRank, GpuUsage
from ddplaunch.probes.host_usage import HostUsage
from ddplaunch.probes.rank_usage import RankUsage
from ddplaunch.probes.samples import Progress, RankIdentity, RankSample, Sample

ProgressOf = Callable[[], dict[int, Progress]]


class Sampler:
    """One attempt's ranks, the GPUs and this host. ``progress`` tells what the ranks' output says of their steps."""

    def __init__(
        self,
        ranks: Sequence[RankIdentity],
        attempt: int,
        host: str,
        progress: ProgressOf,
        gpus: GpuUsage,
        pss: bool = True,
    ) -> None:
        """Read nothing yet. ``pss`` as in ``RankUsage``."""
        self._attempt, self._host_name = attempt, host
        self._ranks, self._host = RankUsage(ranks, pss=pss), HostUsage()
        self._gpus, self._places = gpus, GpuOfRank(ranks)
        self._progress = progress

    def sample(self) -> Sample:
        """Return what is now; no ranks in it means that none runs any more."""
        ranks = self._ranks.sample()
        reading = self._gpus.sample()
        progress = self._progress()
        placed, gpus = self._places.place(ranks, reading, self._ranks.members)
        return Sample(
            at_s=round(time.time(), 3),
            name=self._host_name,
            attempt=self._attempt,
            host=self._host.sample(),
            ranks=tuple(_with_steps(rank, progress.get(rank.rank)) for rank in placed),
            gpus=gpus,
            no_gpus=reading.reason,
        )


def _with_steps(rank: RankSample, progress: Progress | None) -> RankSample:
    return rank if progress is None else replace(rank, step=progress.step, step_rate=progress.rate)
