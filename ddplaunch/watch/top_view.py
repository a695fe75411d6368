"""What `top` shows: one screen or one plain table of the newest sample."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median

from ddplaunch.ui.terminal import Emphasis, Terminal, cells, visible, wrap
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed, size_text
from ddplaunch.watch.samples import (
    GpuSample,
    HostSample,
    RankSample,
    Sample,
    Value,
    of_gpu,
    of_rank,
    points_by_rank,
    typical,
)

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_WIDTH = 8  # cells of a row of bars
_GAP = "  "
_SLOW = 0.95
_INFINITE = float("inf")
_GIB, _MIB = 1 << 30, 1 << 20
_STATES = {"D": "waits for disk", "T": "stopped", "t": "traced"}  # proc_pid_stat(5)


@dataclass(frozen=True)
class Look:
    """How to draw. ``height`` None is as long as need be; ``bars`` False leaves sparklines out.

    ``sort`` is one of ``SORTS``; ``first_row`` is how far ranks are scrolled where not all have room.
    """

    terminal: Terminal
    height: int | None = None
    bars: bool = True
    first_row: int = 0
    sort: str = "rank"


@dataclass(frozen=True)
class About:
    """What stands above the samples. ``words`` are parts of the first line, ``notes`` lines below the table."""

    run_id: str
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    keys: str = ""


def frame(
    samples: Sequence[Sample], about: About, findings: Sequence[Finding], late: int | None, look: Look
) -> list[str]:
    """Return the lines of one screen, none wider than it; the newest sample is shown, those before give the bars."""
    head = [look.terminal.paint(_clipped(_first_line(samples, about, look), look), "bold")]
    rows: list[str] = []
    notes: list[str] = []
    if samples:
        head += _packed(_host_words(samples, look), look)
        rows, notes = _table(samples, late, look)
    tail = [line for note in about.notes for line in wrap(_spelled(visible(note), look), look.terminal.width, "", "  ")]
    for finding in findings:
        tail += _finding(finding, look)
    return _fitted(head, rows, notes, tail, about.keys, look)


def _fitted(head: list[str], rows: list[str], notes: list[str], tail: list[str], keys: str, look: Look) -> list[str]:
    """Put the parts together: where they are too long, the table is cut before the findings, down to three ranks.

    What ``notes`` say of ranks that have no room stands below the others.
    """
    foot = [look.terminal.paint(_clipped(keys, look), "dim")] if keys else []
    if look.height is None:
        return [*head, *([""] if rows else []), *rows, *([""] if tail else []), *tail]
    room = look.height - len(head) - len(foot) - 1
    for_rows = max(4, room - len(tail) - 1)
    if for_rows < len(rows):
        ranks, seen = len(rows) - 1, for_rows - 2
        first = 1 + min(look.first_row, ranks - seen)
        unseen = [note for row, note in enumerate(notes, 1) if note and not first <= row < first + seen]
        more = f"{ranks - seen} more ranks: j and k scroll"
        more = f"{ranks - seen} more ranks, {listed(unseen, 2)}" if unseen else more
        more = _clipped(more, look)
        rows = [rows[0], *rows[first : first + seen], look.terminal.paint(more, "warning") if unseen else more]
    left = max(0, room - len(rows) - 1)
    if len(tail) > left:
        tail = [*tail[: left - 1], _spelled("…", look)] if left else []
    body = [*head, "", *rows, *([""] if tail else []), *tail]
    body = body[: look.height - len(foot)]
    return [*body, *[""] * (look.height - len(foot) - len(body)), *foot]


def _first_line(samples: Sequence[Sample], about: About, look: Look) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(samples[-1].at_s)) if samples else ""
    text = _GAP.join(visible(each) for each in (about.run_id, *about.words) if each)
    space = look.terminal.width - cells(text) - cells(clock)
    return f"{text}{' ' * space}{clock}" if clock and space >= 2 else text


def _host_words(samples: Sequence[Sample], look: Look) -> list[str]:
    host = samples[-1].host
    words = []
    if host.cpu_percent is not None:
        known = [each.host.cpu_percent for each in samples] if look.bars else []
        bars = sparkline(known, _WIDTH, 100, look.terminal.unicode)
        words.append(f"{host.cpus} CPUs {host.cpu_percent:.0f} % {bars}".rstrip())
    if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_total_bytes - host.memory_available_bytes
        words.append(f"memory {size_text(used)} of {size_text(host.memory_total_bytes)}")
    return [*words, *_rates(host)]


def _rates(host: HostSample) -> list[str]:
    words = []
    for name, first, second, labels in (
        ("network", host.received_bytes_s, host.sent_bytes_s, ("in", "out")),
        ("disk", host.disk_read_bytes_s, host.disk_write_bytes_s, ("read", "write")),
    ):
        if first is not None and second is not None:
            words.append(f"{name} {first / _MIB:.1f} {labels[0]}, {second / _MIB:.1f} {labels[1]} MiB/s")
    return words


def _packed(words: Sequence[str], look: Look) -> list[str]:
    """Return the words in as few lines as they need."""
    lines: list[str] = []
    for word in words:
        if lines and cells(lines[-1]) + len(_GAP) + cells(word) <= look.terminal.width:
            lines[-1] += _GAP + word
        else:
            lines.append(_clipped(word, look))
    return lines


#: By what ranks are sorted, in turn: what it is, and the order in which the one to look at comes first.
SORTS: dict[str, tuple[Value, int]] = {
    "rank": (of_rank("rank"), 1),
    "step/s": (of_rank("step_rate"), 1),
    "loss": (
        lambda rank, _: rank.loss if isinstance(rank.loss, float) else None if rank.loss is None else _INFINITE,
        -1,
    ),
    "CPU": (of_rank("cpu_percent"), -1),
    "memory": (of_rank("rss_bytes"), -1),
    "GPU": (of_gpu("utilization_percent"), 1),
    "GPU memory": (of_gpu("memory_used_bytes"), -1),
}


def sorts_of(sample: Sample) -> list[str]:
    """Return by what the ranks of this sample can be sorted, in turn."""
    pairs = [(rank, sample.gpu_of(rank)) for rank in sample.ranks]
    return [name for name, (value, _) in SORTS.items() if any(value(*pair) is not None for pair in pairs)]


def _sorted(sample: Sample, sort: str) -> Sample:
    """Return the sample with its ranks in this order; those of which it is not known come last."""
    value, sign = SORTS[sort]

    def key(rank: RankSample) -> tuple[bool, float]:
        known = value(rank, sample.gpu_of(rank))
        return known is None, 0.0 if known is None else sign * known

    return replace(sample, ranks=tuple(sorted(sample.ranks, key=key)))


def _slow_ranks(samples: Sequence[Sample]) -> frozenset[int]:
    """Return the ranks that step lately at less than 95 % of the median rate."""
    points = points_by_rank(samples[-_WIDTH:], samples[-1].attempt)
    known = {rank: typical(each, of_rank("step_rate")) for rank, each in points.items()}
    rates = {rank: rate for rank, rate in known.items() if rate is not None}
    usual = median(rates.values()) if rates else 0.0
    return frozenset(rank for rank, rate in rates.items() if rate < _SLOW * usual)


def _table(samples: Sequence[Sample], late: int | None, look: Look) -> tuple[list[str], list[str]]:
    """Return the lines of the table, and for each rank's row what is wrong with it, or nothing."""
    if not samples[-1].ranks:
        return ["no rank runs"], []
    samples = (*samples[:-1], _sorted(samples[-1], look.sort))
    last, slow = samples[-1], _slow_ranks(samples)
    columns = [column for column in _columns_of(samples, late, slow, look) if any(column.texts)]
    while len(columns) > 2 and sum(column.cells + 2 for column in columns) - 2 > look.terminal.width:
        most = max(columns, key=lambda column: column.spared)
        if not most.spared:
            break
        columns.remove(most)
    lines = [_GAP.join(column.cell(column.name) for column in columns).rstrip()]
    lines[0] = look.terminal.paint(_clipped(lines[0], look), "dim")
    notes = []
    for row, rank in enumerate(last.ranks):
        text = _clipped(_GAP.join(column.cell(column.texts[row]) for column in columns).rstrip(), look)
        note = _note(rank, last.gpu_of(rank), late, slow)
        notes.append(f"rank {rank.rank}: {note}" if note else "")
        emphasis: Emphasis = "error" if set(note.split(", ")) & {"lost", "nan", "inf", "-inf"} else "warning"
        lines.append(look.terminal.paint(text, emphasis) if note else text)
    return lines, notes


