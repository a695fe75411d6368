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

from ddplaunch.cli.commands.afterwards.explain import explained
from ddplaunch.cli.parsing.command import RECORDED_RUN, RUN_DIR, Command
from ddplaunch.cli.streams import answer, say
from ddplaunch.cli.which_run import which_run, with_what_hosts_have
from ddplaunch.explain.diagnosis import source_around
from ddplaunch.machine.files import open_plain
from ddplaunch.planning.flag import Flag
from ddplaunch.records.directory import note_path, path_text
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.find import RunRecord, last_metrics, numbered, read_record
from ddplaunch.records.log_files import LogFile, blocks, log_files, part_of
from ddplaunch.records.own.output_file import output_file
from ddplaunch.ui.report_curves import also_shown, curves_in
from ddplaunch.values.codec import plain
from ddplaunch.values.escapes import harmless
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.secrets import hide_json, hide_text
from ddplaunch.values.words import duration_text, size_text
from ddplaunch.watch.phases import phases_in, read_phases

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
    more="One file, no network: diagnosis, curves, time axis, environment and the last 10,000 lines.",
)

_MOST_LINES = 10_000  # most lines of logs in one page
_LEAST_OF_A_FILE = 20
_MOST_BYTES = 64 << 20  # searched for curves at the start of each file
_AROUND = 3  # lines of source before and after the failed one
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
    else:
        page.write(text)
        say(f"{directory.name} is described in {path_text(Path(path).absolute())}")
    return ExitStatus.DONE


def report_html(record: RunRecord) -> str:
    """Return the page. Secrets in what was recorded and printed become ``***``; the page loads nothing."""
    from jinja2 import ChainableUndefined, Environment, PackageLoader

    environment = Environment(
        loader=PackageLoader("ddplaunch.ui", "."),
        autoescape=True,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _without_colours(value) if type(value) is str else value,
    )
    environment.filters |= {"duration": duration_text, "size": size_text, "shell": shlex.join}
    environment.filters["moment"] = lambda at_s: time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))
    environment.tests["finite"] = math.isfinite
    files = log_files(record.directory)
    parts = [part_of(file, max(_LEAST_OF_A_FILE, _MOST_LINES // len(files))) for file in files]
    lines = [
        (file.rank, file.attempt, file.stream, shown(line))
        for file, block in blocks(parts)
        for line in block.removesuffix(b"\n").split(b"\n")
    ]
    attempts = [path for _, node in numbered(record.directory, "node") for _, path in numbered(node, "attempt")[-1:]]
    printed = _printed([file for file in files if file.rank == 0])
    explanation = explained(recorded_run(record.directory))
    calls = () if explanation.diagnosis is None else explanation.diagnosis.calls
    return environment.get_template("report.html").render(
        run=record,
        outcome=record.outcome,
        found=hide_json(plain(explanation)),
        source=[harmless(text) for call in calls[-1:] for text in source_around(call, _AROUND)],
        findings=hide_json(list({finding.get("code"): finding for finding in record.findings}.values())),
        phases=sorted((one for attempt in attempts for one in phases_in(attempt)), key=lambda one: one.rank),
        steps=[line for attempt in attempts[:1] for file in read_phases(attempt, [0]).values() for line in file.lines],
        observed=[note_path(attempt, 0).stat().st_mtime for attempt in attempts if note_path(attempt, 0).exists()],
        metrics=last_metrics(record.directory),
        curves=curves_in(printed),
        elsewhere={name: shown(address) for name, address in also_shown(printed).items()},
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


def _printed(files: Sequence[LogFile]) -> list[bytes]:
    """Return the lines that rank 0 printed in its last attempt; only the beginning of a large file is read."""
    lines: list[bytes] = []
    for file in files:
        if file.attempt == files[-1].attempt:
            with suppress(OSError), open(open_plain(file.path), "rb") as log:
                lines += re.findall(rb"(?<![^\r\n])[^\r\n]+[\r\n]", log.read(_MOST_BYTES))
    return lines
