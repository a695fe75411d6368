"""What `ddplaunch scale` answers: one table with a column for each size, the verdicts, JSON, and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from ddplaunch.records.directory import path_text
from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.table import section, table
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.codec import plain
from ddplaunch.values.words import count, duration_text, listed, size_text
from ddplaunch.watch.phases import milliseconds, percent
from ddplaunch.watch.samples import PHASES
from ddplaunch.watch.size_verdicts import SizeMeasured, SpeedUp, base_of, noise, speed_up, unwatched, verdict

_SCHEMA = 1
_LONGER = 0.02  # what is less is no rank's own
_TITLES = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "comm": "communication",
    "optimizer": "optimizer",
    "rest": "rest",
}


def progress_text(one: SizeMeasured, took_s: float, width: int = 80) -> str:
    """Return the line of one trial that is over, in as many as ``width`` characters take."""
    name = _name(one)
    if one.step_s is None:
        what = one.problem.what if one.problem is not None else "not measured"
        return "\n".join([*wrap(f"{name}: {what} ({duration_text(took_s)})", width, "", "  "), ""])
    rate = "" if one.samples_per_s is None else f", {_rate(one.samples_per_s)} samples/s"
    steps = count(min(rank.steps for rank in one.ranks), "step")
    return f"{name}: {steps} of {milliseconds(one.step_s)}{rate} ({duration_text(took_s)})\n"


def scale_text(
    sizes: Sequence[SizeMeasured], terminal: Terminal, *, strong: bool, dataset_size: int | None = None
) -> str:
    """Return the table, what makes it unsure, a verdict for each size, and what was written elsewhere."""
    base = base_of(sizes)
    measured = [one for one in sizes if one.ranks]
    lines: list[str] = []
    if measured:
        rows = _rows(measured, base, strong=strong, dataset_size=dataset_size)
        known = [[title, *cells] for title, cells in rows if any(cells)]
        header = ["processes", *(one.size for one in measured)]
        widest = sum(max(map(len, column)) + 2 for column in zip(header, *known, strict=True))
        if widest <= terminal.width:
            lines += table(header, known, terminal, range(1, len(header)))
        else:
            for number, one in enumerate(measured, 1):
                cells = [[row[0], row[number]] for row in known]
                lines += section(_name(one), table(["", ""], cells, terminal, right=(1,)), terminal)
            lines.pop()
        kind = "the effective batch stays the same" if strong else "each process keeps its batch"
        lines += ["", *wrap(f"{kind}; shares are of a step's time", terminal.width, "  ", "  ")]
        lines += [
            line
            for one in measured
            if (unsure := noise(one))
            for line in wrap(f"{one.size} is unsure: {unsure}", terminal.width, "  ", "    ")
        ]
    told: set[str] = set()  # what several sizes show stands at the first of them
    for one in sizes:
        lines += ["", *_verdict_lines(one, base, terminal, strong=strong)]
        others = [each for each in one.observed if each is not one.apart and each.what not in told]
        lines += [finding_text(each, terminal).rstrip("\n") for each in others]
        told.update(each.what for each in others)
    if (blind := unwatched(sizes)) is not None:
        lines += ["", finding_text(blind, terminal).rstrip("\n")]
    if outside := sorted({visible(path_text(Path(path))) for one in sizes for path in one.outside}):
        lines += ["", *wrap(f"written outside of the trials' folders: {listed(outside, 8)}", terminal.width, "", "  ")]
    return terminal.spell("\n".join(lines).strip("\n") + "\n")


def _verdict_lines(one: SizeMeasured, base: SizeMeasured | None, terminal: Terminal, *, strong: bool) -> list[str]:
    found = verdict(one, base, strong=strong)
    finding = one.problem if found is None else found.finding
    title = terminal.paint(_name(one), "bold")
    if finding is None:
        text = f"{_name(one)}: {found.text if found is not None else 'not measured'}"
        first, *more = wrap(text, terminal.width, "", "  ")
        return [title + first.removeprefix(_name(one)), *more]
    return [title, finding_text(finding, terminal).rstrip("\n")]


def _name(one: SizeMeasured) -> str:
    return count(one.processes, "process") + (f" on {one.nodes} nodes" if one.nodes > 1 else "")


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def _slowest(one: SizeMeasured) -> str:
    """Return the rank that works longest in a step, and how much longer than the median of all; "" if none does."""
    slowest, usual_s = one.slowest, median([rank.own_s or 0.0 for rank in one.ranks] or [0.0])
    longer = 0.0 if slowest is None or not usual_s else (slowest.own_s or 0.0) / usual_s - 1
    return f"{slowest.rank}: +{percent(longer)}" if slowest is not None and longer >= _LONGER else ""


def _rows(
    sizes: Sequence[SizeMeasured], base: SizeMeasured | None, *, strong: bool, dataset_size: int | None
) -> list[tuple[str, list[str]]]:
    speeds = [speed_up(one, base, strong=strong) for one in sizes]
    rows = [
        ("step", [milliseconds(one.step_s or 0.0) for one in sizes]),
        ("10 % take less than", [milliseconds(one.spread_s[0]) if one.spread_s else "" for one in sizes]),
        ("10 % take more than", [milliseconds(one.spread_s[1]) if one.spread_s else "" for one in sizes]),
        ("samples/s", ["" if one.samples_per_s is None else _rate(one.samples_per_s) for one in sizes]),
        ("speed-up", ["" if each is None else f"{each.speed_up:.2f}" for each in speeds]),
        ("efficiency", ["" if each is None else percent(each.efficiency) for each in speeds]),
    ]
    for name in (*PHASES, "rest"):
        shares = [one.shares[name] for one in sizes]
        rows.append((_TITLES[name], ["unknown" if share is None else percent(share) for share in shares]))
    epochs = [
        duration_text(dataset_size / one.samples_per_s) if dataset_size and one.samples_per_s else "" for one in sizes
    ]
    return [
        *rows,
        ("peak memory", [size_text(one.peak_bytes) for one in sizes]),
        ("slowest rank", [_slowest(one) for one in sizes]),
        ("time per epoch", epochs),
        ("effective batch", ["" if one.effective_batch is None else str(one.effective_batch) for one in sizes]),
        ("learning rate", [one.lr or "" for one in sizes]),
    ]


def scale_json(sizes: Sequence[SizeMeasured], *, strong: bool, dataset_size: int | None = None) -> dict[str, Any]:
    """Return everything as JSON values, schema 1; times in seconds, memory in bytes, shares from 0 to 1."""
    base, rows = base_of(sizes), []
    for one in sizes:
        faster, found = speed_up(one, base, strong=strong), verdict(one, base, strong=strong)
        rows.append(
            {
                **plain(one),
                "step_s": one.step_s,
                "spread_s": one.spread_s,
                "peak_bytes": one.peak_bytes,
                "shares": one.shares if one.ranks else None,
                "slowest_rank": None if one.slowest is None else one.slowest.rank,
                "speed_up": None if faster is None else round(faster.speed_up, 4),
                "efficiency": None if faster is None else round(faster.efficiency, 4),
                "epoch_s": dataset_size / one.samples_per_s if dataset_size and one.samples_per_s else None,
                "verdict": None if found is None else {"finding": plain(found.finding), "text": found.text},
                "unsure": noise(one) or None,
            }
        )
    return {"schema": _SCHEMA, "strong": strong, "dataset_size": dataset_size, "sizes": rows}


_WIDTH, _PANEL, _TOP, _HEIGHT, _GAP = 820, 360, 76, 220, 70  # pixels
#: Paul Tol's bright scheme: https://personal.sron.nl/~pault/
_COLOURS = {
    "data": "#ee6677",
    "forward": "#66ccee",
    "backward": "#4477aa",
    "comm": "#ccbb44",
    "optimizer": "#228833",
    "rest": "#999999",
}
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 13px }
.axis { stroke: #8c959f } .ideal { stroke: #8c959f; stroke-dasharray: 5 4; fill: none }
.seen { stroke: #0969da; stroke-width: 2; fill: none } .dot { fill: #0969da } .small { font-size: 10px }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .seen { stroke: #58a6ff } .dot { fill: #58a6ff } }
""".strip()


