"""The answer of `ddplaunch scale`: a table with a column for each size, the verdicts, and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplaunch.ui.speech import finding_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import plain
from ddplaunch.values.words import count, duration_text, size_text
from ddplaunch.watch.phases import PHASES, milliseconds, percent
from ddplaunch.watch.size_verdicts import SizeMeasured, base_of, noise, speed_up, verdict
from ddplaunch.watch.step_rate import rate_text

_SCHEMA = 2


def progress_text(one: SizeMeasured, took_s: float, terminal: Terminal) -> str:
    """Return the line of one finished trial."""
    if one.step_s is None:
        what = one.problem.what if one.problem is not None else "not measured"
    else:
        rate = "" if one.samples_per_s is None else f", {rate_text(one.samples_per_s)} samples/s"
        what = f"{count(min(rank.steps for rank in one.ranks), 'step')} of {milliseconds(one.step_s)}{rate}"
    return terminal.note(f"{_name(one)}: {what} ({duration_text(took_s)})")


def scale_text(sizes: Sequence[SizeMeasured], terminal: Terminal, *, strong: bool) -> str:
    """Return the table, reasons why it is uncertain, and a verdict for each size."""
    base, lines = base_of(sizes), list[str]()
    if measured := [one for one in sizes if one.ranks]:
        names = [_name(one) for one in measured]
        rows = _rows(measured, base, strong=strong)
        filled_rows = [
            {"": title, **dict(zip(names, texts, strict=True))} for title, texts in rows.items() if any(texts)
        ]
        lines += table(filled_rows, terminal, names)
        kind = "the effective batch stays the same" if strong else "each process keeps its batch"
        lines += ["", *terminal.lines(f"{kind}; shares are of a step's time", "  ")]
        for one in measured:
            lines += terminal.lines(f"{_name(one)}: uncertain ({why})", "  ") if (why := noise(one)) else []
    shown: set[str] = set()  # findings of several sizes are shown at the first one only
    for one in sizes:
        found = verdict(one, base, strong=strong) or one.problem or "not measured"
        if isinstance(found, str):
            lines += ["", *terminal.lines(f"{_name(one)}: {found}")]
        else:
            lines += ["", terminal.paint(_name(one), "bold"), *finding_text(found, terminal).splitlines()]
        for more in one.observed:
            if more is not one.apart and more.what not in shown:
                shown.add(more.what)
                lines.append(finding_text(more, terminal).rstrip("\n"))
    return terminal.page(lines).lstrip("\n")


def _name(one: SizeMeasured) -> str:
    return count(one.processes, "process")


def _rows(sizes: Sequence[SizeMeasured], base: SizeMeasured | None, *, strong: bool) -> dict[str, list[str]]:
    speeds = [speed_up(one, base, strong=strong) for one in sizes]
    shares = {
        "communication" if name == "comm" else name: [
            "unknown" if (share := one.shares[name]) is None else percent(share) for one in sizes
        ]
        for name in (*PHASES, "rest")
    }
    return {
        "step": [milliseconds(one.step_s or 0.0) for one in sizes],
        "samples/s": [rate_text(one.samples_per_s) for one in sizes],
        "speed-up": ["" if speed is None else f"{speed.speed_up:.2f}" for speed in speeds],
        "efficiency": ["" if speed is None else percent(speed.efficiency) for speed in speeds],
        **shares,
        "peak memory": [size_text(one.peak_bytes) for one in sizes],
    }


def scale_json(sizes: Sequence[SizeMeasured], *, strong: bool) -> dict[str, Any]:
    """Return everything as JSON values, schema 2; times in seconds, memory in bytes, shares from 0 to 1."""
    base, rows = base_of(sizes), []
    for one in sizes:
        faster, found = speed_up(one, base, strong=strong), verdict(one, base, strong=strong)
        words = (
            {"finding": None, "text": found}
            if isinstance(found, str)
            else found and {"finding": plain(found), "text": found.what}
        )
        rows.append(
            {
                **plain(one),
                "step_s": one.step_s,
                "spread_s": one.spread_s,
                "peak_bytes": one.peak_bytes,
                "shares": one.shares if one.ranks else None,
                "speed_up": None if faster is None else round(faster.speed_up, 4),
                "efficiency": None if faster is None else round(faster.efficiency, 4),
                "verdict": words,
                "unsure": one.disturbed or noise(one) or None,
            }
        )
    return {"schema": _SCHEMA, "strong": strong, "sizes": rows}
