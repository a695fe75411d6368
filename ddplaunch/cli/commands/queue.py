"""``ddplaunch queue``: launches wait for their turn on this machine, and start when there is room."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ddplaunch.cli.configuration import with_configuration, working_directory
from ddplaunch.cli.flags import own_values, parse_quickly, said_on_command_line
from ddplaunch.cli.prepare import errors, prepare
from ddplaunch.cli.streams import answer, answer_json, asked, read_told, say, tell_findings, tell_lines
from ddplaunch.cli.target import parse_target, required
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import read_record
from ddplaunch.records.own.own_files import open_to_write
from ddplaunch.records.own.queue_jobs import (
    QueuedJob,
    changing,
    log_path,
    queue_folder,
    read_jobs,
    refusing,
    remove_job,
    runner_of,
    running_queue,
    write_job,
)
from ddplaunch.ui.ps_view import job_line, queue_json, queue_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error, usage
from ddplaunch.values.variable_names import own_command

_NOT_FREE = "gpus-not-free"
_ACTIONS = ("add", "ls", "run", "rm", "again", "stop")
_LOOK_S = 0.3
_RETRY_S = 5.0  # between two tries to get GPUs
_GRACE_S = 60.0  # that launches get to end their ranks
_RUNNER_S = 10.0


def queue(
    action: str | None,
    jobs: list[str],
    slots: int | None,
    detach: bool | None,
    json: bool | None,
    run_dir: str | None,
) -> int:
    """Show the queue, or do with it what ``action`` says; ``add`` is in a function of its own."""
    base = runs_directory(os.environ, run_dir, Path.cwd())
    word = action or "ls"
    if word not in _ACTIONS:
        raise usage(
            f"`queue {word}` is not known",
            why=f"it is one of {', '.join(_ACTIONS)}",
            fix="`ddplaunch queue add 2 -- train.py`, then `ddplaunch queue run`",
        )
    if word in ("rm", "again"):
        return _change(base, word, jobs)
    if jobs:
        raise usage(f"`queue {word}` takes no numbers", why="it means the whole queue", fix=f"`ddplaunch queue {word}`")
    if word == "run":
        if slots is not None and slots < 1:
            raise usage(f"`--slots {slots}`", why="so many launches run at the same time", fix="`--slots 2`")
        return _run_detached(base, slots) if detach else _run(base, slots)
    if word == "stop":
        return _stop(base)
    if json:
        answer_json(queue_json(read_jobs(base), runner_of(base)))
    else:
        answer(queue_text(read_jobs(base), runner_of(base), time.time(), Terminal.of(sys.stdout)))
    return ExitStatus.DONE


def add(words: Sequence[str], script: list[str] | None) -> int:
    """Check a launch as ``run`` would and put it at the end of the queue; that GPUs are busy now is no objection."""
    values = parse_quickly("run", list(words))
    if values is None:
        from ddplaunch.cli.typer_app import parse

        values = parse(["run", *words], script)
    own = own_values("run", values)
    if flag := next((name for name, value in own.items() if value not in (None, []) and name != "profile"), None):
        raise usage(
            f"`--{flag.replace('_', '-')}` cannot wait in a queue",
            why="what waits there is launched on this machine, later and without this terminal",
            fix="leave it out",
        )
    options = with_configuration(said_on_command_line(values), own["profile"], working_directory())
    target = parse_target(required(script))
    waits: tuple[Finding, ...] = ()
    try:
        prepared = prepare(options, target)
        tell_findings(prepared.findings)
        if refusing := errors(prepared.findings):
            say(f"nothing was queued: {refusing[0].code}")
            return ExitStatus.REFUSED
        base = prepared.base
    except RefusedError as refused:
        if any(finding.code != _NOT_FREE for finding in refused.findings):
            raise
        waits = refused.findings
        base = runs_directory(os.environ, None if options.run_dir is None else options.run_dir.value, Path.cwd())
    with changing(base) as jobs:
        number = max((job.number for job in jobs), default=0) + 1
        job = QueuedJob(number, tuple(words), tuple(script or ()), str(Path.cwd()), round(time.time(), 3))
        write_job(base, job)
    ahead = sum(each.state in ("waiting", "starting", "running") for each in jobs)
    lines = [f"queued as {number}, behind {ahead}" if ahead else f"queued as {number}"]
    lines += [f"it will wait: {finding.what}" for finding in waits]
    if runner_of(base) is None:
        lines.append("nobody works the queue off: `ddplaunch queue run`, or `ddplaunch queue run --detach`")
    tell_lines("\n".join(lines))
    answer(f"{number}\n")
    return ExitStatus.DONE


def _change(base: Path, word: str, numbers: Sequence[str]) -> int:
    """Remove jobs that do not run, or put ended ones back in line. Raises UsageError with nothing changed."""
    with changing(base) as jobs:
        known = {str(job.number): job for job in jobs}
        chosen = [known[number] for number in numbers if number in known]
        if not numbers or len(chosen) != len(numbers):
            unknown = next((number for number in numbers if number not in known), None)
            what = f"`queue {word}` wants numbers" if unknown is None else f"there is no job `{unknown}`"
            raise usage(what, why="each job has a number", fix="`ddplaunch queue ls` lists them")
        alive = runner_of(base) is not None
        for job in chosen:
            if job.state in ("starting", "running") and alive:
                raise usage(
                    f"job {job.number} is running",
                    why=f"`queue {word}` is for jobs that wait or have ended",
                    fix=f"`ddplaunch stop {job.run_id}` ends it" if job.run_id else "`ddplaunch queue stop`",
                )
        for job in chosen:
            if word == "rm":
                remove_job(base, job.number)
            elif job.state != "waiting":
                write_job(base, QueuedJob(job.number, job.words, job.script, job.cwd, job.added_s))
    return ExitStatus.DONE


def _run(base: Path, slots: int | None) -> int:
    """Work the queue off; a second one is refused."""
    with running_queue(base) as alone:
        if not alone:
            pid = runner_of(base)
            raise RefusedError(
                error(
                    "queue-is-run",
                    f"pid {pid} works this queue off already",
                    why="two of them would start the same launch",
                    fix="`ddplaunch queue ls` shows it; `ddplaunch queue stop` ends it and what it runs",
                )
            )
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        return _Runner(base, slots).work()


def _run_detached(base: Path, slots: int | None) -> int:
    """Have a process of its own session work the queue off, which no terminal takes along when it closes."""
    if (pid := runner_of(base)) is not None:
        say(f"pid {pid} works the queue off already")
        return ExitStatus.DONE
    words = ["queue", "run", "--run-dir", str(base), *([] if slots is None else ["--slots", str(slots)])]
    with refusing(base):
        log = open_to_write(queue_folder(base) / "runner.log", os.O_WRONLY | os.O_APPEND)
    try:
        child = subprocess.Popen(
            own_command(sys.executable, "ddplaunch", *words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(log)
    until_s = time.monotonic() + _RUNNER_S
    while child.poll() is None and runner_of(base) != child.pid and time.monotonic() < until_s:
        time.sleep(_LOOK_S / 4)
    if child.returncode:
        say(f"nobody works it off: that ended with exit status {child.returncode}; `ddplaunch queue run` says why")
        return child.returncode
    say(f"pid {child.pid} works the queue off, also without this terminal; `ddplaunch queue ls` shows it")
    return ExitStatus.DONE


def _stop(base: Path) -> int:
    """End whoever works the queue off, and the launches that it has started; what waits goes on waiting."""
    pid = runner_of(base)
    if pid is None:
        say("nobody works the queue off")
        return ExitStatus.DONE
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until_s = time.monotonic() + _GRACE_S + _RUNNER_S
    while runner_of(base) == pid and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if runner_of(base) == pid:
        say(f"pid {pid} has not ended its launches yet")
        return ExitStatus.FINDINGS
    say("the queue stands still, and nothing of it runs")
    return ExitStatus.DONE


class _Started(NamedTuple):
    """A launch that runs: its process, which tells ``told`` what becomes of it."""

    job: QueuedJob
    process: subprocess.Popen[bytes]
    told: Path


class _Runner:
    """Works a queue off: the first that waits is started when there is room, and nothing overtakes it."""

    def __init__(self, base: Path, slots: int | None) -> None:
        self._base, self._slots = base, slots
        self._running: list[_Started] = []
        self._next_try_s = 0.0
        self._failed = False

    def work(self) -> int:
        """Return 0 if every launch that it started ended well, 1 if not, 130 after an interrupt."""
        self._tidy_up()
        try:
            while self._begin_next() or self._running or self._waiting():
                if self._reap():
                    self._next_try_s = 0.0
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            self._interrupt()
            return ExitStatus.INTERRUPTED
        return ExitStatus.FINDINGS if self._failed else ExitStatus.DONE

    def _tidy_up(self) -> None:
        """Say of what an earlier runner left as running how it ended: a launch ends with its runner."""
        with changing(self._base) as jobs:
            for job in jobs:
                if job.state == "starting":
                    write_job(self._base, replace(job, state="waiting", started_s=None))
                if job.state == "running":
                    now_s = round(time.time(), 3)
                    write_job(self._base, replace(job, state="interrupted", ended_s=now_s, why="its runner was killed"))

    def _waiting(self) -> QueuedJob | None:
        return next((job for job in read_jobs(self._base) if job.state == "waiting"), None)

    def _has_room_for(self, job: QueuedJob) -> bool:
        by_gpus = job.wants_free_gpus and all(each.job.wants_free_gpus for each in self._running)
        if self._slots is None and by_gpus:
            return True
        return len(self._running) < (self._slots or 1)

    def _begin_next(self) -> bool:
        """Start the first that waits if there is room for it; return whether the next may be tried at once."""
        job = self._waiting()
        if job is None or not self._has_room_for(job) or time.monotonic() < self._next_try_s:
            return False
        with changing(self._base) as jobs:
            if job not in jobs:
                return True  # it was removed or changed meanwhile
            job = replace(job, state="starting", started_s=round(time.time(), 3))
            write_job(self._base, job)
        told = queue_folder(self._base) / f"{job.number:06}.told"
        os.close(open_to_write(told, os.O_WRONLY | os.O_TRUNC))
        started = _Started(job, self._start(job, told), told)
        self._running.append(started)
        if started.process.poll() is not None:
            return True
        while (report := read_told(told)).run_id is None and started.process.poll() is None:
            time.sleep(_LOOK_S / 4)
        if report.run_id is None:
            return True  # it ended, and is reaped next
        job = replace(job, state="running", run_id=report.run_id, why="")
        write_job(self._base, job)
        self._running[-1] = started._replace(job=job)
        say(job_line(job))
        return True

    def _start(self, job: QueuedJob, told: Path) -> subprocess.Popen[bytes]:
        log = open_to_write(log_path(self._base, job.number), os.O_WRONLY | os.O_TRUNC)
        try:
            return subprocess.Popen(
                own_command(sys.executable, "ddplaunch", "run", *job.words, "--", *job.script),
                cwd=job.cwd if Path(job.cwd).is_dir() else "/",
                env={**os.environ, **asked(told)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which ends its launches
            )
        finally:
            os.close(log)

    def _reap(self) -> bool:
        """Note the ends of launches; return whether one ended, which makes room."""
        ended = [each for each in self._running if each.process.poll() is not None]
        for each in ended:
            self._running.remove(each)
            job = self._ended(each)
            write_job(self._base, job)
            if job.state != "waiting":
                each.told.unlink(missing_ok=True)
                say(job_line(job))
        return any(each.job.run_id for each in ended)

    def _ended(self, each: _Started) -> QueuedJob:
        code, report = each.process.returncode, read_told(each.told)
        status, now_s = code if code >= 0 else 128 - code, round(time.time(), 3)
        if report.run_id is None and any(finding.code == _NOT_FREE for finding in report.findings):
            self._next_try_s = time.monotonic() + _RETRY_S
            why = next(finding.what for finding in report.findings if finding.code == _NOT_FREE)
            return replace(each.job, state="waiting", started_s=None, why=why)
        job = replace(each.job, ended_s=now_s, exit_status=status, run_id=report.run_id, why="")
        if status == 0:
            return replace(job, state="done")
        self._failed = True
        if report.run_id is None:
            serious = errors(report.findings)
            why = serious[0].what if serious else f"see {log_path(self._base, job.number)}"
            return replace(job, state="refused", why=why)
        outcome = None if report.directory is None else read_record(report.directory).outcome
        found = None if outcome is None else outcome.diagnosis
        return replace(job, state="failed", why="" if found is None else found.what)

    def _interrupt(self) -> None:
        """End all launches as Ctrl-C would, and note them; a second Ctrl-C kills what is left."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for each in self._running:
            each.process.send_signal(signal.SIGINT)
        until_s = time.monotonic() + _GRACE_S
        with suppress(KeyboardInterrupt):
            while any(each.process.poll() is None for each in self._running) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
        now_s = round(time.time(), 3)
        for each in self._running:
            each.process.kill()
            each.process.wait()
            run_id = read_told(each.told).run_id
            job = replace(each.job, state="interrupted", ended_s=now_s, run_id=run_id, why="the queue was stopped")
            write_job(self._base, job)
            each.told.unlink(missing_ok=True)
        waiting = sum(job.state == "waiting" for job in read_jobs(self._base))
        say(f"stopped; {len(self._running)} ended, {waiting} still wait; `ddplaunch queue run` goes on")
