"""``ddplaunch ps``: lists running and recent runs of this machine."""

from __future__ import annotations

import sys
import time

from ddplaunch.cli.parsing.command import RUN_DIR, Command
from ddplaunch.cli.streams import answer, answer_json
from ddplaunch.machine.files import owner_name
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.planning.flag import Flag
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.run_states import summaries
from ddplaunch.ui.ps_view import ps_json, ps_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.words import host_name, own_id

COMMAND = Command(
    examples=(
        ("ddplaunch ps", "what runs, and what ended last in this directory"),
        ("ddplaunch ps --all --json", "every recorded run, with all details"),
    ),
    options=(
        Flag("all", "switch", "", "All recorded runs, not only the newest.", short="-a"),
        Flag("json", "switch", "", "All details of the runs, as JSON."),
        RUN_DIR,
    ),
)

_RECENT = 10


def ps(all: bool | None, json: bool | None, run_dir: str | None) -> int:
    """List running runs, of every user whose processes may be read, and recently ended ones in the run directory."""
    base, host, now_s = runs_directory(run_dir), host_name(), time.time()
    runs, more = summaries(base, process_table(), host, None if all else _RECENT)
    if not all:  # the table of `fit` or `scale` has shown how trials ended
        shown = tuple(run for run in runs if not run.trial or run.state in ("running", "orphaned"))
        runs, more = shown, more + len(runs) - len(shown)
    if json:
        answer_json(ps_json(runs, more, host, now_s))
        return ExitStatus.DONE
    answer(ps_text(runs, more, now_s, owner_name(own_id()), Terminal.of(sys.stdout), base.resolve()))
    return ExitStatus.DONE
