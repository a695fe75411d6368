"""Recorded samples as an SVG of small plots, a line for each rank.

https://www.w3.org/TR/SVG11/ is all that it uses: no script, no style sheet, no font of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from ddplaunch.ui.terminal import visible
from ddplaunch.watch.samples import GpuSample, RankSample, Sample, Value, of_gpu, of_rank

_WIDTH, _HEIGHT = 460, 150  # of one plot
_LEFT, _TOP, _GAP = 60, 70, 60
_MOST_POINTS = 400  # more than one for each pixel is not seen
_GIB = 1 << 30
#: Paul Tol's bright scheme, told apart by people who see colours differently: https://personal.sron.nl/~pault/
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000")
_DASHES = ("", "6 3", "2 2", "8 3 2 3")  # the next eight ranks have the same colours, dashed


def _loss(rank: RankSample, _: GpuSample | None) -> float | None:
    """Return the loss that was printed last; a gap where it is no number."""
    return rank.loss if isinstance(rank.loss, float) else None


#: Title, value, and what the axis reaches at least.
_PLOTS: tuple[tuple[str, Value, float], ...] = (
    ("steps per second", of_rank("step_rate"), 0),
    ("loss", _loss, 0),
    ("CPU of the rank, % of one", of_rank("cpu_percent"), 100),
    ("CPU of its DataLoader workers, % of one", of_rank("workers_cpu_percent"), 100),
    ("memory of the rank, GiB", of_rank("rss_bytes", _GIB), 0),
    ("GPU utilisation, %", of_gpu("utilization_percent"), 100),
    ("GPU memory, GiB", of_gpu("memory_used_bytes", _GIB), 0),
    ("GPU power, W", of_gpu("power_w"), 0),
    ("GPU temperature, °C", of_gpu("temperature_c"), 100),
    ("GPU clock, MHz", of_gpu("clock_mhz"), 0),
)


_Lines = dict[int, list[tuple[float, float | None]]]


def metrics_svg(samples: Mapping[int, Sequence[Sample]], title: str) -> str:
    """Return one SVG with a plot of each thing that was recorded; ``samples`` are by node. Time is from the first."""
    plots, ranks, span_s = _recorded(samples)
    columns = 2 if len(plots) > 1 else 1
    width = columns * (_WIDTH + _LEFT) + 20
    below = _TOP + (len(plots) + columns - 1) // columns * (_HEIGHT + _GAP)
    legend, height = _legend(ranks, width, below)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#222222">',
        f"<title>{escape(visible(title))}</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="28" font-size="16">{escape(visible(title))}</text>',
    ]
    for number, (name, top, lines) in enumerate(plots):
        x = _LEFT + number % columns * (_WIDTH + _LEFT)
        y = _TOP + number // columns * (_HEIGHT + _GAP)
        parts += _drawn(name, top, lines, span_s, x, y)
    return "\n".join([*parts, *legend, "</svg>"]) + "\n"


def small_plots(samples: Mapping[int, Sequence[Sample]]) -> tuple[tuple[str, str], ...]:
    """Return title and SVG of each thing that was recorded, one by one, for a page that arranges them itself.

    The last is the legend.
    """
    plots, ranks, span_s = _recorded(samples)
    width, height = _LEFT + _WIDTH + 20, _HEIGHT + 44
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
    found = []
    for name, top, lines in plots:
        parts = _drawn(name, top, lines, span_s, _LEFT, 20)
        found.append((name, "\n".join([f'{head} font-size="12" role="img">', *parts, "</svg>"])))
    legend, below = _legend(ranks, width, 10)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{_LEFT - 10} 0 {width} {below}" font-family="sans-serif"'
    return (*found, ("colours of the ranks", "\n".join([f'{head} font-size="12" role="img">', *legend, "</svg>"])))


def _recorded(samples: Mapping[int, Sequence[Sample]]) -> tuple[list[tuple[str, float, _Lines]], list[int], float]:
    """Return title, top and lines of each plot, all ranks, and how many seconds the samples span."""
    everything = [sample for node in sorted(samples) for sample in samples[node]]
    began_s = min((sample.at_s for sample in everything), default=0.0)
    span_s = max((sample.at_s for sample in everything), default=0.0) - began_s or 1.0
    plots = [(name, top, lines) for name, value, top in _PLOTS if (lines := _lines(value, everything, began_s))]
    return plots, sorted({rank.rank for sample in everything for rank in sample.ranks}), span_s


def _lines(value: Value, samples: Sequence[Sample], began_s: float) -> _Lines:
    """Return rank → (seconds, value); nothing if no rank ever had one."""
    found: _Lines = {}
    for sample in samples:
        for rank in sample.ranks:
            found.setdefault(rank.rank, []).append((sample.at_s - began_s, value(rank, sample.gpu_of(rank))))
    known = {rank: line for rank, line in found.items() if any(each is not None for _, each in line)}
    return {rank: _thinned(sorted(line)) for rank, line in sorted(known.items())} if known else {}


def _thinned(line: list[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Return means over equal numbers of points where there are too many; a gap stays one."""
    each = -(-len(line) // _MOST_POINTS)
    if each < 2:
        return line
    thinned: list[tuple[float, float | None]] = []
    for start in range(0, len(line), each):
        part = line[start : start + each]
        known = [value for _, value in part if value is not None]
        thinned.append((part[0][0], sum(known) / len(known) if known else None))
    return thinned


def _drawn(title: str, top: float, lines: _Lines, span_s: float, x: int, y: int) -> list[str]:
    known = [value for line in lines.values() for _, value in line if value is not None]
    bottom = -_round_up(-min(known))  # below zero only where a value is, as a loss may be
    top = _round_up(max(*known, top)) or (0.0 if bottom else 1.0)
    parts = [f'<text x="{x}" y="{y - 8}" font-weight="bold">{escape(title)}</text>']
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at, below = y + _HEIGHT * (1 - share), f'x="{x + _WIDTH * share:g}" y="{y + _HEIGHT + 16}"'
        parts += [
            f'<line x1="{x}" y1="{at:g}" x2="{x + _WIDTH}" y2="{at:g}" stroke="#dddddd"/>',
            f'<text x="{x - 6}" y="{at + 4:g}" text-anchor="end">{bottom + (top - bottom) * share:g}</text>',
            f'<text {below} text-anchor="{anchor}">{_clock(span_s * share)}</text>',
        ]
    for rank, line in lines.items():
        path = _path(
            [
                (x + _WIDTH * at_s / span_s, None if value is None else y + _HEIGHT * (top - value) / (top - bottom))
                for at_s, value in line
            ]
        )
        parts.append(f'<path d="{path}" {_stroke(rank)}><title>rank {rank}</title></path>')
    return parts


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    words, pen = [], "M"
    for x, y in points:
        if y is None:
            pen = "M"
            continue
        words.append(f"{pen}{x:.1f} {y:.1f}")
        if pen == "M":
            words.append(f"L{x:.1f} {y:.1f}")  # a single point is a dot, with round ends
        pen = "L"
    return "".join(words)


def _stroke(rank: int) -> str:
    dash = _DASHES[rank // len(_COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'fill="none" stroke="{_COLOURS[rank % len(_COLOURS)]}" stroke-width="1.5" stroke-linecap="round"{dashed}'


def _legend(ranks: Sequence[int], width: int, y: int) -> tuple[list[str], int]:
    """Return a stroke and a name for each rank, and the height of everything with them."""
    each = 90
    columns = max(1, (width - _LEFT) // each)
    parts = []
    for number, rank in enumerate(ranks):
        x, line_y = _LEFT + number % columns * each, y + number // columns * 20
        parts.append(f'<path d="M{x} {line_y}h24" {_stroke(rank)}/>')
        parts.append(f'<text x="{x + 30}" y="{line_y + 4}">rank {rank}</text>')
    return parts, y + -(-len(ranks) // columns) * 20 + 10


def _round_up(value: float) -> float:
    """Return the next round number: 1, 1.5, 2, 2.5, 3, 4, 5, 6 or 8 times a power of ten."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * power >= value * 0.999999)


def _clock(seconds: float) -> str:
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600}:{whole // 60 % 60:02} h"
    return f"{whole // 60}:{whole % 60:02} min" if whole >= 120 else f"{whole} s"
