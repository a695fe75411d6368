"""What is told of each rank, as columns of text; refuses to choose those that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddplaunch.frozen import dataclass
from ddplaunch.probes.samples import GpuSample, RankSample, Sample
from ddplaunch.ui.sparkline import sparkline
from ddplaunch.ui.style import cells

BARS = 8
_GIB, _MIB = 1 << 30, 1 << 20
_STATES = {"D": "waits for disk", "T": "stopped", "t": "traced"}  # proc_pid_stat(5)


@dataclass(frozen=True)
class Look:
    """How to draw. ``height`` None is as long as need be; ``bars`` False leaves sparklines out."""

    width: int
    height: int | None = None
    styled: bool = False
    unicode: bool = True
    bars: bool = True
    first_row: int = 0


class Column:
    """A column of the table; ``spared`` ones go first where the terminal is narrow, the greatest number first."""

    def __init__(self, name: str, texts: list[str], spared: int = 0, left: bool = False) -> None:
        """``texts`` are the cells; the column is as wide as the widest of them, or its name."""
        self.name, self.texts, self.spared, self.left = name, texts, spared, left
        self.cells = max(cells(each) for each in (name, *texts))

    def cell(self, text: str) -> str:
        """Return ``text`` padded to the column's width."""
        pad = " " * (self.cells - cells(text))
        return text + pad if self.left else pad + text


def columns_of(samples: Sequence[Sample], late: int | None, look: Look) -> list[Column]:
    """Return every column, for the newest sample's ranks; those that say nothing have empty cells only."""
    ranks = samples[-1].ranks
    gpus = [samples[-1].gpu_of(rank) for rank in ranks]
    before = _history(samples)

    def bars(value: Callable[[RankSample, GpuSample | None], float | None], top: float | None) -> list[str]:
        if not look.bars:
            return [""] * len(ranks)
        known = [[value(*point) for point in before[rank.rank]] for rank in ranks]
        most = max([top or 0.0, *(each for row in known for each in row if each is not None)])
        lines = [
            sparkline(row, BARS, most, look.unicode) if any(each is not None for each in row) else "" for row in known
        ]
        return lines

    pairs = list(zip(ranks, gpus, strict=True))
    return [
        Column("RANK", [str(rank.rank) for rank in ranks]),
        Column("STEP", [_number(rank.step, ".0f") for rank in ranks], 6),
        Column("STEP/S", [_number(rank.step_rate, ".2f" if (rank.step_rate or 0) < 100 else ".0f") for rank in ranks]),
        Column("", bars(lambda rank, _: rank.step_rate, None), 7),
        Column("CPU %", [_number(rank.cpu_percent, ".0f") for rank in ranks]),
        Column("", bars(lambda rank, gpu: None if gpu else rank.cpu_percent, 100), 8),
        Column("MEM GiB", [_gib(rank.rss_bytes) for rank in ranks], 3),
        Column("PSS GiB", [_gib(rank.pss_bytes) for rank in ranks], 11),
        Column("THREADS", [_number(rank.threads, ".0f") for rank in ranks], 10),
        Column("LOADER", [_loader(rank) for rank in ranks]),
        Column("R+W MiB/s", [_disk(rank) for rank in ranks], 12),
        Column("GPU", ["" if gpu is None else str(gpu.index) for gpu in gpus], 2),
        Column("UTIL %", [_number(_of(gpu, "utilization_percent"), ".0f") for gpu in gpus]),
        Column("", bars(lambda _, gpu: None if gpu is None else gpu.utilization_percent, 100), 5),
        Column("GPU GiB", [_gpu_memory(gpu) for gpu in gpus], 1),
        Column("W", [_number(_of(gpu, "power_w"), ".0f") for gpu in gpus], 4),
        Column("°C" if look.unicode else "C", [_number(_of(gpu, "temperature_c"), ".0f") for gpu in gpus]),
        Column("MHz", [_number(_of(gpu, "clock_mhz"), ".0f") for gpu in gpus], 9),
        Column("", [_note(rank, gpu, late) for rank, gpu in pairs], left=True),
    ]  # fmt: skip


def _history(samples: Sequence[Sample]) -> dict[int, list[tuple[RankSample, GpuSample | None]]]:
    """Return the last few moments of each rank of now, without those of an attempt before."""
    now = samples[-1]
    found: dict[int, list[tuple[RankSample, GpuSample | None]]] = {rank.rank: [] for rank in now.ranks}
    for sample in samples[-BARS:]:
        for rank in sample.ranks if sample.attempt == now.attempt else ():
            if rank.rank in found:
                found[rank.rank].append((rank, sample.gpu_of(rank)))
    return found


def _of(gpu: GpuSample | None, name: str) -> float | None:
    value: float | None = getattr(gpu, name, None)
    return value


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _gib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def _gpu_memory(gpu: GpuSample | None) -> str:
    if gpu is None or gpu.memory_used_bytes is None:
        return ""
    total = "" if gpu.memory_total_bytes is None else f"/{gpu.memory_total_bytes / _GIB:.0f}"
    return f"{gpu.memory_used_bytes / _GIB:.1f}{total}"


def _loader(rank: RankSample) -> str:
    """Return ``4×98 %``: DataLoader workers, and how busy each of them is."""
    if not rank.workers or rank.workers_cpu_percent is None:
        return str(rank.workers or "")
    return f"{rank.workers}×{rank.workers_cpu_percent / rank.workers:.0f} %"


def _disk(rank: RankSample) -> str:
    if rank.read_bytes_s is None or rank.write_bytes_s is None:
        return ""
    return f"{(rank.read_bytes_s + rank.write_bytes_s) / _MIB:.1f}"


def _note(rank: RankSample, gpu: GpuSample | None, late: int | None) -> str:
    words = ["late"] if rank.rank == late else []
    words += ["lost"] if gpu is not None and gpu.fault else []
    words += ["slowed"] if gpu is not None and gpu.slowdowns else []
    words += [_STATES[rank.state]] if rank.state in _STATES else []
    return ", ".join(words)
