"""``python -m ddplaunch.hosts.remote``: a host's side of a session, which serves one launcher over stdin and stdout.

Questions come and answers go as messages, until one says what to start: from then on stdout and stderr are that
program's, and the session ends with its exit status. When stdin ends, or nothing arrives for ``SILENCE_S``, the
launcher is dead, asleep or cut off: whatever it had started here is ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ddplaunch.hosts.json_lines import GREETING, OF_SSH, SILENCE_S, LineReader, json_line, message_in

_UNUSED_S = 300.0  # before anything was started; the launcher may be waiting for other hosts
_LONGEST_LINE = 16 << 20
_TICK_S = 0.1
_CANNOT_START = 126


def serve(lines: LineReader, outgoing: int) -> int:
    """Answer until the launcher is gone, or has said what to start; return the exit status of that."""
    from ddplaunch.hosts.session.answers import Answers

    answers = Answers()
    os.write(outgoing, GREETING)
    while (line := lines.next(time.monotonic() + _UNUSED_S)) is not None:
        order = message_in(line)
        if order.get("what") == "launch":
            answers.close_meeting()
            return launch(order, lines, outgoing)
        if order:
            try:
                reply = answers.to(order)
            except Exception as error:  # told to the launcher, which knows who can do something about it
                reply = {"problem": f"{type(error).__name__}: {error}"}
            view = memoryview(json_line(reply))
            while view:
                view = view[os.write(outgoing, view) :]
    return 0


def launch(order: dict[str, Any], lines: LineReader, outgoing: int) -> int:
    """Start what ``order`` says, end it when the launcher says so or is lost, and return its exit status."""
    from ddplaunch.hosts.session.job import HostJob

    try:
        job = HostJob(order, {"out": outgoing, "err": 2})
    except OSError as error:
        sys.stderr.write(f"{error.strerror}: {error.filename}\n")
        return _CANNOT_START
    signal.signal(signal.SIGTERM, lambda number, _: job.end(number))
    lines.heard_s = time.monotonic()
    lost = False
    while job.process.poll() is None:
        line = None if lost else lines.next(time.monotonic() + _TICK_S)
        if line is not None:
            with contextlib.suppress(OSError):
                os.write(2, b"\0")  # this host is alive
            if (number := message_in(line).get("signal")) is not None:
                job.end(int(number))
        elif lost:
            time.sleep(_TICK_S)
        elif lines.ended or time.monotonic() - lines.heard_s > SILENCE_S:
            lost = True
            _launcher_lost(job, order)
        job.kill_if_due()
    job.sweep()
    if lost:
        return OF_SSH  # to a launcher that wakes up again, this host is lost
    status: int = job.process.returncode
    return min(status, OF_SSH - 1) if status >= 0 else 128 - status


def _launcher_lost(job: Any, order: dict[str, Any]) -> None:
    """End the job; the record here tells why, unless the launcher had begun to end it."""
    if not job.told:
        from ddplaunch.records.directory import note_stop

        with contextlib.suppress(Exception):  # its end does not wait for a note
            note_stop(Path(str(order["record"])), launcher_lost=True)
    job.unheard = True
    job.end(signal.SIGTERM)


def main() -> int:
    """Serve the launcher at the other end of stdin and stdout."""
    os.environ.pop("PYTHONSAFEPATH", None)  # the launcher set it for this interpreter; the ranks are not to inherit it
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a library prints must not stand between messages
    os.close(null)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return serve(LineReader(incoming, _LONGEST_LINE), outgoing)


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # to free everything first takes an eighth of the CPU time of a host that only tells its facts
