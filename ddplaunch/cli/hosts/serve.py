"""``python -m ddplaunch.cli.hosts.serve``: a host's side of a session: it serves one asker over stdin and stdout.

A question about this host is answered by one message. A launch, or a command about a run, has the session to its end:
stdout is that of the program, and so is the exit status. It ends when stdin does, a launch also when nothing arrives.
"""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ddplaunch.hosts.json_lines import GREETING, LineReader, json_line, message_in

_UNUSED_S = 300.0  # the launcher may be waiting for other hosts
_LONGEST_LINE = 16 << 20
_BEGINS_S, _LOOK_S = 20.0, 0.2  # a launch that is followed may be about to begin here
_KEPT = 256 << 20  # bytes of one file's end; sending more takes too long


def serve(lines: LineReader, output: IO[bytes]) -> int:
    """Answer until the asker is gone, or something has the rest of the session; return the exit status of that."""
    from ddplaunch.hosts.session.answers import Answers

    answers, reply = Answers(), GREETING
    while True:
        output.write(reply)
        output.flush()
        if (line := lines.next(time.monotonic() + _UNUSED_S)) is None:
            return 0
        order = message_in(line)
        if order.get("what") in ("launch", "command"):
            answers.close_meeting()
            return (launch if order["what"] == "launch" else command)(order, lines, output)
        try:
            reply = json_line(answers.to(order)) if order else b""
        except Exception as error:  # told to the launcher, which knows who can do something about it
            reply = json_line({"problem": f"{type(error).__name__}: {error}"})


def launch(order: dict[str, Any], lines: LineReader, output: IO[bytes]) -> int:
    """Start what ``order`` says, and return its exit status."""
    from ddplaunch.hosts.session.job import run_job

    return run_job(order, lines, {"out": output.fileno(), "err": 2})


def command(order: dict[str, Any], lines: LineReader, output: IO[bytes]) -> int:
    """Do what a command does where it is typed, with what this host has of a run; or send the record of that.

    It ends with whoever asked, but for a stop.
    """
    from ddplaunch.cli.main import main as typed
    from ddplaunch.cli.which_run import part_here
    from ddplaunch.records.launchers import is_of_launch

    what, run, *options = order["words"]
    until_s = time.monotonic() + (_BEGINS_S if "--follow" in options else 0.0)
    while not (part := part_here(run)).has_begun and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if what in ("logs", "record") and (part.directory is None or is_of_launch(part.directory, part.token)):
        return 0  # there is none, or the launcher has the same: one file system
    if what != "stop":
        threading.Thread(target=_end_with_asker, args=(lines,), daemon=True).start()
    if what == "record":
        send_record(part.record, output)
        output.flush()
    else:
        os.dup2(output.fileno(), 1)
        typed(order["words"])
    return 0


def _end_with_asker(lines: LineReader) -> None:
    while not lines.ended:
        lines.next(time.monotonic() + _UNUSED_S)
    os._exit(0)


def send_record(directory: Path, output: IO[bytes]) -> None:
    """Write an archive of the record; of a very large file the end, of one that cannot be read nothing.

    Small files come first: a launcher that stops waiting then has most of what explains a failure.
    """
    files = [path for path in directory.rglob("[!.]*") if path.is_file() and not path.is_symlink()]
    with tarfile.open(fileobj=output, mode="w|") as archive:
        for path in sorted(files, key=lambda path: path.stat().st_size):
            with suppress(PermissionError, FileNotFoundError), path.open("rb") as file:
                member = archive.gettarinfo(arcname=str(path.relative_to(directory)), fileobj=file)
                file.seek(max(0, member.size - _KEPT))
                member.size = min(member.size, _KEPT)
                archive.addfile(member, file)


def main() -> int:
    """Serve whoever is at the other end of stdin and stdout."""
    os.environ.pop("PYTHONSAFEPATH", None)  # the launcher set it for this interpreter; the ranks are not to inherit it
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # what a library prints must not stand between messages
    os.close(null)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return serve(LineReader(incoming, _LONGEST_LINE), os.fdopen(outgoing, "wb"))
    except (BrokenPipeError, ConnectionResetError):  # whoever asked has seen enough
        return 0


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # to free everything first takes an eighth of the CPU time of a host that only tells its facts
