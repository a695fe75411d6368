"""What `top` shows: one screen or one plain table of the newest sample, or medians over a whole recording."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal, cells, visible, wrap
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import age_text, size_text
from ddplaunch.watch.samples import GpuSample, HostSample, Point, RankSample, Sample, Value
from ddplaunch.watch.stragglers import worker_percent

_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_WIDTH = 8  # cells of a row of bars
_GAP = "  "
_GIB, _MIB = 1 << 30, 1 << 20
_STATES = {"D": "waits for disk", "T": "stopped", "t": "traced"}  # proc_pid_stat(5)


@dataclass(frozen=True)
class Look:
    """How to draw. ``height`` None is as long as need be; ``bars`` False leaves sparklines out."""

    terminal: Terminal
    height: int | None = None
    bars: bool = True
    first_row: int = 0


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
    if samples:
        head += _packed(_host_words(samples, look), look)
        rows = _table(samples, late, look)
    tail = [line for note in about.notes for line in wrap(_spelled(visible(note), look), look.terminal.width, "", "  ")]
    for finding in findings:
        tail += _finding(finding, look)
    return _fitted(head, rows, tail, about.keys, look)


def _fitted(head: list[str], rows: list[str], tail: list[str], keys: str, look: Look) -> list[str]:
    """Put the parts together: where they are too long, the table is cut before the findings, down to three ranks."""
    foot = [look.terminal.paint(_clipped(keys, look), "dim")] if keys else []
    if look.height is None:
        return [*head, *([""] if rows else []), *rows, *([""] if tail else []), *tail]
    room = look.height - len(head) - len(foot) - 1
    for_rows = min(len(rows), max(4, room - len(tail) - 1))
    shown = rows
    if rows and for_rows < len(rows):
        for_rows = max(for_rows, 3)
        first = min(look.first_row, len(rows) - 1 - (for_rows - 2))
        body = rows[1 + first : 1 + first + for_rows - 2]
        hidden = len(rows) - 1 - len(body)
        shown = [rows[0], *body, _clipped(f"{hidden} more ranks: j and k scroll", look)]
    left = max(0, room - len(shown) - 1)
    if len(tail) > left:
        tail = [*tail[: left - 1], _spelled("…", look)] if left else []
    body = [*head, "", *shown, *([""] if tail else []), *tail]
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


def _table(samples: Sequence[Sample], late: int | None, look: Look) -> list[str]:
    last = samples[-1]
    if not last.ranks:
        return ["no rank runs"]
    columns = [column for column in _columns_of(samples, late, look) if any(column.texts)]
    while len(columns) > 2 and sum(column.cells + 2 for column in columns) - 2 > look.terminal.width:
        most = max(columns, key=lambda column: column.spared)
        if not most.spared:
            break
        columns.remove(most)
    lines = [_GAP.join(column.cell(column.name) for column in columns).rstrip()]
    lines[0] = look.terminal.paint(_clipped(lines[0], look), "dim")
    for row, rank in enumerate(last.ranks):
        text = _clipped(_GAP.join(column.cell(column.texts[row]) for column in columns).rstrip(), look)
        lines.append(look.terminal.paint(text, "warning") if rank.rank == late else text)
    return lines


class _Column:
    """A column of the table; ``spared`` ones go first where the terminal is narrow, the greatest number first."""

    def __init__(self, name: str, texts: list[str], spared: int = 0, left: bool = False) -> None:
        """``texts`` are the cells; the column is as wide as the widest of them, or its name."""
        self.name, self.texts, self.spared, self.left = name, texts, spared, left
        self.cells = max(cells(each) for each in (name, *texts))

    def cell(self, text: str) -> str:
        """Return ``text`` padded to the column's width."""
        pad = " " * (self.cells - cells(text))
        return text + pad if self.left else pad + text


