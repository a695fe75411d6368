"""The file of ``--trace``: when each phase of one launch began, as torchrun's process and the ranks noted it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, MutableMapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ddplaunch.machine.files import read_plain
from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.planning.settings import Settings
from ddplaunch.records.own.own_files import write_named
from ddplaunch.values.variable_names import EXECUTED

Phase = tuple[str, float, float]  # name, seconds since 1970 at its begin and at its end
Marks = Mapping[str, float]

SCRIPT = "script"
#: What ends when the last rank has noted it, in this order.
_PARTS = (
    ("python_s", "Python in the ranks"),
    ("torch_s", "import torch in the ranks"),
    ("collective_s", "until the first collective"),
)


class Trace:
    """The phases of the launch in this process; each ends where the next begins."""

    def __init__(self, settings: Settings, environ: MutableMapping[str, str]) -> None:
        """Note what is past: ddplaunch's own part, until it became torchrun, and the import of torch."""
        self._settings = settings
        self._path = settings.trace
        self._marks: list[tuple[str, float]] = []
        executed = environ.pop(EXECUTED, None)  # it is for this torchrun, not for one that a rank may start
        if self._path and executed:
            own = read_stat(os.getpid())  # it is older than torchrun, which ddplaunch became
            with contextlib.suppress(ValueError):
                self._marks += [("checks and plan", own.started_s)] if own else []
                self._marks += [("import torch", float(executed))]

    def begins(self, phase: str) -> None:
        """Note that ``phase`` begins now."""
        if self._path:
            self._marks.append((phase, time.time()))

    def write(self) -> None:
        """Write the file, now that the last phase is over; what cannot be written is not."""
        if not self._path:
            return
        node = self._settings.node
        path = Path(self._path)
        if node:
            path = path.with_name(f"{path.stem}.node-{node}{path.suffix}")
        phases = with_parts(phases_of(self._marks, time.time()), self._attempts())
        about = {"run_id": self._settings.run_id, "start": self._settings.start, "node": node}
        text = as_svg(about, phases) if path.suffix == ".svg" else as_json(about, phases)
        with contextlib.suppress(OSError):
            write_named(path, text)

    def _attempts(self) -> list[list[Marks]]:
        node = self._settings.node_directory
        if node is None:
            return []
        started = [name for name, _ in self._marks].count(SCRIPT)
        return [read_marks(Path(node, f"attempt-{number}")) for number in range(started)]


def phases_of(marks: list[tuple[str, float]], end_s: float) -> list[Phase]:
    """Return each phase with its end, the begin of the next one."""
    ends = [*(began for _, began in marks[1:]), end_s]
    return [(name, began, max(began, end)) for (name, began), end in zip(marks, ends, strict=False)]


def file_of(attempt: Path, rank: int) -> Path:
    """Return where a rank of an attempt leaves its notes."""
    return attempt / f"rank-{rank}.marks.json"


def read_marks(attempt: Path) -> list[Marks]:
    """Return the notes of each rank of an attempt that has left any."""
    found: list[Marks] = []
    for path in sorted(attempt.glob("rank-*.marks.json")):
        try:
            value = json.loads(read_plain(path))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append({name: number for name, number in value.items() if isinstance(number, int | float)})
    return found


def with_parts(phases: Sequence[Phase], attempts: Sequence[Sequence[Marks]]) -> list[Phase]:
    """Divide the phase of each attempt's script where the last rank had Python, torch, and its first collective.

    A part that some rank has not noted, as ranks that were forked have not noted the first two, is left out.
    """
    found: list[Phase] = []
    left = iter(attempts)
    for name, began, ended in phases:
        marks = next(left, ()) if name == SCRIPT else ()
        for key, part in _PARTS:
            last = max((each.get(key, ended) for each in marks), default=ended)
            if began < last < ended:
                found.append((part, began, last))
                began = last
        found.append((name, began, ended))
    return found


def as_json(about: dict[str, Any], phases: list[Phase]) -> str:
    """Return it as JSON; times are seconds since 1970."""
    listed = [{"phase": name, "began_s": round(began, 4), "ended_s": round(end, 4)} for name, began, end in phases]
    return json.dumps({"schema": 1, **about, "phases": listed}, indent=2) + "\n"


_WIDTH, _LABEL, _ROW = 900, 190, 26  # pixels
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1")


def as_svg(about: dict[str, Any], phases: list[Phase]) -> str:
    """Return a picture: one bar for each phase, below each other, on a common axis of seconds."""
    first, last = (phases[0][1], phases[-1][2]) if phases else (0.0, 0.0)
    scale = (_WIDTH - _LABEL - 80) / max(last - first, 1e-3)
    height = (len(phases) + 2) * _ROW
    title = escape(f"{about['run_id']}, {about['start']} start: {last - first:.2f} s")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="18" font-weight="bold">{title}</text>',
    ]
    for number, (name, began, end) in enumerate(phases):
        left, width, top = _LABEL + (began - first) * scale, (end - began) * scale, (number + 1) * _ROW
        colour = _COLOURS[number % len(_COLOURS)]
        lines += [
            f'<text x="8" y="{top + 16}">{escape(name)}</text>',
            f'<rect x="{left:.1f}" y="{top + 3}" width="{max(width, 1):.1f}" height="{_ROW - 8}" fill="{colour}"/>',
            f'<text x="{left + width + 4:.1f}" y="{top + 16}">{(end - began) * 1000:.0f} ms</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])
