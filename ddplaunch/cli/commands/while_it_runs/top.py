"""``ddplaunch top``: what the ranks of a run use and how fast they step, live."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from json import dumps
from typing import Any

from ddplaunch.cli.parsing.command import LIVE_RUN, RUN_DIR, Command
from ddplaunch.cli.streams import say, tell_findings
from ddplaunch.cli.which_run import running_run
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.planning.flag import Flag
from ddplaunch.records.run_states import RunSummary, summary
from ddplaunch.ui.live.top_view import TopView, top_text
from ddplaunch.ui.ps_view import number_of_ranks
from ddplaunch.ui.terminal import Terminal, write
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import age_text, host_name, listed
from ddplaunch.watch.live_samples import Watched, samples_here, samples_of_hosts
from ddplaunch.watch.stragglers import late_rank

COMMAND = Command(
    examples=(
        ("ddplaunch top", "the newest run here, live"),
        ("ddplaunch top --json", "every sample as a line of JSON"),
    ),
    options=(
        LIVE_RUN,
        Flag("interval", "duration", "", "Time between samples: 1, 5s [1].", "TIME", short="-d"),
        Flag("count", "integer", "", "Stop after N samples [when the run ends].", "N", short="-n"),
        Flag("json", "switch", "", "Every sample as a line of JSON."),
        RUN_DIR,
    ),
)

_LEAST_S = 0.2  # seconds; the kernel counts CPU time in hundredths


def top(run: str | None, interval: float | None, count: int | None, json: bool | None, run_dir: str | None) -> int:
    """Watch a run that runs here."""
    most = None if count is None else max(1, count)
    interval_s = max(_LEAST_S, interval or 1.0)
    chosen = running_run(run, run_dir)
    if chosen is None or chosen.processes is None:
        return ExitStatus.DONE
    described = summary(chosen.directory, chosen.processes, host_name())
    if chosen.launched is not None:
        with EachHost(chosen.launched, "top", "--json", "--interval", f"{interval_s:g}") as hosts:
            tell_findings(hosts.problems)
            silent = (place.host for place in chosen.launched.places if place.node not in hosts.nodes)
            header = _About(described, tuple(f"{host}: no samples" for host in silent))
            _watch(Watched(samples_of_hosts(hosts, interval_s)), header, interval_s, most, bool(json))
        return ExitStatus.DONE
    elsewhere = [host for host in described.hosts if host != host_name()]
    notes = (f"ranks on {listed(elsewhere)} are not shown: run `ddplaunch top` there",) if elsewhere else ()
    header = _About(described, notes)
    _watch(Watched(samples_here(chosen.processes)), header, interval_s, most, bool(json))
    return ExitStatus.DONE


@dataclass(frozen=True)
class _About:
    """The watched run, and lines below the table."""

    run: RunSummary
    notes: tuple[str, ...]

    def words(self, ended: bool) -> tuple[str, ...]:
        """Return the parts of the first line."""
        age = f"running {age_text(time.time() - self.run.started_s)}" if self.run.started_s else "running"
        ranks, batch = number_of_ranks(self.run), self.run.effective_batch
        script = (self.run.script or "").rpartition("/")[2]
        described = (script, f"{ranks} ranks" if ranks else "", f"batch {batch}" if batch else "")
        return (self.run.run_id, "at the end" if ended else age, *described)


def _watch(watched: Watched, header: _About, interval_s: float, most: int | None, json: bool) -> None:
    """Watch until the run ends, the user leaves, or ``most`` samples were shown."""
    watched.look()  # rates need a second sample
    time.sleep(min(interval_s, 0.5))
    is_screen = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    on_screen = not json and is_screen
    left_by_user = True
    due_times = _sampled(watched, interval_s, most)
    with suppress(KeyboardInterrupt):  # the usual way to leave
        if on_screen:
            left_by_user = _on_screen(watched, header, due_times)
        else:
            for due_s in due_times:
                if not write(dumps(_value(watched, header)) + "\n" if json else top_text(_view(watched, header))):
                    break  # the reader of stdout is gone
                time.sleep(max(0.0, due_s - time.monotonic()))
    if on_screen and (watched.ended or not left_by_user):  # leaving the screen cleared what it showed
        write(top_text(_view(watched, header)))
    if watched.ended:
        say(f"{header.run.run_id} has ended; `ddplaunch explain {header.run.run_id}` says how")


def _sampled(watched: Watched, interval_s: float, most: int | None) -> Iterator[float]:
    """Take samples, ``most`` at most, until the run ends; yield for each the time until which to show it."""
    next_s, sample_count = time.monotonic(), 0
    while sample_count != most:
        watched.look()
        if watched.ended:
            return
        sample_count += 1
        next_s = next_s if sample_count == most else max(next_s + interval_s, time.monotonic())
        yield next_s


def _on_screen(watched: Watched, header: _About, due_times: Iterator[float]) -> bool:
    """Draw until the last sample, or until the user leaves; return whether the user left."""
    from ddplaunch.ui.live.live_screen import LiveScreen  # only here, because it imports rich

    with LiveScreen(Terminal.of(sys.stdout)) as screen:
        for due_s in due_times:
            screen.show(_view(watched, header, "q quits"))
            if screen.wait(due_s):
                return True
    return False


def _view(watched: Watched, header: _About, keys: str = "") -> TopView:
    sample = watched.samples[-1]
    notes = header.notes
    if not sample.ranks:
        notes += ("no rank has started yet, or may be seen",)
    if sample.no_gpus and header.run.device == "cuda":
        notes += (f"no GPUs: {sample.no_gpus}",)
    words = (*header.words(watched.ended), *watched.curve(), keys)
    return TopView(sample, words, notes, watched.findings, late_rank(watched.findings), Terminal.of(sys.stdout))


def _value(watched: Watched, header: _About) -> dict[str, Any]:
    """Return the newest sample and the findings so far as JSON values."""
    return {
        "schema": 2,
        "run_id": header.run.run_id,
        **plain(watched.samples[-1]),
        "late": late_rank(watched.findings),
        "findings": [
            {"code": finding.code, "what": finding.what, "fix": finding.fix, "where": finding.where}
            for finding in watched.findings
        ],
    }