def _columns_of(samples: Sequence[Sample], late: int | None, look: Look) -> list[_Column]:
    """Return every column, for the newest sample's ranks; those that say nothing have empty cells only."""
    ranks = samples[-1].ranks
    gpus = [samples[-1].gpu_of(rank) for rank in ranks]
    before = _history(samples)

    def bars(value: Value, top: float | None) -> list[str]:
        if not look.bars:
            return [""] * len(ranks)
        known = [[value(*point) for point in before[rank.rank]] for rank in ranks]
        most = max([top or 0.0, *(each for row in known for each in row if each is not None)])
        return [
            sparkline(row, _WIDTH, most, look.terminal.unicode) if any(each is not None for each in row) else ""
            for row in known
        ]

    pairs = list(zip(ranks, gpus, strict=True))
    return [
        _Column("RANK", [str(rank.rank) for rank in ranks]),
        _Column("STEP", [_number(rank.step, ".0f") for rank in ranks], 6),
        _Column("STEP/S", [_number(rank.step_rate, ".2f" if (rank.step_rate or 0) < 100 else ".0f") for rank in ranks]),
        _Column("", bars(lambda rank, _: rank.step_rate, None), 7),
        _Column("CPU %", [_number(rank.cpu_percent, ".0f") for rank in ranks]),
        _Column("", bars(lambda rank, gpu: None if gpu else rank.cpu_percent, 100), 8),
        _Column("MEM GiB", [_gib(rank.rss_bytes) for rank in ranks], 3),
        _Column("PSS GiB", [_gib(rank.pss_bytes) for rank in ranks], 11),
        _Column("THREADS", [_number(rank.threads, ".0f") for rank in ranks], 10),
        _Column("LOADER", [_loader(rank) for rank in ranks]),
        _Column("R+W MiB/s", [_disk(rank) for rank in ranks], 12),
        _Column("GPU", ["" if gpu is None else str(gpu.index) for gpu in gpus], 2),
        _Column("UTIL %", [_number(_of(gpu, "utilization_percent"), ".0f") for gpu in gpus]),
        _Column("", bars(lambda _, gpu: None if gpu is None else gpu.utilization_percent, 100), 5),
        _Column("GPU GiB", [_gpu_memory(gpu) for gpu in gpus], 1),
        _Column("W", [_number(_of(gpu, "power_w"), ".0f") for gpu in gpus], 4),
        _Column("°C" if look.terminal.unicode else "C", [_number(_of(gpu, "temperature_c"), ".0f") for gpu in gpus]),
        _Column("MHz", [_number(_of(gpu, "clock_mhz"), ".0f") for gpu in gpus], 9),
        _Column("", [_note(rank, gpu, late) for rank, gpu in pairs], left=True),
    ]  # fmt: skip


def _history(samples: Sequence[Sample]) -> dict[int, list[Point]]:
    """Return the last few moments of each rank of now, without those of an attempt before."""
    now = samples[-1]
    found: dict[int, list[Point]] = {rank.rank: [] for rank in now.ranks}
    for sample in samples[-_WIDTH:]:
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
    wider = replace(look.terminal, width=look.terminal.width + 2)  # the table indents its lines by two
    lines += [line[2:] for line in table(list(columns), rows, wider, frozenset(range(len(columns))))]
    if findings:
        lines += ["", findings_text(findings, look.terminal).rstrip("\n")]
    return [look.terminal.spell(line) for line in lines]


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


def of_gpu(name: str, per: float = 1.0) -> Value:
    """Return what reads this field of a rank's GPU, divided by ``per``."""

    def value(_: RankSample, gpu: GpuSample | None) -> float | None:
        found = getattr(gpu, name, None)
        return None if found is None else found / per

    return value


_COLUMNS: tuple[tuple[str, Value, str, Callable[[list[float]], float]], ...] = (
    ("STEP/S", lambda rank, _: rank.step_rate, ".2f", median),
    ("CPU %", lambda rank, _: rank.cpu_percent, ".0f", median),
    ("MEM GiB", lambda rank, _: None if rank.rss_bytes is None else rank.rss_bytes / _GIB, ".1f", max),
    ("LOADER", lambda rank, _: rank.workers or None, ".0f", median),
    ("% EACH", worker_percent, ".0f", median),
    ("UTIL %", of_gpu("utilization_percent"), ".0f", median),
    ("GPU GiB", of_gpu("memory_used_bytes", _GIB), ".1f", max),
    ("W", of_gpu("power_w"), ".0f", median),
    ("°C", of_gpu("temperature_c"), ".0f", max),
    ("MHz", of_gpu("clock_mhz"), ".0f", median),
)


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
