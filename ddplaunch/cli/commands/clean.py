"""``ddplaunch clean``: ends this user's processes whose launcher is gone, and removes old records, after a question."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddplaunch.cli.streams import answer, answer_json, tell, tell_findings
from ddplaunch.hosts.local.end_orphans import Cleaned, leftovers
from ddplaunch.hosts.local.end_orphans import clean as clean_up
from ddplaunch.machine.files import boot_id
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.old_records import OldRecords, old_records, remove_record
from ddplaunch.records.run_states import host_name, recorded_at
from ddplaunch.ui.clean_view import Work, clean_findings, clean_json, done_text, question_text, work_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, usage

_KEEP = 50
_GRACE_S = 5.0
_NOTHING_ENDED = Cleaned((), (), (), (), {})


def clean(
    run: str | None,
    yes: bool | None,
    dry_run: bool | None,
    keep: str | None,
    grace: float | None,
    json: bool | None,
    run_dir: str | None,
) -> int:
    """List orphans and old records, ask, end and remove them, and verify that they are gone."""
    keep_number = _parse_keep(keep)
    work, now_s = look(runs_directory(os.environ, run_dir, Path.cwd()), keep_number, run), time.time()
    if not json:
        answer(work_text(work, now_s, Terminal.of(sys.stdout)))
    if work.nothing or dry_run or not _agreed(work, bool(yes), not json):
        if json:
            answer_json(clean_json(work, None, (), host_name(), now_s))
        return ExitStatus.DONE if work.nothing or dry_run else ExitStatus.FINDINGS
    cleaned = clean_up(work.found, _GRACE_S if grace is None else grace) if work.found.own else _NOTHING_ENDED
    removed, failed = [], []
    for directory in work.records.removable:
        problem = remove_record(directory)
        if problem is None:
            removed.append(directory.name)
        else:
            failed.append(problem)
    if json:
        answer_json(clean_json(work, cleaned, removed, host_name(), now_s))
    tell(done_text(cleaned, work.found, len(removed)))
    findings = clean_findings(cleaned, failed)
    tell_findings(findings)
    return ExitStatus.FINDINGS if findings else ExitStatus.DONE


def look(base: Path, keep: int, run_id: str | None) -> Work:
    """Return everything that could be cleaned; of one run only its processes, if ``run_id`` names it."""
    table = process_table()
    found = leftovers(table, os.geteuid(), run_id)
    if run_id is not None:
        return Work(found, OldRecords((), (), 0), run_id)
    busy = {place for run in runs_in(table) if (place := recorded_at(run)) is not None}
    return Work(found, old_records(base, keep, busy, table, host_name(), boot_id()))


def _agreed(work: Work, yes: bool, listed: bool) -> bool:
    """Return whether to go on: ``--yes``, or a yes on the terminal by somebody who was shown the list."""
    if yes:
        return True
    if not listed or sys.stdin is None or not sys.stdin.isatty():
        tell("nothing was changed: `ddplaunch clean --yes` does it without a question\n")
        return False
    tell(question_text(work))
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    tell("nothing was changed\n")
    return False


def _parse_keep(text: str | None) -> int:
    if text is None:
        return _KEEP
    if text.isascii() and text.isdecimal():
        return int(text)
    raise usage(
        f"`--keep {text}` is not a number of records",
        why="it is how many of the newest records stay, 0 or more",
        fix="`--keep 50`",
        where="flag: --keep",
    )
