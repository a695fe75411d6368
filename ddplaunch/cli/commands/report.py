"""``ddplaunch report``: one page about a run, for somebody who was not there.

It is one HTML file with everything in it, laid out by ``ddplaunch/ui/report.html``.
"""

from __future__ import annotations

import math
import re
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from ddplaunch.cli.commands.explain import explained
from ddplaunch.cli.parsing.command import RECORDED_RUN, RUN_DIR, Command
from ddplaunch.cli.streams import answer, say
from ddplaunch.cli.which_run import which_run, with_what_hosts_have
from ddplaunch.machine.files import open_plain
from ddplaunch.planning.flag import Flag
from ddplaunch.records.directory import path_text
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.find import RunRecord, last_metrics, numbered, read_record
from ddplaunch.records.json_files import objects
from ddplaunch.records.log_files import STEPS, LogFile, blocks, log_files, part_of
from ddplaunch.records.outcome import AttemptOutcome, RankOutcome, RunOutcome
from ddplaunch.records.own.output_file import output_file
from ddplaunch.values.codec import plain
from ddplaunch.values.escapes import harmless
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.secrets import hide_json, hide_text
from ddplaunch.values.words import duration_text, size_text
from ddplaunch.watch.phases import RankPhases, phases_in
from ddplaunch.watch.step_rate import LOSS

COMMAND = Command(
    examples=(
        ("ddplaunch report", "the newest run of this directory, as ddplaunch-RUN.html"),
        ("ddplaunch report --output run.html", "into run.html"),
    ),
    options=(
        RECORDED_RUN,
        Flag("output", "output", "", "Where the page goes, - for stdout [ddplaunch-RUN.html].", "FILE", short="-o"),
        Flag("force", "switch", "", "Replace FILE, also if it is not an earlier report."),
        RUN_DIR,
    ),
    more="One file, no network: diagnosis, timeline, loss, environment and the last 10,000 lines.",
)

_MOST_LINES = 10_000  # most lines of logs in one page
_LEAST_OF_A_FILE = 20
_MOST_BYTES = 64 << 20  # searched for losses at the start of each file
_MOST_POINTS = 600  # of the loss curve
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def report(run: str | None, output: str | None, force: bool | None, run_dir: str | None) -> int:
    """Write the page; without ``output`` into this directory, named after the run."""
    directory = which_run(run, run_dir).record
    path = output or f"ddplaunch-{directory.name}.html"
    page = output_file(path, force=bool(force))
    with with_what_hosts_have(directory) as place:
        try:
            text = report_html(read_record(place))
        except Exception as problem:  # such as a template's, for a text in place of a number
            raise usage(
                f"the record of {directory.name} holds a value of another type: {problem}",
                why="another program or hand wrote it, or a newer ddplaunch",
                fix=f"`ddplaunch logs {directory.name}` and `ddplaunch explain {directory.name}` need less of it",
            ) from problem
    if page is None:
        answer(text)
        return ExitStatus.DONE
    page.write(text)
    say(f"{directory.name} is described in {path_text(Path(path).absolute())}")
    return ExitStatus.DONE


def report_html(record: RunRecord) -> str:
    """Return the page. Secrets in what was recorded and printed become ``***``; the page loads nothing."""
    from jinja2 import ChainableUndefined, Environment, PackageLoader

    loader = PackageLoader("ddplaunch.ui", ".")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _without_colours(value) if type(value) is str else value,
    )
    environment.filters |= {"duration": duration_text, "size": size_text, "moment": _moment, "shell": shlex.join}
    environment.tests["finite"] = math.isfinite
    files = log_files(record.directory)
    parts = [part_of(file, max(_LEAST_OF_A_FILE, _MOST_LINES // len(files))) for file in files]
    lines = [
        (file.rank, file.attempt, file.stream, shown(line))
        for file, block in blocks(parts)
        for line in block.removesuffix(b"\n").split(b"\n")
    ]
    losses = _losses(files)
    during = () if record.outcome is None else record.outcome.findings
    findings = [*objects(record.value("findings")), *objects(hide_json(plain(during)))]
    return environment.get_template("report.html").render(
        run=record,
        outcome=record.outcome,
        state=record.outcome.state if record.outcome is not None else "not ended, as far as the record tells",
        found=hide_json(plain(explained(recorded_run(record.directory)))),
        findings={finding.get("code"): finding for finding in findings}.values(),
        bars=_bars(record.outcome),
        phases=_phases(record),
        metrics=last_metrics(record.directory),
        losses=losses,
        points=_thinned(losses),
        lines=lines[-_MOST_LINES:],
        left_out=len(lines) > _MOST_LINES or any(part.start > 0 or part.cut_bytes for part in parts),
        ranks=sorted({rank for rank, *_ in lines[-_MOST_LINES:]}),
    )


def shown(line: bytes) -> str:
    """Return a line as the page shows it: the last state of a progress bar, without colours and secrets."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return hide_text(_without_colours(text))


def _without_colours(text: str) -> str:
    return _COLOUR.sub("", harmless(text))


def _moment(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def _phases(record: RunRecord) -> list[RankPhases]:
    """Return the phases of each rank's steps in the last attempt, from where step times have settled."""
    phases = [
        phases
        for _, folder in numbered(record.directory, "node")
        for _, attempt in numbered(folder, "attempt")[-1:]
        for phases in phases_in(attempt)
    ]
    return sorted(phases, key=lambda phases: phases.rank)


def _losses(files: Sequence[LogFile]) -> list[tuple[float, str]]:
    """Return the losses that rank 0 printed in its last attempt, in order, each with the step in its line, or "".

    Only the beginning of a large file is searched.
    """
    losses: list[tuple[float, str]] = []
    printed = [file for file in files if file.rank == 0]
    for file in printed:
        with suppress(OSError), open(open_plain(file.path), "rb") as log:
            for line in re.findall(
                rb"[^\r\n]+[\r\n]", log.read(_MOST_BYTES if file.attempt == printed[-1].attempt else 0)
            ):
                if (loss := LOSS.search(line)) is not None:
                    match = next((match for pattern in STEPS if (match := pattern.search(line))), None)
                    step = "" if match is None else match["step" if "step" in match.re.groupindex else 1].decode()
                    losses.append((float(loss["loss"]), step))
    return losses


def _thinned(losses: Sequence[tuple[float, str]]) -> list[float]:
    """Return few enough points of the loss curve: means of as many losses each, not finite if one of them is not."""
    size = -(-len(losses) // _MOST_POINTS) or 1
    return [mean(loss for loss, _ in losses[at : at + size]) for at in range(0, len(losses), size)]


class Bar(NamedTuple):
    """One rank of one attempt on the time axis; times are seconds since the epoch."""

    attempt: AttemptOutcome
    rank: RankOutcome
    begun_s: float
    ended_s: float


def _bars(outcome: RunOutcome | None) -> list[Bar]:
    return [
        Bar(attempt, rank, rank.started_s or attempt.started_s, rank.ended_s or attempt.ended_s)
        for attempt in (outcome.attempts if outcome is not None else ())
        for rank in attempt.ranks
    ]