class _Column:
    """A column of the table; ``spared`` ones go first where the terminal is narrow, the greatest number first."""

    def __init__(self, name: str, texts: list[str], spared: int = 0, left: bool = False) -> None:
        """``texts`` are the cells; the column is as wide as the widest of them, or its name."""
        self.name, self.texts, self.spared, self.left = name, texts, spared, left
        self.cells = max(map(len, (name, *texts)))

    def cell(self, text: str) -> str:
        """Return ``text`` padded to the column's width."""
        return text.ljust(self.cells) if self.left else text.rjust(self.cells)


def _columns_of(samples: Sequence[Sample], late: int | None, slow: Collection[int], look: Look) -> list[_Column]:
    """Return every column, for the newest sample's ranks; those that say nothing have empty cells only."""
    pairs = [(rank, samples[-1].gpu_of(rank)) for rank in samples[-1].ranks]
    before = points_by_rank(samples[-_WIDTH:], samples[-1].attempt)

    def texts(value: Value, form: str = ".0f") -> list[str]:
        return [_number(value(*pair), form) for pair in pairs]

    def bars(value: Value, top: float = 0.0) -> list[str]:
        known = [[value(*point) for point in before[rank.rank]] for rank, _ in pairs]
        most = max([top, *(each for row in known for each in row if each is not None)])
        return [
            sparkline(row, _WIDTH, most, look.terminal.unicode)
            if look.bars and any(each is not None for each in row)
            else ""
            for row in known
        ]

    return [
        _Column("RANK", texts(of_rank("rank"))),
        _Column("STEP", texts(of_rank("step")), 6),
        _Column("STEP/S", [_rate(rank.step_rate) for rank, _ in pairs]),
        _Column("", bars(of_rank("step_rate")), 7),
        _Column("LOSS", [_loss(rank.loss) for rank, _ in pairs]),
        _Column("DATA %", texts(of_rank("data_percent"))),
        _Column("FWD %", texts(of_rank("forward_percent")), 8),
        _Column("BWD %", texts(of_rank("backward_percent")), 8),
        _Column("COMM %", texts(of_rank("comm_percent"))),
        _Column("OPT %", texts(of_rank("optimizer_percent")), 9),
        _Column("CPU %", texts(of_rank("cpu_percent"))),
        _Column("", bars(lambda rank, gpu: None if gpu else rank.cpu_percent, 100), 8),
        _Column("MEM GiB", texts(of_rank("rss_bytes", _GIB), ".1f"), 3),
        _Column("PSS GiB", texts(of_rank("pss_bytes", _GIB), ".1f"), 11),
        _Column("THREADS", texts(of_rank("threads")), 10),
        _Column("LOADER", [_loader(rank) for rank, _ in pairs]),
        _Column("R+W MiB/s", texts(_disk_mib_s, ".1f"), 12),
        _Column("GPU", texts(of_gpu("index")), 2),
        _Column("UTIL %", texts(of_gpu("utilization_percent"))),
        _Column("", bars(of_gpu("utilization_percent"), 100), 5),
        _Column("GPU GiB", [_gpu_memory(gpu) for _, gpu in pairs], 1),
        _Column("W", texts(of_gpu("power_w")), 4),
        _Column("°C" if look.terminal.unicode else "C", texts(of_gpu("temperature_c"))),
        _Column("MHz", texts(of_gpu("clock_mhz")), 9),
        _Column("", [_note(rank, gpu, late, slow) for rank, gpu in pairs], left=True),
    ]  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _rate(per_s: float | None) -> str:
    return _number(per_s, ".2f" if (per_s or 0) < 100 else ".0f")


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


