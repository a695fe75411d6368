"""``ddplaunch top``: what the ranks of a run use and how fast they step, live or as recorded."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddplaunch.cli.flags import whole_number
from ddplaunch.cli.streams import answer, say, tell_findings
from ddplaunch.cli.which_run import launched_from_here, live_run, not_here
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import RunRecord, find_run, numbered, read_record, run_directories
from ddplaunch.records.own.own_files import write_named
from ddplaunch.ui.terminal import Terminal, write
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.words import age_text
from ddplaunch.watch.live_samples import WatchedHosts, WatchedRun
from ddplaunch.watch.plot import metrics_svg
from ddplaunch.watch.recording import NAME, read_metrics, sample_json
from ddplaunch.watch.samples import Sample
from ddplaunch.watch.step_rate import Steps, metric_pattern
from ddplaunch.watch.stragglers import late_rank, stragglers
from ddplaunch.watch.top_view import About, Look, frame, sorts_of, summary_lines

if TYPE_CHECKING:
    from ddplaunch.watch.screen import Screen

_LEAST_S = 0.2


def top(
    run: str | None,
    interval: float | None,
    count: str | None,
    metric: str | None,
    replay: bool | None,
    plot: str | None,
    json: bool | None,
    run_dir: str | None,
) -> int:
    """Watch a run that runs here; with ``replay`` or ``plot`` show what was recorded of one."""
    if interval is not None and interval < _LEAST_S:
        raise usage(
            f"`--interval {interval:g}` is less than {_LEAST_S:g} s",
            why="the kernel counts CPU time in hundredths of a second: shorter samples would be noise",
            fix=f"`--interval {_LEAST_S:g}`",
            where="flag: --interval",
        )
    most = None
    if count is not None:
        why = "it is how many to show before ending"
        most = whole_number("--count", count, "samples", why, "`--count 10`", least=1)
    if replay or plot is not None:
        _refuse_live_only(metric, plot)
        record, samples = _recorded(run, run_dir)
        if plot is not None:
            _plot(record, samples, plot)
        else:
            _replay(record, samples, bool(json), interval)
        return ExitStatus.DONE
    pattern = None if metric is None else metric_pattern(metric)
    running = runs_in(process_table())
    if (launched := launched_from_here(running, run, run_dir)) is not None:
        every_s = interval or 1.0
        with EachHost(launched, "samples", metric=metric, interval_s=every_s) as hosts:
            tell_findings(hosts.problems)
            _watch(WatchedHosts(launched, hosts, every_s), every_s, most, bool(json))
        return ExitStatus.DONE
    chosen = live_run(running, run, run_dir, "top", "watches")
    if chosen is None:
        recorded = _with_metrics(runs_directory(os.environ, run_dir, Path.cwd()), run)
        say(not_here(running, run, run_dir, "top", recorded))
    else:
        _watch(
            WatchedRun(chosen, lambda folder, ranks: Steps(folder, ranks, pattern)), interval or 1.0, most, bool(json)
        )
    return ExitStatus.DONE


def _is_screen() -> bool:
    if sys.platform == "win32":
        return False
    try:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


def _refuse_live_only(metric: str | None, plot: str | None) -> None:
    if metric is not None:
        raise usage(
            f"`--metric` and `{'--replay' if plot is None else '--plot'}`",
            why="step rates are read from the output while a run is watched; a recording has what it has",
            fix="leave `--metric` out",
            where="flag: --metric",
        )
    if plot not in (None, "-") and not plot.endswith(".svg"):
        raise usage(
            f"`--plot {plot}` is not the name of an SVG file",
            why="plots are written as SVG, which every browser shows and scales",
            fix=f"`--plot {plot.rpartition('.')[0] or plot}.svg`, or `--plot -` for stdout",
            where="flag: --plot",
        )


def _watch(watched: WatchedRun | WatchedHosts, interval_s: float, most: int | None, json: bool) -> None:
    """Watch until the run ends, or somebody does not want to see more; ``most`` samples at most."""
    watched.look()  # rates begin with the second
    time.sleep(min(interval_s, 0.5))
    on_screen = not json and _is_screen()
    left = True  # by whoever watches
    with suppress(KeyboardInterrupt):  # the usual way to end it
        if on_screen:
            left = _on_screen(watched, interval_s, most)
        else:
            _in_lines(watched, interval_s, most, json)
    if on_screen and (watched.ended or not left):  # the screen is gone with all that it showed
        about = watched.about()
        about = replace(about, words=("at the end", *about.words[1:])) if watched.ended else about
        write("\n".join(_frame(watched, about, Look(Terminal.of(sys.stdout), bars=False))) + "\n\n")
    if watched.ended:
        say(_last_words(watched))


def _on_screen(watched: WatchedRun | WatchedHosts, interval_s: float, most: int | None) -> bool:
    """Draw until the run ends, ``most`` times at most, or until somebody leaves; return whether somebody did."""
    from ddplaunch.watch.screen import Screen  # which Windows has no terminals for

    first, sort = 0, "rank"
    with Screen(sys.stdout) as screen:
        next_s, taken = time.monotonic(), 0
        while not watched.ended:
            watched.look()
            taken += 1
            next_s = max(next_s + interval_s, time.monotonic())
            while True:
                first = max(0, min(first, len(watched.samples[-1].ranks) - 1))
                look = replace(_look(screen), first_row=first, sort=sort)
                keys = f"q quit  s sorted by {sort}  j k space b scroll"
                screen.draw(_frame(watched, replace(watched.about(), keys=keys), look))
                key = screen.wait(next_s)
                if key == "q":
                    return True
                first += _scrolled(key, look.height or 0)
                sort = _next_sort(watched, sort) if key == "s" else sort
                if key is None:
                    break
            if taken == most:
                break
    return False


def _scrolled(key: str | None, height: int) -> int:
    """Return by how many rows a key scrolls."""
    page, all_rows = max(1, height // 2), 1 << 20
    found = {"j": 1, "down": 1, "k": -1, "up": -1, " ": page, "page down": page, "b": -page, "page up": -page}
    return {**found, "home": -all_rows, "end": all_rows}.get(key or "", 0)


def _next_sort(watched: WatchedRun | WatchedHosts, sort: str) -> str:
    known = sorts_of(watched.samples[-1])
    return known[(known.index(sort) + 1) % len(known)] if sort in known else "rank"


def _look(screen: Screen) -> Look:
    """Return how to draw on the terminal as wide and high as it is now."""
    columns, lines = screen.size()
    return Look(replace(Terminal.of(sys.stdout), width=columns), lines)


def _frame(watched: WatchedRun | WatchedHosts, about: About, look: Look) -> list[str]:
    samples = tuple(watched.samples)
    return frame(samples, about, watched.findings, late_rank(samples, watched.findings), look)


def _in_lines(watched: WatchedRun | WatchedHosts, interval_s: float, most: int | None, json: bool) -> None:
    """Print a table, or a line of JSON, for each sample, until nobody reads any more."""
    look = Look(Terminal.of(sys.stdout), bars=False)
    next_s, taken = time.monotonic(), 0
    while True:
        sample = watched.look()
        if watched.ended:
            return
        text = dumps(_value(watched, sample)) if json else "\n".join(_frame(watched, watched.about(), look)) + "\n"
        taken += 1
        if not write(text + "\n") or taken == most:
            return
        next_s = max(next_s + interval_s, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))


def _value(watched: WatchedRun | WatchedHosts, sample: Sample) -> dict[str, Any]:
    """Return a sample and what is found so far as JSON values."""
    found = [{"code": each.code, "what": each.what, "fix": each.fix, "where": each.where} for each in watched.findings]
    return {
        "schema": 1,
        "run_id": watched.run_id,
        **sample_json(sample),
        "late": late_rank(tuple(watched.samples), watched.findings),
        "findings": found,
    }


def _last_words(watched: WatchedRun | WatchedHosts) -> str:
    run_id = watched.run_id
    record = None if watched.directory is None else read_record(watched.directory)
    state = record.outcome.state if record is not None and record.outcome is not None else None
    if state == "failed":
        return f"{run_id} failed; `ddplaunch explain {run_id}` says why"
    return f"{run_id} has ended{f': {state}' if state else ''}"


_STEP_S = 0.1
_BEHIND = 60  # samples that are judged together, as when a run is watched


def _replay(record: RunRecord, samples: Mapping[int, Sequence[Sample]], json: bool, interval_s: float | None) -> None:
    """Play the samples on a terminal; elsewhere sum them up, or print them as JSON."""
    if json:
        every = [(node, sample) for node in sorted(samples) for sample in samples[node]]
        for node, sample in every:
            value = {"schema": 1, "run_id": record.run_id, "node": node, **sample_json(sample)}
            if not write(dumps(value) + "\n"):
                return
    elif _is_screen():
        with suppress(KeyboardInterrupt):
            more = "`--replay --json`, `--plot` and `--replay | cat` have all of them"
            notes = (f"node {min(samples)} of {len(samples)}: {more}",) if len(samples) > 1 else ()
            _play(record, samples[min(samples)], interval_s or _STEP_S, notes)
    else:
        findings = tuple(finding for node in sorted(samples) for finding in stragglers(samples[node]))
        lines = summary_lines(record.run_id, samples, findings, Terminal.of(sys.stdout))
        answer("\n".join(lines) + "\n")


def _plot(record: RunRecord, samples: Mapping[int, Sequence[Sample]], path: str) -> None:
    """Write an SVG of the samples."""
    text = metrics_svg(samples, f"{record.run_id}  {record.script}" if record.script else record.run_id)
    if path == "-":
        answer(text)
        return
    try:
        write_named(path, text)
    except OSError as error:
        raise usage(
            f"`{path}` cannot be written: {error.strerror}",
            why="the plot was to go there",
            fix="name a file in a directory that exists and is yours",
            where="flag: --plot",
        ) from error
    say(f"{sum(map(len, samples.values()))} samples of {record.run_id} drawn in {path}")


def _recorded(run: str | None, run_dir: str | None) -> tuple[RunRecord, Mapping[int, Sequence[Sample]]]:
    """Return the run and its samples by node; without a name, the newest that has some. Raises UsageError for none."""
    base = runs_directory(os.environ, run_dir, Path.cwd())
    directory = _with_metrics(base, run)
    samples = {} if directory is None else read_metrics(directory)
    if directory is None or not samples:
        raise usage(
            f"no run in `{base}` has recorded metrics" if run is None else f"{find_run(base, run).name} has no metrics",
            why="only runs started with `--record-metrics` have them, if they last long enough for a sample"
            if directory is None
            else f"there is no sample in its `{NAME}` that this version of ddplaunch can read",
            fix="start the next run with `ddplaunch run --record-metrics …`; `ddplaunch top` watches one that runs",
            code="no-metrics-recorded",
        )
    return read_record(directory), samples


def _with_metrics(base: Path, run: str | None) -> Path | None:
    """Return the directory of the run, or of the newest, that has metrics. Raises UsageError for no such run."""
    named = run_directories(base) if run is None else [find_run(base, run)]
    return next((each for each in named if any(_size(folder / NAME) for _, folder in numbered(each, "node"))), None)


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _play(record: RunRecord, samples: Sequence[Sample], step_s: float, notes: tuple[str, ...]) -> None:
    """Show one sample after the other, until q; a space pauses, the arrows step."""
    from ddplaunch.watch.screen import Screen

    at, playing = 0, True
    length = age_text(samples[-1].at_s - samples[0].at_s)
    with Screen(sys.stdout) as screen:
        while True:
            now = samples[max(0, at + 1 - _BEHIND) : at + 1]
            about = About(
                record.run_id,
                (f"recorded, {age_text(samples[at].at_s - samples[0].at_s)} of {length}",),
                notes,
                keys="q quit  space pause  left right step",
            )
            findings = stragglers(now)
            screen.draw(frame(now, about, findings, late_rank(now, findings), _look(screen)))
            playing = playing and at + 1 < len(samples)
            key = screen.wait(time.monotonic() + (step_s if playing else 3600.0))
            if key == "q":
                return
            playing = playing if key in (None, "resize") else key == " " and not playing
            step = {"left": -1, "right": 1}.get(key or "", 1 if key is None and playing else 0)
            at = max(0, min(len(samples) - 1, at + step))
