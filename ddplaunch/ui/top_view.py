"""Samples of a run as one screen of text, or one plain table; refuses to take them and to draw on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ddplaunch.finding import Finding
from ddplaunch.frozen import dataclass
from ddplaunch.probes.samples import HostSample, Sample
from ddplaunch.ui.ages import size_text
from ddplaunch.ui.sparkline import sparkline
from ddplaunch.ui.style import ascii_only, cells, paint, visible
from ddplaunch.ui.top_columns import BARS, Look, columns_of
from ddplaunch.ui.wrapping import wrap

_GAP = "  "
_MIB = 1 << 20


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
    head = [paint(_clipped(_first_line(samples, about, look), look), "bold", look.styled)]
    rows: list[str] = []
    if samples:
        head += _packed(_host_words(samples, look), look)
        rows = _table(samples, late, look)
    tail = [line for note in about.notes for line in wrap(_spelled(visible(note), look), look.width, "", "  ")]
    for finding in findings:
        tail += _finding(finding, look)
    return _fitted(head, rows, tail, about.keys, look)


def _fitted(head: list[str], rows: list[str], tail: list[str], keys: str, look: Look) -> list[str]:
    """Put the parts together: where they are too long, the table is cut before the findings, down to three ranks."""
    foot = [paint(_clipped(keys, look), "dim", look.styled)] if keys else []
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
    space = look.width - cells(text) - cells(clock)
    return f"{text}{' ' * space}{clock}" if clock and space >= 2 else text


def _host_words(samples: Sequence[Sample], look: Look) -> list[str]:
    host = samples[-1].host
    words = []
    if host.cpu_percent is not None:
        bars = sparkline([each.host.cpu_percent for each in samples], BARS, 100, look.unicode) if look.bars else ""
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
        if lines and cells(lines[-1]) + len(_GAP) + cells(word) <= look.width:
            lines[-1] += _GAP + word
        else:
            lines.append(_clipped(word, look))
    return lines


def _table(samples: Sequence[Sample], late: int | None, look: Look) -> list[str]:
    last = samples[-1]
    if not last.ranks:
        return ["no rank runs"]
    columns = [column for column in columns_of(samples, late, look) if any(column.texts)]
    while len(columns) > 2 and sum(column.cells + 2 for column in columns) - 2 > look.width:
        most = max(columns, key=lambda column: column.spared)
        if not most.spared:
            break
        columns.remove(most)
    lines = [_GAP.join(column.cell(column.name) for column in columns).rstrip()]
    lines[0] = paint(_clipped(lines[0], look), "dim", look.styled)
    for row, rank in enumerate(last.ranks):
        text = _clipped(_GAP.join(column.cell(column.texts[row]) for column in columns).rstrip(), look)
        lines.append(paint(text, "warning", look.styled and rank.rank == late))
    return lines


def _finding(finding: Finding, look: Look) -> list[str]:
    whole = look.height is None  # a screen does not wrap: what is too long for it ends in a sign that it goes on
    lines = wrap(_spelled(f"{finding.code}: {visible(finding.what)}", look), look.width, "! ", "  ")
    return [
        *(paint(line if whole else _clipped(line, look), "warning", look.styled) for line in lines),
        *(
            line if whole else _clipped(line, look)
            for line in wrap(_spelled(finding.fix, look), look.width, "  fix: ", "    ")
        ),
    ]


def _clipped(text: str, look: Look) -> str:
    text = _spelled(text, look)
    if cells(text) <= look.width:
        return text
    while text and cells(text) > look.width - 1:
        text = text[:-1]
    return text + ("…" if look.unicode else ">")


def _spelled(text: str, look: Look) -> str:
    """Return ``text`` in signs that the terminal has, ahead of counting its cells."""
    return ascii_only(text, look.unicode).replace("°" if not look.unicode else "\0", "")