def _disk_mib_s(rank: RankSample, _: GpuSample | None) -> float | None:
    if rank.read_bytes_s is None or rank.write_bytes_s is None:
        return None
    return (rank.read_bytes_s + rank.write_bytes_s) / _MIB


def _loss(loss: float | str | None) -> str:
    return loss if isinstance(loss, str) else _number(loss, ".4g")


def _note(rank: RankSample, gpu: GpuSample | None, late: int | None, slow: Collection[int]) -> str:
    words = ["late"] if rank.rank == late else ["slow"] if rank.rank in slow else []
    words += [rank.loss] if isinstance(rank.loss, str) else []
    words += ["lost"] if gpu is not None and gpu.fault else []
    words += ["slowed"] if gpu is not None and gpu.slowdowns else []
    words += [_STATES[rank.state]] if rank.state in _STATES else []
    return ", ".join(words)


def _finding(finding: Finding, look: Look) -> list[str]:
    whole = look.height is None  # a screen does not wrap: what is too long for it ends in a sign that it goes on
    width = look.terminal.width
    said = wrap(_spelled(f"{finding.code}: {visible(finding.what)}", look), width, "! ", "  ")
    fix = wrap(_spelled(finding.fix, look), width, "  fix: ", "    ")
    said, fix = ([line if whole else _clipped(line, look) for line in lines] for lines in (said, fix))
    return [*(look.terminal.paint(line, "warning") for line in said), *fix]


def _clipped(text: str, look: Look) -> str:
    text = _spelled(text, look)
    if cells(text) <= look.terminal.width:
        return text
    while text and cells(text) > look.terminal.width - 1:
        text = text[:-1]
    return text + ("…" if look.terminal.unicode else ">")


def _spelled(text: str, look: Look) -> str:
    """Return ``text`` in signs that the terminal has, ahead of counting its cells."""
    return look.terminal.spell(text).replace("°" if not look.terminal.unicode else "\0", "")


def sparkline(values: Sequence[float | None], width: int, top: float | None = None, unicode: bool = True) -> str:
    """Return the last ``width`` values, newest right, from 0 to ``top`` (the greatest where it is None or more).

    What is not known is blank, and so is the left of a short row.
    """
    shown = list(values)[-width:] if width > 0 else []
    greatest = max([each for each in shown if each is not None], default=0.0)
    most = max(greatest, top or 0.0)
    bars = _BARS if unicode else _ASCII_BARS
    text = "".join(" " if each is None else bars[_level(each, most, len(bars))] for each in shown)
    return text.rjust(width)


def _level(value: float, most: float, levels: int) -> int:
    return min(levels - 1, max(0, int(value / most * levels))) if most > 0 else 0
