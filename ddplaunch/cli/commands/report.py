"""``ddplaunch report``: one page about a run, for somebody who was not there.

It is one HTML file with everything in it, laid out by ``ddplaunch/ui/report.html``.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from ddplaunch.cli.commands.explain import explained
from ddplaunch.cli.parsing.command import FORCE, RUN_DIR, Command
from ddplaunch.cli.streams import answer, say
from ddplaunch.cli.which_run import which_run, with_what_hosts_have
from ddplaunch.explain.diagnosis import Explanation
from ddplaunch.machine.files import open_plain
from ddplaunch.planning.flag import Flag
from ddplaunch.records.directory import path_text
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.find import RunRecord, last_metrics, numbered, read_record
from ddplaunch.records.log_files import STEPS, LogFile, LogPart, blocks, log_files, part_of
from ddplaunch.records.outcome import RankOutcome, RunOutcome
from ddplaunch.records.own.output_file import REPORT_PAGE, output_file
from ddplaunch.values.codec import plain
from ddplaunch.values.escapes import harmless
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.secrets import hide_json, hide_text
from ddplaunch.values.words import duration_text, size_text
from ddplaunch.watch.phases import read_phases, settled, summed
from ddplaunch.watch.step_rate import LOSS

COMMAND = Command(
    examples=(
        ("ddplaunch report", "the newest run of this directory, as ddplaunch-RUN.html"),
        ("ddplaunch report --output run.html", "into run.html"),
    ),
    options=(
        Flag("run", "argument", "", "Id of the run, or a part of it [the newest].", "RUN"),
        Flag("output", "output", "", "Where the page goes, - for stdout [ddplaunch-RUN.html].", "FILE", short="-o"),
        FORCE._replace(panel=""),
        RUN_DIR,
    ),
    more="One file, no network: diagnosis, timeline, loss, environment and the last 10,000 lines.",
)

_MOST_LINES = 10_000  # of logs in one page
_LEAST_OF_A_FILE = 20
_MOST_BYTES = 64 << 20  # of a file in which losses are looked for
_MOST_POINTS, _WIDTH, _HEIGHT = 600, 900, 160  # of the curve of losses
_MOST_ROWS = 64  # ranks of the timeline
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_LEAST_WIDTH = 0.4  # percent; a rank that ended at once is still seen
_HOST = (
    ("kernel", ("host", "kernel")),
    ("container", ("host", "container")),
    ("usable CPUs", ("cpu", "usable")),
    ("GPU driver", ("nvml", "driver_version")),
    ("CUDA of torch", ("torch", "cuda")),
    ("interpreter", ("python", "executable")),
)


class LogLine(NamedTuple):
    """One line that a rank printed, ``stream`` "out" or "err"."""

    rank: int
    attempt: int
    stream: str
    text: bytes


class PrintedLoss(NamedTuple):
    """A loss as rank 0 printed it, and the step in the same line, "" where that names none."""

    loss: float
    step: str


class PhasesRow(NamedTuple):
    """Where a rank's steps went: the median step in seconds, shares of the time by phase, and what is known beside."""

    rank: int
    step_s: float
    shares: Mapping[str, float]
    samples_per_s: float | None
    peak_bytes: int | None


@dataclass(frozen=True)
class Report:
    """What the page tells; ``left_out`` says whether the record has more lines than ``lines``."""

    record: RunRecord
    explanation: Explanation
    phases: Sequence[PhasesRow]
    metrics: Mapping[str, float]
    losses: Sequence[PrintedLoss]
    lines: Sequence[LogLine]
    left_out: bool


def report(run: str | None, output: str | None, force: bool | None, run_dir: str | None) -> int:
    """Write the page; without ``output`` into this directory, by the name of the run."""
    directory = which_run(run, run_dir).record
    path = output or f"ddplaunch-{directory.name}.html"
    page = output_file(path, REPORT_PAGE, "--output", force=bool(force))
    with with_what_hosts_have(directory) as place:
        record = read_record(place)
        text = report_html(_report(record))
    if page is None:
        answer(text)
        return ExitStatus.DONE
    page.write(text)
    say(f"{record.run_id} is described in {path_text(Path(path).absolute())}")
    return ExitStatus.DONE


