"""``python -m ddplaunch.cli.hosts.serve``: a host's side of a session; it serves one client over stdin and stdout.

A question about this host gets one message as its answer. A launch, or a command about a run, takes over the session:
stdout and exit status are then that program's. It ends when stdin does; a launch also ends when no message arrives.
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

_UNUSED_S = 300.0  # the launcher may still wait for other hosts
_LONGEST_LINE = 16 << 20
_BEGINS_S, _LOOK_S = 20.0, 0.2  # with `--follow`, the launch may be about to begin here
_KEPT = 256 << 20  # bytes from the end of one file; sending more takes too long


def serve(lines: LineReader, output: IO[bytes]) -> int:
    """Answer until the client is gone, or a program takes over the session; return the exit status."""
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
            if order["what"] == "command":
                return command(order, lines, output)
            from ddplaunch.hosts.session.job import run_job

            return run_job(order, lines, output.fileno())
        try:
            reply = json_line(answers.to(order)) if order else b""
        except Exception as error:  # reported by the launcher, whose user may be able to act on it
            reply = json_line({"problem": f"{type(error).__name__}: {error}"})


def command(order: dict[str, Any], lines: LineReader, output: IO[bytes]) -> int:
    """Run a command on this host's part of a run, as if it were typed here; or send the record of that part.

    All commands but ``stop`` end with the client.
    """
    from ddplaunch.cli.main import main as typed
    from ddplaunch.cli.which_run import part_here
    from ddplaunch.records.launchers import is_of_launch

    what, run, *options = order["words"]
    until_s = time.monotonic() + (_BEGINS_S if "--follow" in options else 0.0)
    while not (part := part_here(run)).has_begun and time.monotonic() < until_s:
        time.sleep(_LOOK_S)
    if what in ("logs", "record") and (part.directory is None or is_of_launch(part.directory, part.token)):
        return 0  # there is no record, or a shared file system already has it at the launcher
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
    """Write an archive of the record: only the end of a very large file, and no file that cannot be read.

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
    """Serve the client at the other end of stdin and stdout."""
    os.environ.pop("PYTHONSAFEPATH", None)  # set by the launcher for this interpreter only, not for the ranks
    incoming, outgoing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # keep what a library prints out of the messages
    os.close(null)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return serve(LineReader(incoming, _LONGEST_LINE), os.fdopen(outgoing, "wb"))
    except (BrokenPipeError, ConnectionResetError):  # the client has closed its end
        return 0


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # freeing everything first takes an eighth of the CPU time of a host that only sends its facts
