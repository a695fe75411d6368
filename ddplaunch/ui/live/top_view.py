"""What `top` shows of the newest sample: the lines of one screen, or plain text."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ddplaunch.machine.sample import GpuSample, RankSample, Sample
from ddplaunch.ui.speech import findings_text
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Emphasis, Terminal
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import count, size_text

_GIB = 1 << 30
_LEAST_ROWS = 3
_STATES = {"D": "waits for disk", "T": "stopped"}  # proc_pid_stat(5)
_LOST = frozenset(["lost", "nan", "inf", "-inf"])
#: Columns that a narrow terminal leaves out, the first one first.
_SPARED = ("LOADER", "°C", "DATA %", "COMM %", "LOSS", "MEM GiB", "GPU", "STEP", "CPU %", "GPU GiB", "UTIL %")


@dataclass(frozen=True)
class TopView:
    """The newest sample with facts about the run.

    ``words`` are parts of the first line, ``notes`` lines below the table, ``late`` is the rank for which others wait,
    None where there is none.
    """

    sample: Sample
    words: Sequence[str]
    notes: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    late: int | None = None
    terminal: Terminal = Terminal()


def top_text(view: TopView) -> str:
    """Return a view as plain text, followed by an empty line."""
    return "\n".join([*top_lines(view, view.terminal), "", ""])


def top_lines(view: TopView, terminal: Terminal, height: int | None = None) -> list[str]:
    """Return the lines of a view. In ``height`` lines the table is cut before the findings, down to three ranks."""
    clock = time.strftime("%H:%M:%S", time.localtime(view.sample.at_s))
    head = terminal.lines(", ".join(filter(None, (*view.words, clock))))
    above = [*(terminal.paint(line, "bold") for line in head), *terminal.lines(_host_text(view.sample)), ""]
    below = [line for note in view.notes for line in terminal.lines(note)]
    below += findings_text(view.findings, terminal).splitlines()
    room = None if height is None else max(_LEAST_ROWS, height - len(above) - len(below) - 2)  # titles, an empty line
    return [*above, *_rank_lines(view, terminal, room), *([""] if below else []), *below]


def _host_text(sample: Sample) -> str:
    host, words = sample.host, []
    if host.cpu_percent is not None:
        words.append(f"{host.cpus} CPUs {host.cpu_percent:.0f} %")
    if host.memory_total_bytes is not None and host.memory_available_bytes is not None:
        used = host.memory_total_bytes - host.memory_available_bytes
        words.append(f"memory {size_text(used)} of {size_text(host.memory_total_bytes)}")
    return ", ".join(words)


def _rank_lines(view: TopView, terminal: Terminal, room: int | None) -> list[str]:
    """Return the table in at most ``room`` rows; if ranks have to be left out, those with a note stay."""
    ranks = [(rank, view.sample.gpu_of(rank) or GpuSample(-1)) for rank in view.sample.ranks]
    rows = [(_cells(rank, gpu), _notes(rank, gpu, view.late)) for rank, gpu in ranks]
    if not rows:
        return ["no rank runs"]
    left_out = 0 if room is None or len(rows) <= room else len(rows) - room + 1
    if left_out:
        needed = sorted(rows, key=lambda row: not row[1])[:-left_out]
        rows = [row for row in rows if row in needed]
    emphasis: dict[int, Emphasis] = {
        number: "error" if _LOST & {*words} else "warning" for number, (_, words) in enumerate(rows) if words
    }
    texts = [{**cells, "": ", ".join(words)} for cells, words in rows]
    lines = table(texts, terminal, rows[0][0], spared=_SPARED, emphasis=emphasis)
    return [*lines, f"{count(left_out, 'more rank')}: `--json` has all"] if left_out else lines


def _cells(rank: RankSample, gpu: GpuSample) -> dict[str, str]:
    """Return the texts of a rank and its GPU by column, empty where unknown."""
    total = "" if gpu.memory_total_bytes is None else f"/{gpu.memory_total_bytes / _GIB:.0f}"
    busy = "" if rank.workers_cpu_percent is None else f"×{rank.workers_cpu_percent / (rank.workers or 1):.0f} %"
    return {
        "RANK": str(rank.rank),
        "STEP": _number(rank.step),
        "STEP/S": _number(rank.step_rate, ".2f" if (rank.step_rate or 0) < 100 else ".0f"),
        "LOSS": rank.loss if isinstance(rank.loss, str) else _number(rank.loss, ".4g"),
        "DATA %": _number(rank.phases.get("data")),
        "COMM %": _number(rank.phases.get("comm")),
        "CPU %": _number(rank.cpu_percent),
        "MEM GiB": _gib(rank.rss_bytes),
        "LOADER": f"{rank.workers}{busy}" if rank.workers else "",
        "GPU": _number(rank.gpu),
        "UTIL %": _number(gpu.utilization_percent),
        "GPU GiB": "" if gpu.memory_used_bytes is None else _gib(gpu.memory_used_bytes) + total,
        "°C": _number(gpu.temperature_c),
    }


def _number(value: float | None, form: str = ".0f") -> str:
    return "" if value is None else format(value, form)


def _gib(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def _notes(rank: RankSample, gpu: GpuSample, late_rank: int | None) -> list[str]:
    words = ["late"] if rank.rank == late_rank else []
    words += [rank.loss] if isinstance(rank.loss, str) else []
    words += ["lost"] if gpu.fault else []
    words += ["slowed"] if gpu.slowdowns else []
    words += [f"{gpu.others} more on the GPU"] if gpu.others else []
    return [*words, _STATES[rank.state]] if rank.state in _STATES else words
