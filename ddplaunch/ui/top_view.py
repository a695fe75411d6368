"""What `top` shows, drawn by rich: one screen, or one plain table, of the newest sample."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ddplaunch.machine.sample import GpuSample, RankSample, Sample
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.table import console_on
from ddplaunch.ui.terminal import Terminal, cells, visible, wrap
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderableType

_GAP = 2
_GIB = 1 << 30
_LEAST_ROWS = 3
_STATES = {"D": "waits for disk", "T": "stopped", "t": "traced"}  # proc_pid_stat(5)
_LOST = frozenset(["lost", "nan", "inf", "-inf"])


@dataclass(frozen=True)
class TopView:
    """The newest sample with what is known of the run, as rich draws it into the width and height that there are.

    ``words`` are parts of the first line, ``notes`` lines below the table, ``late`` is the rank that others wait for,
    None where there is none. ``keys`` says what may be typed.
    """

    sample: Sample
    words: Sequence[str]
    notes: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    late: int | None = None
    keys: str = ""
    terminal: Terminal = Terminal()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the lines; on a screen the table is cut before the findings, down to three ranks."""
        from rich.text import Text

        terminal = replace(self.terminal, width=options.max_width)
        head = Text(terminal.spell(self._first_line(terminal.width)), "bold")
        host = Text("  ".join(self._host_words()))
        below = [line for note in self.notes for line in wrap(terminal.spell(visible(note)), terminal.width, "", "  ")]
        below += findings_text(self.findings, terminal).splitlines()
        below += [terminal.paint(self.keys, "dim")] if self.keys else []
        room = None
        if console.is_alt_screen:
            above = sum(len(text.wrap(console, terminal.width)) for text in (head, host))
            room = max(_LEAST_ROWS, console.height - above - len(below) - 3)  # two empty lines, and the titles
        yield from (head, host, "")
        yield self._table(terminal, room)
        if below:
            yield Text.from_ansi("\n".join(["", *below]), no_wrap=True, overflow="ignore")

    def _first_line(self, width: int) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(self.sample.at_s))
        text = "  ".join(visible(word) for word in self.words if word)
        space = width - cells(text) - cells(clock)
        return f"{text}{' ' * space}{clock}" if space >= _GAP else text

    def _host_words(self) -> list[str]:
        host, words = self.sample.host, []
        if host.cpu_percent is not None:
            words.append(f"{host.cpus} CPUs {host.cpu_percent:.0f} %")
        if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
            used = host.memory_total_bytes - host.memory_available_bytes
            words.append(f"memory {size_text(used)} of {size_text(host.memory_total_bytes)}")
        return words

    def _table(self, terminal: Terminal, room: int | None) -> RenderableType:
        """Return the table in at most ``room`` rows; where ranks have no room, those with a note come first."""
        from rich.table import Table
        from rich.text import Text

        pairs = [(rank, self.sample.gpu_of(rank)) for rank in self.sample.ranks]
        if not pairs:
            return "no rank runs"
        notes = [_note(rank, gpu, self.late) for rank, gpu in pairs]
        apart = [" " * _GAP + note if note else "" for note in notes]
        columns = _fitting([*_columns(pairs), _Column("", apart)], terminal)
        table = Table(
            box=None, padding=0, pad_edge=False, header_style="dim"
        )  # with rich's padding it takes twice as long
        for column in columns:
            table.add_column(
                terminal.spell(column.title),
                width=column.width + (_GAP if table.columns else 0),
                justify="right" if column.title else "left",
                no_wrap=True,
                overflow="crop",
            )
        rows = list(range(len(pairs)))
        if room is not None and len(rows) > room:
            by_need = sorted(rows, key=lambda row: not notes[row])
            rows = sorted(by_need[: room - 1])
            table.caption = f"{len(pairs) - len(rows)} more ranks: `--json` has all"
            table.caption_justify, table.caption_style = "left", ""
        for row in rows:
            style = "" if not notes[row] else "bold red" if _LOST & {*notes[row].split(", ")} else "bold yellow"
            table.add_row(*(Text(terminal.spell(column.texts[row])) for column in columns), style=style)
        return table


