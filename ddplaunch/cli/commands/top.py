"""``ddplaunch top``: what the ranks of a run use and how fast they step, live or as recorded."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.cli.streams import answer, tell
from ddplaunch.cli.which_run import live_run, of_hosts
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import RunRecord, find_run, node_directories, read_record, run_directories
from ddplaunch.ui.terminal import Terminal, write
from ddplaunch.values.finding import ExitStatus, Finding, UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import age_text
from ddplaunch.watch.live_samples import WatchedRun
from ddplaunch.watch.plot import metrics_svg
from ddplaunch.watch.recording import NAME, read_metrics, sample_json
from ddplaunch.watch.samples import Sample
from ddplaunch.watch.screen import Screen
from ddplaunch.watch.step_rate import Steps, metric_pattern
from ddplaunch.watch.stragglers import late_rank, stragglers
from ddplaunch.watch.top_view import About, Look, frame, summary_lines

_LEAST_S = 0.2


@dataclass(frozen=True)
class _Wish:
    """The flags, understood. ``count`` None is until the run ends; ``interval_s`` None is the usual."""

    run: str | None
    run_dir: str | None
    interval_s: float | None
    count: int | None
    metric: str | None
    json: bool
    screen: bool


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
    wish = _Wish(
        run=run,
        run_dir=run_dir,
        interval_s=None if interval is None else _long_enough(interval),
        count=None if count is None else _count(count),
        metric=metric,
        json=bool(json),
        screen=not json and _is_screen(),
    )
    if replay or plot is not None:
        _refuse_live_only(wish, plot)
        return _show(wish) if plot is None else _plot(wish, Path(plot))
    return _watch(wish)


def _is_screen() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


def _long_enough(seconds: float) -> float:
    if seconds < _LEAST_S:
        raise usage(
            f"`--interval {seconds:g}` is less than {_LEAST_S:g} s",
            why="the kernel counts CPU time in hundredths of a second: shorter samples would be noise",
            fix=f"`--interval {_LEAST_S:g}`",
            where="flag: --interval",
        )
    return seconds


def _count(text: str) -> int:
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text)
    raise usage(
        f"`--count {text}` is not a number of samples",
        why="it is how many to show before ending",
        fix="`--count 10`",
        where="flag: --count",
    )


def _refuse_live_only(wish: _Wish, plot: str | None) -> None:
    if wish.metric is not None:
        raise usage(
            f"`--metric` and `{'--replay' if plot is None else '--plot'}`",
            why="step rates are read from the output while a run is watched; a recording has what it has",
            fix="leave `--metric` out",
            where="flag: --metric",
        )
    if plot is not None and plot != "-" and not plot.endswith(".svg"):
        raise _no_svg(plot)


def _no_svg(plot: str) -> UsageError:
    stem = plot.rpartition(".")[0] or plot
    return usage(
        f"`--plot {plot}` is not the name of an SVG file",
        why="plots are written as SVG, which every browser shows and scales",
        fix=f"`--plot {stem}.svg`, or `--plot -` for stdout",
        where="flag: --plot",
    )


def _watch(wish: _Wish) -> int:
    """Watch until the run ends, or somebody does not want to see more."""
    pattern = None if wish.metric is None else metric_pattern(wish.metric)
    run = live_run(runs_in(process_table()), wish.run, wish.run_dir, "top", "watches")
    if run is None:
        _tell_none(wish)
        return ExitStatus.DONE
    watched = WatchedRun(run, lambda folder, ranks: Steps(folder, ranks, pattern))
    interval_s = wish.interval_s or 1.0
    watched.look()  # rates begin with the second
    time.sleep(min(interval_s, 0.5))
    with suppress(KeyboardInterrupt):  # the usual way to end it
        if wish.screen:
            _on_screen(watched, interval_s, wish.count)
        else:
            _in_lines(watched, interval_s, wish)
    if watched.ended:
        tell(_last_words(watched))
    return ExitStatus.DONE


def _tell_none(wish: _Wish) -> None:
    """Say that the run does not run here, and what shows it. Raises UsageError for a name that no run has."""
    if (there := of_hosts(wish.run, "top", terminal=True)) is not None:
        tell(there)
    elif wish.run is None:
        tell("no run of yours is running here; `ddplaunch top --replay` shows what was recorded of the last\n")
    else:
        name = find_run(runs_directory(os.environ, wish.run_dir, Path.cwd()), wish.run).name
        tell(f"{name} does not run on this host; `ddplaunch top --replay {name}` shows what was recorded\n")


def _on_screen(watched: WatchedRun, interval_s: float, count: int | None) -> None:
    out, first = sys.stdout, 0
    with Screen(out) as screen:
        next_s, taken = time.monotonic(), 0
        while not watched.ended:
            watched.look()
            taken += 1
            next_s = max(next_s + interval_s, time.monotonic())
            while True:
                first = max(0, min(first, len(watched.run.ranks) - 1))
                _draw(screen, watched, first)
                key = screen.wait(next_s)
                if key == "q":
                    return
                first += {"j": 1, "down": 1, "k": -1, "up": -1}.get(key or "", 0)
                if key is None:
                    break
            if count is not None and taken >= count:
                return


def _draw(screen: Screen, watched: WatchedRun, first: int) -> None:
    look = Look(*_sizes(screen), first_row=first)
    screen.draw(_frame(watched, replace(watched.about(), keys="q quit"), look))


def _sizes(screen: Screen) -> tuple[Terminal, int]:
    """Return the terminal as wide as it is now, and its lines."""
    columns, lines = screen.size()
    return replace(Terminal.of(sys.stdout), width=columns), lines


def _frame(watched: WatchedRun, about: About, look: Look) -> list[str]:
    samples = tuple(watched.samples)
    return frame(samples, about, watched.findings, late_rank(samples, watched.findings), look)


def _in_lines(watched: WatchedRun, interval_s: float, wish: _Wish) -> None:
    """Print a table, or a line of JSON, for each sample, until nobody reads any more."""
    look = Look(Terminal.of(sys.stdout), bars=False)
    next_s, taken = time.monotonic(), 0
    while True:
        sample = watched.look()
        if watched.ended:
            return
        if wish.json:
            text = json.dumps(_value(watched, sample)) + "\n"
        else:
            text = "\n".join(_frame(watched, watched.about(), look)) + "\n\n"
        taken += 1
        if not write(text) or (wish.count is not None and taken >= wish.count):
            return
        next_s = max(next_s + interval_s, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))


def _value(watched: WatchedRun, sample: Sample) -> dict[str, Any]:
    """Return a sample and what is found so far as JSON values."""
    found = [{"code": each.code, "what": each.what, "fix": each.fix, "where": each.where} for each in watched.findings]
    return {
        "schema": 1,
        "run_id": watched.run.run_id,
        **sample_json(sample),
        "late": late_rank(tuple(watched.samples), watched.findings),
        "findings": found,
    }


def _last_words(watched: WatchedRun) -> str:
    run_id = watched.run.run_id
    record = None if watched.directory is None else read_record(watched.directory)
    state = record.outcome.state if record is not None and record.outcome is not None else None
    if state == "failed":
        return f"{run_id} failed; `ddplaunch explain {run_id}` says why\n"
    return f"{run_id} has ended{f': {state}' if state else ''}\n"


_STEP_S = 0.1
_BEHIND = 60  # samples that are judged together, as when a run is watched


def _show(wish: _Wish) -> int:
    """Play the samples on a terminal; elsewhere sum them up, or print them as JSON."""
    record, samples = _recorded(wish)
    if wish.json:
        _lines(record, samples)
    elif wish.screen:
        with suppress(KeyboardInterrupt):
            _play(record, samples[min(samples)], wish.interval_s or _STEP_S, _others(samples))
    else:
        look = Look(Terminal.of(sys.stdout), bars=False)
        answer("\n".join(summary_lines(record.run_id, samples, _findings(samples), look)) + "\n")
    return ExitStatus.DONE


def _plot(wish: _Wish, path: Path) -> int:
    """Write an SVG of the samples."""
    record, samples = _recorded(wish)
    text = metrics_svg(samples, f"{record.run_id}  {record.script}" if record.script else record.run_id)
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


def _recorded(wish: _Wish) -> tuple[RunRecord, Mapping[int, Sequence[Sample]]]:
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
            about = About(
                record.run_id,
                (f"recorded, {age_text(samples[at].at_s - samples[0].at_s)} of {_length(samples)}",),
                notes,
                keys="q quit  space pause  left right step",
            )
            findings = stragglers(now)
            screen.draw(frame(now, about, findings, late_rank(now, findings), Look(*_sizes(screen))))
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