def scale_svg(sizes: Sequence[SizeMeasured], title: str, *, strong: bool) -> str:
    """Return a picture: speed-up against the ideal one, and where a step's time goes at each size."""
    base = base_of(sizes)
    found = [(one, faster) for one in sizes if (faster := speed_up(one, base, strong=strong)) is not None]
    height = _TOP + _HEIGHT + 60
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="{escape(visible(title))}: speed-up, and the phases of a step, by number of processes">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="30" y="20">{escape(visible(title))}</text>',
        *_speed_panel(30, found),
        *_phase_panel(30 + _PANEL + _GAP, [one for one, _ in found]),
        "</svg>",
    ]
    return "\n".join([*lines, ""])


def _speed_panel(left: int, found: Sequence[tuple[SizeMeasured, SpeedUp]]) -> list[str]:
    most = max([max(faster.ideal, faster.speed_up) for _, faster in found], default=1.0)
    bottom, top = _TOP + _HEIGHT, math.ceil(most)

    def place(number: int, value: float) -> str:
        x = left + (number + 0.5) * _PANEL / max(1, len(found))
        return f"{x:.1f} {bottom - value / top * _HEIGHT:.1f}"

    lines = [f'<text class="title" x="{left}" y="48">speed-up; dashed: ideal</text>']
    for value in sorted({0, top, *([top // 2] if top % 2 == 0 else [])}):
        level = bottom - value / top * _HEIGHT
        lines.append(
            f'<line class="axis" x1="{left}" x2="{left + _PANEL}" y1="{level:g}" y2="{level:g}" opacity="0.4"/>'
        )
        lines.append(f'<text x="{left - 6}" y="{level + 4:g}" text-anchor="end">{value}</text>')
    for name, values in (
        ("ideal", [faster.ideal for _, faster in found]),
        ("seen", [faster.speed_up for _, faster in found]),
    ):
        path = " L".join(place(number, value) for number, value in enumerate(values))
        lines += [f'<path class="{name}" d="M{path}"/>'] if found else []
    for number, (one, faster) in enumerate(found):
        x, y = place(number, faster.speed_up).split()
        lines.append(f'<circle class="dot" cx="{x}" cy="{y}" r="4"/>')
        label = f"{faster.speed_up:.2f} ({percent(faster.efficiency)})"
        beside = float(y) + 18 if float(y) + 22 < bottom else float(y) - 9  # the axis has its own numbers
        lines.append(f'<text class="small" x="{x}" y="{beside:.1f}" text-anchor="middle">{label}</text>')
        lines.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{escape(one.size)}</text>')
    lines.append(f'<text x="{left + _PANEL / 2}" y="{bottom + 38}" text-anchor="middle">processes</text>')
    return lines


def _phase_panel(left: int, sizes: Sequence[SizeMeasured]) -> list[str]:
    """Return a bar for each size, as high as its mean step takes, with its phases stacked."""
    bottom = _TOP + _HEIGHT
    most = max((one.mean_s or 0.0 for one in sizes), default=1.0) or 1.0
    group = _PANEL / max(1, len(sizes))
    bar = min(60.0, group * 0.6)
    lines = [f'<text class="title" x="{left}" y="48">time of a step by phase</text>']
    at = float(left)
    for name in _COLOURS:
        lines.append(f'<rect x="{at:g}" y="56" width="9" height="9" fill="{_COLOURS[name]}"/>')
        lines.append(f'<text class="small" x="{at + 12:g}" y="64">{_TITLES[name]}</text>')
        at += 14 + 6.2 * len(_TITLES[name])  # of DejaVu Sans, which is wide
    for number, one in enumerate(sizes):
        x, y = left + (number + 0.5) * group - bar / 2, float(bottom)
        for name, share in one.shares.items():
            high = (share or 0.0) * (one.mean_s or 0.0) / most * (_HEIGHT - 24)
            y -= high
            lines.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar:.1f}" height="{high:.1f}" fill="{_COLOURS[name]}">'
                f"<title>{_TITLES[name]}: {percent(share or 0.0)}</title></rect>"
            )
        middle = f'x="{x + bar / 2:.1f}" text-anchor="middle"'
        lines.append(f'<text class="small" {middle} y="{y - 5:.1f}">{milliseconds(one.mean_s or 0.0)}</text>')
        lines.append(f'<text {middle} y="{bottom + 18}">{escape(one.size)}</text>')
    lines.append(f'<line class="axis" x1="{left}" x2="{left + _PANEL}" y1="{bottom}" y2="{bottom}"/>')
    lines.append(f'<text x="{left + _PANEL / 2}" y="{bottom + 38}" text-anchor="middle">processes</text>')
    return lines
