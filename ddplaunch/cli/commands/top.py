"""``ddplaunch top``: what the ranks of a run use and how fast they step, live."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from json import dumps
from typing import TYPE_CHECKING, Any

from ddplaunch.cli.parsing.typed_words import whole_number
from ddplaunch.cli.streams import say, tell_findings
from ddplaunch.cli.which_run import launched_from_here, live_run, not_here
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.records.find import read_record
from ddplaunch.ui.terminal import Terminal, write
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.watch.live_samples import WatchedHosts, WatchedRun
from ddplaunch.watch.samples import Sample, sample_json
from ddplaunch.watch.step_rate import Steps, metric_pattern
from ddplaunch.watch.stragglers import late_rank
from ddplaunch.watch.top_view import About, Look, frame, sorts_of

if TYPE_CHECKING:
    from ddplaunch.watch.screen import Screen
from ddplaunch.cli.parsing.command import LIVE_RUN, RUN_DIR, Command
from ddplaunch.planning.flag import Flag

COMMAND = Command(
    examples=(
        ("ddplaunch top", "the youngest run of this directory, live"),
        ("ddplaunch top --json", "every sample as a line of JSON"),
    ),
    options=(
        LIVE_RUN,
        Flag("interval", "duration", "", "Time between samples: 1, 5s [1].", "TIME", short="-d"),
        Flag("count", "text", "", "Stop after N samples [when the run ends].", "N", short="-n"),
        Flag(
            "metric",
            "text",
            "",
            r"Regex with a group `step`, `rate` or `loss` [step, iter, tqdm; loss].",
            "PATTERN",
        ),
        Flag("json", "switch", "", "Every sample as a line of JSON."),
        RUN_DIR,
    ),
)

_LEAST_S = 0.2


def top(
    run: str | None,
    interval: float | None,
    count: str | None,
    metric: str | None,
    json: bool | None,
    run_dir: str | None,
) -> int:
    """Watch a run that runs here."""
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
        say(not_here(running, run, run_dir, "top"))
    else:
        _watch(
            WatchedRun(chosen, lambda folder, ranks: Steps(folder, ranks, pattern)), interval or 1.0, most, bool(json)
        )
    return ExitStatus.DONE


def _is_screen() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    except ValueError:  # closed
        return False


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
