"""Draws results/startup.json as a picture for the README: ``python -m benchmarks.plot``.

Two panels of bars: seconds until all ranks have met, and the memory that all processes hold then.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.launchers import ACCELERATE, COLD, DEEPSPEED, TORCHRUN, WARM

SOURCE = Path(__file__).with_name("results") / "startup.json"
PICTURE = Path(__file__).parents[1] / "docs" / "startup.svg"
_WIDTH, _PANEL, _TOP, _HEIGHT, _GAP = 860, 400, 78, 190, 60  # pixels
_ORDER = (TORCHRUN, ACCELERATE, DEEPSPEED, COLD, WARM)
_CLASS = {TORCHRUN: "torchrun", ACCELERATE: "accelerate", DEEPSPEED: "deepspeed", COLD: "cold", WARM: "warm"}
#: Colours that tell each other apart for the colour-blind too, on white and on near-black.
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 13px }
.axis { stroke: #8c959f } .value { font-size: 9px }
.torchrun { fill: #6e7781 } .accelerate { fill: #c9a227 } .deepspeed { fill: #8250df }
.cold { fill: #54aeff } .warm { fill: #0969da }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .axis { stroke: #6e7681 } .torchrun { fill: #9ea7b3 } .deepspeed { fill: #a371f7 }
  .cold { fill: #79c0ff } .warm { fill: #1f6feb }
}
""".strip()


def draw(results: dict[str, Any]) -> str:
    """Return the picture as SVG, readable on a light and on a dark page."""
    launches = {int(ranks): by_name for ranks, by_name in results["launches"].items()}
    names = [name for name in _ORDER if any(name in by_name for by_name in launches.values())]
    machine = results["machine"]
    about = f"{machine['processor']}; torch {machine['torch']}, Python {machine['Python']}"
    others = results.get("others", 0.0)
    conditions = "medians" if others < 0.1 else f"medians; other programs used {others:.0%} of the CPUs"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_TOP + _HEIGHT + 62}" role="img" '
        'aria-label="seconds until all ranks are ready, and memory, by launcher and number of ranks">',
        f"<style>{_STYLE}</style>",
        *_legend(names),
        *_panel(0, "seconds until the first all-reduce of all ranks", launches, names, "ready", 1),
        *_panel(_PANEL + _GAP, "MiB that all processes hold then (PSS)", launches, names, "pss_mib", 0),
        f'<text class="value" x="0" y="{_TOP + _HEIGHT + 52}">{escape(about)}; {conditions}</text>',
        "</svg>",
    ]
    return "\n".join([*lines, ""])


def _legend(names: Sequence[str]) -> list[str]:
    lines, left = [], 0.0
    for name in names:
        lines.append(f'<rect class="{_CLASS[name]}" x="{left:.0f}" y="6" width="12" height="12" rx="2"/>')
        lines.append(f'<text x="{left + 17:.0f}" y="16">{escape(name)}</text>')
        left += 17 + 6.6 * len(name) + 20
    return lines


def _panel(
    left: int, title: str, launches: dict[int, dict[str, Any]], names: Sequence[str], figure: str, digits: int
) -> list[str]:
    """Return one group of bars for each number of ranks, each bar with its value."""
    medians = {
        (ranks, name): statistics.median(by_name[name][figure])
        for ranks, by_name in launches.items()
        for name in names
        if name in by_name
    }
    most = max(medians.values())
    group = _PANEL / len(launches)
    bar = min(22.0, (group - 14) / len(names))
    bottom = _TOP + _HEIGHT
    lines = [f'<text class="title" x="{left}" y="48">{escape(title)}</text>']
    for place, ranks in enumerate(sorted(launches)):
        start = left + place * group + (group - bar * len(names)) / 2
        for number, name in enumerate(names):
            if (ranks, name) not in medians:
                continue
            value = medians[ranks, name]
            height = value / most * _HEIGHT
            x, y = start + number * bar, bottom - height
            lines.append(
                f'<rect class="{_CLASS[name]}" x="{x:.1f}" y="{y:.1f}" width="{bar - 2:.1f}" height="{height:.1f}">'
                f"<title>{escape(name)}, {ranks} ranks: {value:.{digits}f}</title></rect>"
            )
            lines.append(
                f'<text class="value" text-anchor="middle" x="{x + bar / 2 - 1:.1f}" y="{y - 3:.1f}">'
                f"{_short(value, digits)}</text>"
            )
        middle = left + (place + 0.5) * group
        text = "1 rank" if ranks == 1 else f"{ranks} ranks"
        lines.append(f'<text text-anchor="middle" x="{middle:.0f}" y="{bottom + 18}">{text}</text>')
    lines.append(f'<line class="axis" x1="{left}" x2="{left + _PANEL}" y1="{bottom}" y2="{bottom}"/>')
    return lines


def _short(value: float, digits: int) -> str:
    """Three figures at most, because a bar is 15 pixels wide: thousands are written as 1.3k."""
    if value >= 1000:
        return f"{value / 1000:.1f}k"
    return f"{value:.{digits if value < 10 else 0}f}"


def main() -> None:
    """Write docs/startup.svg."""
    PICTURE.write_text(draw(json.loads(SOURCE.read_text())))


if __name__ == "__main__":
    main()
