"""Which rank holds the others back: every rule fires on what it is for, and a healthy run yields nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddplaunch.machine.sample import HostSample, Sample
from ddplaunch.values.finding import Finding
from ddplaunch.watch.stragglers import CHECKS, late_rank, stragglers
from tests.watch.metrics_samples import GIB, run_samples, with_gpu, with_rank

FULL = HostSample(16, 99.0, 128 * GIB, 87 * GIB)


def only(samples: Sequence[Sample]) -> Finding:
    (finding,) = stragglers(samples)
    assert finding.code in {check.code for check in CHECKS}
    return finding


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_healthy_run_yields_nothing(gpu: bool, ranks: int) -> None:
    assert stragglers(run_samples(ranks=ranks, gpu=gpu)) == ()
    assert stragglers([]) == ()


def test_a_hot_gpu() -> None:
    hot = with_gpu(run_samples(), 2, slowdowns=("hardware thermal slowdown",), temperature_c=91, clock_mhz=1200)
    finding = only(hot)
    assert finding.code == "gpu-throttled" and only(hot[:10]) == finding
    assert finding.what == (
        "GPU 2 of rank 2 slowed down in 100 % of the samples: hardware thermal slowdown, 91 °C, 1200 of 1980 MHz"
    )
    assert finding.where == ("rank 2",) and "-i 2`" in finding.fix
    assert stragglers(hot[:9]) == stragglers([*run_samples(), *hot[:5]]) == ()  # for a moment only
    assert stragglers([*hot, *(replace(each, attempt=1) for each in run_samples())]) == (), "of an earlier attempt"


def test_a_starved_loader_beside_an_idle_gpu() -> None:
    starved = with_rank(run_samples(), 3, workers=2, workers_cpu_percent=197.0)
    assert stragglers(with_gpu(starved, 3, utilization_percent=60)) == ()  # its GPU is busy enough
    finding = only(with_gpu(starved, 3, utilization_percent=31))
    assert finding.code == "loader-starved" and finding.where == ("rank 3",)
    assert finding.what == "rank 3 waits for data: 2 DataLoader workers need 98 % of a CPU each, GPU 3 at 31 %"
    assert finding.fix.startswith("`num_workers=4`")
    idle = with_gpu(with_rank(run_samples(), 3, workers_cpu_percent=20.0), 3, utilization_percent=31)
    assert stragglers(idle) == ()  # it waits for something, but not for CPUs
    # nor do those of a full host, but for those that want a CPU and get none
    starved = with_rank(run_samples(host=FULL), 0, workers=4, workers_cpu_percent=220.0)
    starved = with_gpu(starved, 0, utilization_percent=40)
    assert stragglers(starved) == ()  # they sleep in between
    finding = only(with_rank(starved, 0, workers_wait_percent=120.0))
    assert "4 DataLoader workers need 85 % of a CPU each, GPU 0 at 40 %" in finding.what


def test_a_starved_loader_without_a_gpu() -> None:
    starved = with_rank(run_samples(gpu=False), 1, workers=1, workers_cpu_percent=99.0, cpu_percent=12.0)
    expected = "rank 1 waits for data: 1 DataLoader worker needs 99 % of a CPU, the rank itself at 12 %"
    assert only(starved).what == expected
    assert stragglers(with_rank(starved, 1, cpu_percent=100.0)) == ()
    # for two thirds of this run the ranks import and say goodbye: busy themselves, and without workers
    around = [replace(each, ranks=tuple(replace(rank, step=None) for rank in each.ranks)) for each in starved]
    around = with_rank(around, 1, workers=0, cpu_percent=100.0)
    assert only([*around, *starved, *with_rank(around, 1, step=328.0)]).what == expected
    assert only([*around, *starved[:10]]).what == expected, "ten samples are enough"


def test_contexts_on_the_gpu_of_another_rank() -> None:
    finding = only(with_gpu(run_samples(), 0, ranks=(0, 1, 2, 3)))
    assert finding.code == "stray-gpu-contexts"
    assert finding.what == "ranks 1-3 hold memory on GPU 0, which is rank 0's"


def test_the_late_rank_is_the_only_one_that_findings_name() -> None:
    starved = with_gpu(with_rank(run_samples(), 3, workers_cpu_percent=390.0), 3, utilization_percent=31)
    assert late_rank(stragglers(starved)) == 3 and late_rank(()) is None
    hot = with_gpu(starved, 1, slowdowns=("hardware slowdown",))
    assert len(stragglers(hot)) == 2 and late_rank(stragglers(hot)) is None