class _Column(NamedTuple):
    """A column; where the terminal is narrow, those that are ``spared`` go first, the greatest number first."""

    title: str
    texts: Sequence[str]
    spared: int = 0

    @property
    def width(self) -> int:
        return max(map(cells, (self.title, *self.texts)))


def _columns(pairs: Sequence[tuple[RankSample, GpuSample | None]]) -> list[_Column]:
    """Return the columns of ranks with their GPUs; one of which nothing is known has empty texts."""
    ranks = [rank for rank, _ in pairs]
    gpus = [gpu or GpuSample(-1) for _, gpu in pairs]

    def phase(name: str) -> list[str]:
        return [_number(rank.phases.get(name)) for rank in ranks]

    return [
        _Column("RANK", [str(rank.rank) for rank in ranks]),
        _Column("STEP", [_number(rank.step) for rank in ranks], 2),
        _Column("STEP/S", [_number(rank.step_rate, ".2f" if (rank.step_rate or 0) < 100 else ".0f") for rank in ranks]),
        _Column(
            "LOSS",
            [visible(rank.loss) if isinstance(rank.loss, str) else _number(rank.loss, ".4g") for rank in ranks],
            4,
        ),
        _Column("DATA %", phase("data"), 5),
        _Column("FWD %", phase("forward"), 8),
        _Column("BWD %", phase("backward"), 8),
        _Column("COMM %", phase("comm"), 5),
        _Column("OPT %", phase("optimizer"), 9),
        _Column("CPU %", [_number(rank.cpu_percent) for rank in ranks], 2),
        _Column("MEM GiB", [_gib(rank.rss_bytes) for rank in ranks], 3),
        _Column("LOADER", [_loader(rank) for rank in ranks], 6),
        _Column("GPU", [_number(rank.gpu) for rank in ranks], 3),
        _Column("UTIL %", [_number(gpu.utilization_percent) for gpu in gpus], 1),
        _Column("GPU GiB", [_gpu_memory(gpu) for gpu in gpus], 2),
        _Column("W", [_number(gpu.power_w) for gpu in gpus], 7),
        _Column("°C", [_number(gpu.temperature_c) for gpu in gpus], 6),
        _Column("MHz", [_number(gpu.clock_mhz) for gpu in gpus], 9),
    ]


def _fitting(columns: Sequence[_Column], terminal: Terminal) -> list[_Column]:
    """Return the columns that say something, and of those as many as the terminal has room for."""
    shown = [column for column in columns if any(column.texts)]
    while sum(column.width + _GAP for column in shown) - _GAP > terminal.width:
        spared = max(shown, key=lambda column: column.spared)
        if not spared.spared:
            break
        shown.remove(spared)
    return shown


def _number(value: float | None, form: str = ".0f") -> str:
    return "" if value is None else format(value, form)


def _gib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def _gpu_memory(gpu: GpuSample) -> str:
    total = "" if gpu.memory_total_bytes is None else f"/{gpu.memory_total_bytes / _GIB:.0f}"
    return "" if gpu.memory_used_bytes is None else _gib(gpu.memory_used_bytes) + total


def _loader(rank: RankSample) -> str:
    """Return ``4×98 %``: DataLoader workers, and how busy each of them is."""
    if not rank.workers or rank.workers_cpu_percent is None:
        return str(rank.workers or "")
    return f"{rank.workers}×{rank.workers_cpu_percent / rank.workers:.0f} %"


def _note(rank: RankSample, gpu: GpuSample | None, late: int | None) -> str:
    words = ["late"] if rank.rank == late else []
    words += [visible(rank.loss)] if isinstance(rank.loss, str) else []
    words += ["lost"] if gpu is not None and gpu.fault else []
    words += ["slowed"] if gpu is not None and gpu.slowdowns else []
    words += [f"{gpu.others} more on the GPU"] if gpu is not None and gpu.others else []
    words += [_STATES[rank.state]] if rank.state in _STATES else []
    return ", ".join(words)


def top_text(view: TopView) -> str:
    """Return a view as plain text, with an empty line below."""
    out = io.StringIO()
    console_on(out, view.terminal, live=False).print(view, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n\n"
