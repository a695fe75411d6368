"""All samples of a run as one table of what was typical and what was most; refuses to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from ddplaunch.finding import Finding
from ddplaunch.probes.samples import GpuSample, RankSample, Sample
from ddplaunch.ui.ages import age_text
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.style import ascii_only, visible
from ddplaunch.ui.table import table
from ddplaunch.ui.top_columns import Look

_GIB = 1 << 30
Point = tuple[RankSample, GpuSample | None]
Value = Callable[[RankSample, GpuSample | None], float | None]


def summary_lines(
    run_id: str, samples: Mapping[int, Sequence[Sample]], findings: Sequence[Finding], look: Look
) -> list[str]:
    """Return the table with a line for each rank, and the findings."""
    ranks = _by_rank(samples)
    count = sum(map(len, samples.values()))
    times = [sample.at_s for each in samples.values() for sample in each]
    over = age_text(max(times) - min(times))
    lines = [f"{visible(run_id)}  {count} samples over {over}: medians; of memory and °C the most", ""]
    columns = {
        name: [_typical(points, value, form, of) for points in ranks.values()] for name, value, form, of in _COLUMNS
    }
    columns = {"RANK": [str(rank) for rank in ranks], **{name: each for name, each in columns.items() if any(each)}}
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    lines += [
        line[2:] for line in table(list(columns), rows, look.width + 2, look.styled, frozenset(range(len(columns))))
    ]
    if findings:
        lines += ["", findings_text(findings, look.width, look.styled, look.unicode).rstrip("\n")]
    return [ascii_only(line, look.unicode) for line in lines]


def _by_rank(samples: Mapping[int, Sequence[Sample]]) -> dict[int, list[Point]]:
    found: dict[int, list[Point]] = {}
    for each in samples.values():
        for sample in each:
            for rank in sample.ranks:
                found.setdefault(rank.rank, []).append((rank, sample.gpu_of(rank)))
    return dict(sorted(found.items()))


def _typical(points: Sequence[Point], value: Value, form: str, of: Callable[[list[float]], float]) -> str:
    known = [each for rank, gpu in points if (each := value(rank, gpu)) is not None]
    return format(of(known), form) if known else ""


def _of_gpu(name: str, per: float = 1.0) -> Value:
    def value(_: RankSample, gpu: GpuSample | None) -> float | None:
        found = getattr(gpu, name, None)
        return None if found is None else found / per

    return value


def _of_a_worker(rank: RankSample, _: GpuSample | None) -> float | None:
    return rank.workers_cpu_percent / rank.workers if rank.workers and rank.workers_cpu_percent is not None else None


_COLUMNS: tuple[tuple[str, Value, str, Callable[[list[float]], float]], ...] = (
    ("STEP/S", lambda rank, _: rank.step_rate, ".2f", median),
    ("CPU %", lambda rank, _: rank.cpu_percent, ".0f", median),
    ("MEM GiB", lambda rank, _: None if rank.rss_bytes is None else rank.rss_bytes / _GIB, ".1f", max),
    ("LOADER", lambda rank, _: rank.workers or None, ".0f", median),
    ("% EACH", _of_a_worker, ".0f", median),
    ("UTIL %", _of_gpu("utilization_percent"), ".0f", median),
    ("GPU GiB", _of_gpu("memory_used_bytes", _GIB), ".1f", max),
    ("W", _of_gpu("power_w"), ".0f", median),
    ("°C", _of_gpu("temperature_c"), ".0f", max),
    ("MHz", _of_gpu("clock_mhz"), ".0f", median),
)
