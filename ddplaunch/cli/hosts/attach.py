"""``ddplaunch attach``: shows a run again until its end, and is its launcher where the hosts go on without one."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddplaunch.cli.commands.explain import explain
from ddplaunch.cli.commands.logs import logs
from ddplaunch.cli.hosts.run_on_hosts import stay
from ddplaunch.cli.streams import say, tell, tell_findings
from ddplaunch.cli.which_run import bring
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.session.frames import SILENCE_S
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.records.directory import path_text, runs_directory
from ddplaunch.records.find import find_run, read_record
from ddplaunch.records.launchers import Launched, launched_by_me, launcher_of, read_launched
from ddplaunch.records.outcome import RunOutcome
from ddplaunch.records.own.own_files import LOCK_ALONE, closing, try_lock
from ddplaunch.ui.outcome_view import outcome_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, error
from ddplaunch.values.words import host_name, listed

_PATIENCE_S = SILENCE_S + 5.0  # a host notices so late that a launcher is silent
_ANSWER_S = 30.0
_ENDS_S, _LOOK_S = 10.0, 0.05  # its outcome is written after its last line


def attach(run: str | None, run_dir: str | None) -> int:
    """Show what a run prints until its end, and how it ended; return its exit status, 1 where it has none.

    Where its hosts wait for a launcher, this is it from then on, and Ctrl-C ends the run; elsewhere it goes on.
    Of two at once the second one shows alone. Raises UsageError where there is no such run.
    """
    directory = find_run(runs_directory(os.environ, run_dir, Path.cwd()), run)
    launched = read_launched(directory)
    if (outcome := read_record(directory).outcome) is not None:
        return _show_end(directory, outcome)
    if launched is None or launcher_of(launched, process_table(), boot_id(), host_name()) is not None:
        return _follow(directory, run_dir)
    with _alone(directory) as alone:
        return _take_over(directory, launched, run_dir) if alone else _follow(directory, run_dir)


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Hold the run for one that becomes its launcher; False where another one is about to."""
    try:
        held = os.open(directory, os.O_RDONLY)
    except OSError:
        yield True
        return
    with closing(held):
        yield try_lock(held, LOCK_ALONE)


def _take_over(directory: Path, launched: Launched, run_dir: str | None) -> int:
    """Be the launcher of a run whose own is gone, or say how it ended without one."""
    name = directory.name
    with EachHost(launched, "attach", _PATIENCE_S + _ANSWER_S, patience_s=_PATIENCE_S) as hosts:
        why = {node: str(each["why"]) for node, each in hosts.answers.items()}
        if all(why.get(place.node) == "gone" for place in launched.places):
            return _ended_alone(directory, launched, run_dir)
        if problems := (
            *hosts.problems,
            *_refused(launched, why),
        ):
            tell_findings(problems)
            return ExitStatus.FINDINGS
        links, sessions = hosts.sessions
        mine = launched_by_me(
            directory,
            launched.run_id,
            launched.places,
            launched.grace_s,
            launched.launch,
            launched.marker,
            begun_s=launched.begun_s,
            orphan_s=launched.orphan_s,
        )
        say(f"attached to {name} on {listed([place.host for place in mine.places], 4)}; Ctrl-C ends the run")
        return stay(mine, links, sessions, None, chosen=False)


def _follow(directory: Path, run_dir: str | None) -> int:
    """Follow a run that needs nobody, and say how it ended."""
    say(f"{directory.name} needs no terminal: what it prints follows, and Ctrl-C leaves it running")
    logs(directory.name, None, True, None, None, None, run_dir)
    until_s = time.monotonic() + _ENDS_S
    while (outcome := read_record(directory).outcome) is None and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if outcome is None:
        say(f"how {directory.name} ended was not recorded: `ddplaunch explain {directory.name}`")
        return ExitStatus.FINDINGS
    return _show_end(directory, outcome)


def _show_end(directory: Path, outcome: RunOutcome) -> int:
    number = outcome.exit_status - 128 if outcome.state == "terminated" else 0
    known = number if number in {each.value for each in signal.Signals} else None
    tell(outcome_text(outcome, path_text(directory), Terminal.of(sys.stderr), signal=known))
    return outcome.exit_status


def _ended_alone(directory: Path, launched: Launched, run_dir: str | None) -> int:
    """Bring the records of a run that its hosts ended without a launcher, and say how it ended."""
    bring(launched, directory)
    outcomes = read_record(directory).outcomes
    if not outcomes:
        tell_findings(_refused(launched, {place.node: "gone" for place in launched.places}))
        return ExitStatus.FINDINGS
    explain([directory.name], run_dir=run_dir)
    return next((each.exit_status for each in outcomes.values() if each.exit_status), ExitStatus.DONE)


def _refused(launched: Launched, why: dict[int, str]) -> tuple[Finding, ...]:
    """Return what is wrong with hosts that let no launcher in."""
    held = [place.host for place in launched.places if why.get(place.node) == "held"]
    gone = [place.host for place in launched.places if why.get(place.node) == "gone"]
    found: tuple[Finding, ...] = ()
    if held:
        found += (
            error(
                "launcher-lives",
                f"{listed(held)} still {'hears' if len(held) == 1 else 'hear'} a launcher of `{launched.run_id}`",
                why="a run has one launcher; it was started or attached on another machine, or in another container",
                fix=f"`ddplaunch logs {launched.run_id} --follow` shows what the run prints",
                where=tuple(held),
            ),
        )
    if gone:
        found += (
            error(
                "run-not-waiting",
                f"nothing of `{launched.run_id}` waits for a launcher on {listed(gone)}",
                why="hosts end what they run when their launcher is gone for longer than `--orphan-grace`, which is 0 "
                "without `--detach`",
                fix=f"`ddplaunch explain {launched.run_id}` says what became of it, `ddplaunch stop {launched.run_id}` "
                "ends what is left",
                where=tuple(gone),
            ),
        )
    return found
