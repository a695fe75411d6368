"""Watches a run that runs on this host, on a screen, as plain tables or as lines of JSON; refuses to disturb it."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from ddplaunch.checks.stragglers import late_rank
from ddplaunch.cli.live_run import live_run
from ddplaunch.cli.of_hosts import of_hosts
from ddplaunch.cli.say import tell
from ddplaunch.cli.top import Wish
from ddplaunch.cli.top_watched import Watched
from ddplaunch.errors import ExitStatus
from ddplaunch.probes.process_table import process_table
from ddplaunch.probes.run_processes import runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import find_run, read_record
from ddplaunch.records.metrics import sample_json
from ddplaunch.records.step_rate import Steps, metric_pattern
from ddplaunch.ui.screen import Screen
from ddplaunch.ui.streams import styled, unicode_ok, width, write
from ddplaunch.ui.top_columns import Look
from ddplaunch.ui.top_view import About, frame


def watch(wish: Wish) -> int:
    """Watch until the run ends, or somebody does not want to see more."""
    pattern = None if wish.metric is None else metric_pattern(wish.metric)
    run = live_run(runs_in(process_table()), wish.run, wish.run_dir, "top", "watches")
    if run is None:
        _tell_none(wish)
        return ExitStatus.DONE
    watched = Watched(run, lambda folder, ranks: Steps(folder, ranks, pattern))
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


def _tell_none(wish: Wish) -> None:
    """Say that the run does not run here, and what shows it. Raises UsageError for a name that no run has."""
    if (there := of_hosts(wish.run, "top", terminal=True)) is not None:
        tell(there)
    elif wish.run is None:
        tell("no run of yours is running here; `ddplaunch top --replay` shows what was recorded of the last\n")
    else:
        name = find_run(runs_directory(os.environ, wish.run_dir, Path.cwd()), wish.run).name
        tell(f"{name} does not run on this host; `ddplaunch top --replay {name}` shows what was recorded\n")


def _on_screen(watched: Watched, interval_s: float, count: int | None) -> None:
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


def _draw(screen: Screen, watched: Watched, first: int) -> None:
    columns, lines = screen.size()
    look = Look(columns, lines, styled(sys.stdout), unicode_ok(sys.stdout), first_row=first)
    about = watched.about()
    samples = tuple(watched.samples)
    keys = "q quit"
    screen.draw(
        frame(
            samples,
            About(about.run_id, about.words, about.notes, keys),
            watched.findings,
            late_rank(samples, watched.findings),
            look,
        )
    )


def _in_lines(watched: Watched, interval_s: float, wish: Wish) -> None:
    """Print a table, or a line of JSON, for each sample, until nobody reads any more."""
    out = sys.stdout
    look = Look(width(out), None, styled(out), unicode_ok(out), bars=False)
    next_s, taken = time.monotonic(), 0
    while True:
        sample = watched.look()
        if watched.ended:
            return
        samples = tuple(watched.samples)
        if wish.json:
            found = [
                {"code": each.code, "what": each.what, "fix": each.fix, "where": each.where}
                for each in watched.findings
            ]
            value = {
                "schema": 1,
                "run_id": watched.run.run_id,
                **sample_json(sample),
                "late": late_rank(samples, watched.findings),
            }
            text = json.dumps({**value, "findings": found}) + "\n"
        else:
            text = (
                "\n".join(frame(samples, watched.about(), watched.findings, late_rank(samples, watched.findings), look))
                + "\n\n"
            )
        taken += 1
        if not write(text) or (wish.count is not None and taken >= wish.count):
            return
        next_s = max(next_s + interval_s, time.monotonic())
        time.sleep(max(0.0, next_s - time.monotonic()))


def _last_words(watched: Watched) -> str:
    run_id = watched.run.run_id
    record = None if watched.directory is None else read_record(watched.directory)
    state = record.ended("state", str) if record is not None else None
    if state == "failed":
        return f"{run_id} failed; `ddplaunch explain {run_id}` says why\n"
    return f"{run_id} has ended{f': {state}' if state else ''}\n"
