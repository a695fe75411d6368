"""Shows and draws what ``run --record-metrics`` wrote; refuses to look at processes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ddplaunch.checks.stragglers import late_rank, stragglers
from ddplaunch.cli.say import answer, tell
from ddplaunch.cli.top import Wish
from ddplaunch.errors import ExitStatus, usage
from ddplaunch.finding import Finding
from ddplaunch.probes.samples import Sample
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import RunRecord, find_run, node_directories, read_record, run_directories
from ddplaunch.records.metrics import NAME, read_metrics, sample_json
from ddplaunch.ui.ages import age_text
from ddplaunch.ui.metrics_plot import metrics_svg
from ddplaunch.ui.screen import Screen
from ddplaunch.ui.streams import styled, unicode_ok, width, write
from ddplaunch.ui.top_columns import Look
from ddplaunch.ui.top_summary import summary_lines
from ddplaunch.ui.top_view import About, frame

_STEP_S = 0.1
_BEHIND = 60  # samples that are judged together, as when a run is watched


def show(wish: Wish) -> int:
    """Play the samples on a terminal; elsewhere sum them up, or print them as JSON."""
    record, samples = _recorded(wish)
    if wish.json:
        _lines(record, samples)
    elif wish.screen:
        with suppress(KeyboardInterrupt):
            _play(record, samples[min(samples)], wish.interval_s or _STEP_S, _others(samples))
    else:
        out = sys.stdout
        look = Look(width(out), None, styled(out), unicode_ok(out), bars=False)
        answer("\n".join(summary_lines(record.run_id, samples, _findings(samples), look)) + "\n")
    return ExitStatus.DONE


def draw(wish: Wish, path: Path) -> int:
    """Write an SVG of the samples."""
    record, samples = _recorded(wish)
    script = record.value("plan", "target", "name")
    text = metrics_svg(samples, f"{record.run_id}  {script}" if isinstance(script, str) else record.run_id)
    if str(path) == "-":
        answer(text)
        return ExitStatus.DONE
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise usage(
            f"`{path}` cannot be written: {error.strerror}",
            why="the plot was to go there",
            fix="name a file in a directory that exists and is yours",
            where="flag: --plot",
        ) from error
    tell(f"{sum(map(len, samples.values()))} samples of {record.run_id} drawn in {path}\n")
    return ExitStatus.DONE


def _recorded(wish: Wish) -> tuple[RunRecord, Mapping[int, Sequence[Sample]]]:
    """Return the run and its samples by node; without a name, the newest that has some. Raises UsageError for none."""
    base = runs_directory(os.environ, wish.run_dir, Path.cwd())
    if wish.run is None:
        directory = next((each for each in run_directories(base) if _has_metrics(each)), None)
    else:
        directory = find_run(base, wish.run)
    samples = {} if directory is None else read_metrics(directory)
    if directory is None or not samples:
        which = "no run" if directory is None else directory.name
        raise usage(
            f"{which} in `{base}` has recorded metrics" if directory is None else f"{which} has no recorded metrics",
            why="they are recorded where a run is asked to, and not by ddplaunch versions newer than this one",
            fix="`ddplaunch run --record-metrics … -- SCRIPT`; `ddplaunch top` shows a run that runs now",
            code="no-metrics-recorded",
        )
    return read_record(directory), samples


def _has_metrics(directory: Path) -> bool:
    return any((folder / NAME).is_file() for _, folder in node_directories(directory))


def _findings(samples: Mapping[int, Sequence[Sample]]) -> tuple[Finding, ...]:
    return tuple(finding for node in sorted(samples) for finding in stragglers(samples[node]))


def _lines(record: RunRecord, samples: Mapping[int, Sequence[Sample]]) -> None:
    for node in sorted(samples):
        for sample in samples[node]:
            value = {"schema": 1, "run_id": record.run_id, "node": node, **sample_json(sample)}
            if not write(json.dumps(value) + "\n"):
                return


def _play(record: RunRecord, samples: Sequence[Sample], step_s: float, notes: tuple[str, ...]) -> None:
    """Show one sample after the other, until q; a space pauses, the arrows step."""
    at, playing = 0, True
    with Screen(sys.stdout) as screen:
        while True:
            now = samples[max(0, at + 1 - _BEHIND) : at + 1]
            columns, lines = screen.size()
            look = Look(columns, lines, styled(sys.stdout), unicode_ok(sys.stdout))
            about = About(
                record.run_id,
                (f"recorded, {age_text(samples[at].at_s - samples[0].at_s)} of {_length(samples)}",),
                notes,
                keys="q quit  space pause  left right step",
            )
            findings = stragglers(now)
            screen.draw(frame(now, about, findings, late_rank(now, findings), look))
            playing = playing and at + 1 < len(samples)
            key = screen.wait(time.monotonic() + (step_s if playing else 3600.0))
            if key == "q":
                return
            playing = playing if key in (None, "resize") else key == " " and not playing
            step = {"left": -1, "right": 1}.get(key or "", 1 if key is None and playing else 0)
            at = max(0, min(len(samples) - 1, at + step))


def _others(samples: Mapping[int, Sequence[Sample]]) -> tuple[str, ...]:
    first, *more = sorted(samples)
    if not more:
        return ()
    return (f"node {first} of {len(samples)}: `--replay --json`, `--plot` and `--replay | cat` have all of them",)


def _length(samples: Sequence[Sample]) -> str:
    return age_text(samples[-1].at_s - samples[0].at_s)