def _report(record: RunRecord) -> Report:
    files = log_files(record.directory)
    each = max(_LEAST_OF_A_FILE, _MOST_LINES // max(1, len(files)))
    parts = [part_of(file, each) for file in files][-(_MOST_LINES // each) :]
    lines = _lines(parts)
    return Report(
        record=record,
        explanation=explained(recorded_run(record.directory)),
        phases=_phases(record),
        metrics=last_metrics(record.directory),
        losses=_losses(files),
        lines=lines,
        left_out=len(parts) < len(files) or any(part.start > 0 or part.cut_bytes for part in parts),
    )


def _phases(record: RunRecord) -> list[PhasesRow]:
    """Return what the steps of the last attempt took, once they had settled."""
    found: list[PhasesRow] = []
    for _, folder in numbered(record.directory, "node"):
        for _, attempt in numbered(folder, "attempt")[-1:]:
            for rank, file in read_phases(attempt).items():
                phases = summed(rank, file.facts, file.lines[settled(file.lines) or 0 :])
                if phases is not None:
                    shares = {name: share for name, share in phases.shares.items() if share is not None}
                    found.append(PhasesRow(rank, phases.step_s, shares, phases.samples_per_s, phases.peak_bytes))
    return sorted(found, key=lambda each: each.rank)


def _losses(files: Sequence[LogFile]) -> list[PrintedLoss]:
    """Return the losses that rank 0 printed in its last attempt, in order; of a larger file those of its begin."""
    own = [file for file in files if file.rank == 0]
    found: list[PrintedLoss] = []
    for file in own:
        if file.attempt != own[-1].attempt:
            continue
        with suppress(OSError), open(open_plain(file.path), "rb") as log:
            for line in re.findall(rb"[^\r\n]+[\r\n]", log.read(_MOST_BYTES)):
                if (loss := LOSS.search(line)) is not None:
                    match = next((match for pattern in STEPS if (match := pattern.search(line))), None)
                    step = "" if match is None else match["step" if "step" in match.re.groupindex else 1].decode()
                    found.append(PrintedLoss(float(loss["loss"]), step))
    return found


def _curve(losses: Sequence[PrintedLoss]) -> dict[str, Any] | None:
    """Return the losses as points of lines, broken where one is not finite, and what stands at the axes."""
    each = -(-len(losses) // _MOST_POINTS)
    thinned = [mean(one.loss for one in losses[at : at + each]) for at in range(0, len(losses), each or 1)]
    finite = [loss for loss in thinned if math.isfinite(loss)]
    if len(finite) < 2:
        return None
    low, high = min(finite), max(finite)
    parts: list[list[str]] = [[]]
    for number, loss in enumerate(thinned):
        if math.isfinite(loss):
            x, y = _WIDTH * number / (len(thinned) - 1), _HEIGHT * (high - loss) / (high - low or 1.0)
            parts[-1].append(f"{x:.1f},{y:.1f}")
        elif parts[-1]:
            parts.append([])
    return {
        "lines": [" ".join(part) for part in parts if part],
        "width": _WIDTH,
        "height": _HEIGHT,
        "low": low,
        "high": high,
        "first": losses[0],
        "last": losses[-1],
        "count": len(losses),
    }


def _lines(parts: Sequence[LogPart]) -> list[LogLine]:
    found: list[LogLine] = []
    begun: dict[Path, bytes] = {}
    for file, data in blocks(parts):
        *whole, begun[file.path] = (begun.get(file.path, b"") + data).split(b"\n")
        found += [LogLine(file.rank, file.attempt, file.stream, line) for line in whole]
    by_path = {part.file.path: part.file for part in parts}
    for path, rest in begun.items():
        if rest:
            found.append(LogLine(by_path[path].rank, by_path[path].attempt, by_path[path].stream, rest))
    return found[-_MOST_LINES:]


def report_html(report: Report) -> str:
    """Return the page. Secrets in what was recorded and printed are ``***``; nothing is fetched when it is opened."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    record, outcome = report.record, report.record.outcome
    environment = Environment(
        loader=PackageLoader("ddplaunch.ui", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration_text, "size": size_text, "moment": _moment}
    return environment.get_template("report.html").render(
        report=report,
        run=record,
        outcome=outcome,
        state=outcome.state if outcome is not None else "not ended, as far as the record tells",
        found=hide_json(plain(report.explanation)),
        command=_command(record),
        numbers=_numbers(record),
        variables=_variables(record),
        versions=_texts(record.value("versions")),
        host=_host(record),
        findings=_findings(record, outcome),
        timeline=_timeline(outcome),
        curve=_curve(report.losses),
        lines=[(each.rank, each.attempt, each.stream, shown(each.text)) for each in report.lines],
        ranks=sorted({each.rank for each in report.lines}),
    )


def shown(line: bytes) -> str:
    """Return a line as the page shows it: the last state of a bar, without colours and secrets."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return hide_text(_COLOUR.sub("", harmless(text)))


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def _command(record: RunRecord) -> dict[str, str]:
    """Return what was typed, where, and what became of it."""
    typed, became = record.value("argv"), record.value("torchrun_argv")
    words = ["ddplaunch", *map(str, typed[1:])] if isinstance(typed, list) else []
    found = {
        "typed": shlex.join(words),
        "torchrun": shlex.join(map(str, became)) if isinstance(became, list) else "",
        "directory": record.value("cwd"),
        "commit": record.value("git_commit"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _numbers(record: RunRecord) -> list[tuple[str, str, str]]:
    """Return name, value and source of each number of the plan."""
    numbers = record.value("plan", "numbers")
    found = []
    for name, item in numbers.items() if isinstance(numbers, dict) else ():
        if isinstance(item, dict) and "value" in item:
            source = item.get("source") or {}
            words = (str(source.get("kind") or ""), str(source.get("detail") or ""))
            found.append((name.replace("_", " "), str(item["value"]), " ".join(filter(None, words))))
    return found


def _variables(record: RunRecord) -> list[tuple[str, str, str]]:
    found = record.value("plan", "environment")
    each = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return [(str(item.get("name")), str(item.get("value")), str(item.get("reason") or "")) for item in each]


def _texts(value: Any) -> dict[str, str]:
    return {str(name): str(each) for name, each in value.items() if each} if isinstance(value, dict) else {}


def _host(record: RunRecord) -> dict[str, str]:
    found = {name: record.value("host", *path) for name, path in _HOST}
    for name, path in (("memory", ("memory", "total_bytes")), ("/dev/shm", ("shm", "size_bytes"))):
        size = record.value("host", *path)
        found[name] = size_text(size) if isinstance(size, int) else None
    return {name: str(value) for name, value in found.items() if value}


def _findings(record: RunRecord, outcome: RunOutcome | None) -> list[dict[str, Any]]:
    """Return the findings of before the start and of the run itself, each once."""
    before = record.value("findings")
    found = [each for each in before if isinstance(each, dict)] if isinstance(before, list) else []
    during = [] if outcome is None else [hide_json(plain(each)) for each in outcome.findings]
    every = [*found, *(each for each in during if isinstance(each, dict))]
    return list({each.get("code", ""): each for each in every}.values())


def _timeline(outcome: RunOutcome | None) -> dict[str, Any]:
    """Return rows of bars, a row for each rank: start and width in percent of the whole run, and how each ended."""
    if outcome is None or not outcome.attempts:
        return {"rows": [], "left_out": 0, "span_s": 0.0}
    ranks = [rank for attempt in outcome.attempts for rank in attempt.ranks]  # one may outlast its attempt
    attempts = outcome.attempts
    began = min(*(each.started_s for each in attempts), *(each.started_s or math.inf for each in ranks), math.inf)
    ended_s = max(outcome.ended_s, *(each.ended_s for each in attempts), *(each.ended_s or 0.0 for each in ranks))
    span = ended_s - began or 1.0
    rows: dict[int, list[dict[str, Any]]] = {}
    hosts: dict[int, str] = {}
    for attempt in outcome.attempts:
        for rank in attempt.ranks:
            start, end = rank.started_s or attempt.started_s, rank.ended_s or attempt.ended_s
            width = max(_LEAST_WIDTH, 100 * max(0.0, end - start) / span)
            bar = {
                "left": round(min(100 * max(0.0, start - began) / span, 100 - width), 3),
                "width": round(width, 3),
                "how": _how(rank, attempt.failed),
                "kind": _kind(rank),
                "text": f"attempt {attempt.attempt}, {duration_text(end - start)}",
            }
            rows.setdefault(rank.rank, []).append(bar)
            hosts[rank.rank] = rank.host
    # those that ended badly come first where not all can be shown
    order = sorted(rows, key=lambda each: (all(bar["kind"] == "good" for bar in rows[each]), each))[:_MOST_ROWS]
    shown_rows = [(each, hosts[each], rows[each]) for each in sorted(order)]
    return {"rows": shown_rows, "left_out": len(rows) - len(shown_rows), "span_s": span}


def _kind(rank: RankOutcome) -> str:
    """Return "good", "failed" or, of a rank that was ended because another failed, "ended"."""
    if not (rank.signal or rank.exit_code):
        return "good"
    return "ended" if rank.ended_by == "launcher" else "failed"


def _how(rank: RankOutcome, failed: bool) -> str:
    if rank.signal:
        return rank.signal
    if rank.exit_code is None:
        return "ended unseen" if failed else "ended"
    return f"exit {rank.exit_code}"
