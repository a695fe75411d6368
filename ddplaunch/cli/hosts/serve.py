"""``python -m ddplaunch.cli.hosts.serve``: a host's side of a session: it serves one asker over stdin and stdout.

A question is answered by one message: facts, where to meet, stacks, stop. A launch, logs, samples or a record have the
session to its end, by messages or as plain bytes. All of it ends when stdin does; a launch also when nothing arrives.
"""

from __future__ import annotations

import os
import signal
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ddplaunch.hosts.json_lines import GREETING, LineReader, json_line, message_in

if TYPE_CHECKING:
    from ddplaunch.machine.processes.run_processes import RunProcesses

_UNUSED_S = 300.0  # the launcher may be waiting for other hosts
_LONGEST_LINE = 16 << 20
_KEPT = 256 << 20  # bytes of one file's end; sending more takes too long


class Session:
    """Both ends of what ssh connects."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        """Greet."""
        self.lines, self.output = LineReader(incoming, _LONGEST_LINE), os.fdopen(outgoing, "wb")
        self.output.write(GREETING)
        self.output.flush()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. Raises OSError where nobody reads any more."""
        self.output.write(json_line(message))
        self.output.flush()

    def wait(self, timeout_s: float) -> bool:
        """Wait so many seconds; return at once, and False, where whoever asked has gone."""
        until_s = time.monotonic() + timeout_s
        while self.lines.next(until_s) is not None:
            continue
        return not self.lines.ended


class Part:
    """What this host has of the run that a question is about: of that launch, not of another with the same id."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        """``order`` names run, token and record."""
        self._identity = (str(order["run_id"]), os.geteuid(), str(order["token"]))
        self._record = str(order["record"])

    def runs(self) -> Iterator[RunProcesses]:
        """Yield what lives here of the launch, of this user."""
        from ddplaunch.machine.processes.process_table import process_table
        from ddplaunch.machine.processes.run_processes import runs_in

        return (run for run in runs_in(process_table()) if (run.run_id, run.uid, run.launch) == self._identity)

    @property
    def directory(self) -> Path | None:
        """The record of the run on this host, as the launcher noted it or as its processes name it."""
        from ddplaunch.records.run_states import recorded_at

        path = Path(self._record) if self._record else next(filter(None, map(recorded_at, self.runs())), None)
        return path if path is not None and path.is_dir() else None

    @property
    def to_send(self) -> Path | None:
        """The record, unless it is the launcher's own: one file system."""
        from ddplaunch.records.launchers import is_of_launch

        directory = self.directory
        return None if directory is None or is_of_launch(directory, self._identity[2]) else directory


def stop(order: dict[str, Any]) -> dict[str, Any]:
    """End what runs here of the launch, within ``grace_s`` seconds and SIGKILL."""
    from ddplaunch.hosts.local.stop_run import stop_run
    from ddplaunch.records.directory import note_stop
    from ddplaunch.ui.stop_view import stop_json

    part = Part(order)
    processes: dict[str, list[object]] = {"ended": [], "remaining": []}
    if (directory := part.directory) is not None:
        note_stop(directory)
    for run in part.runs():
        run_json = stop_json(run.run_id, stop_run(run, float(order["grace_s"])))
        for key, entries in processes.items():
            entries += run_json[key]
    return processes


def stacks(order: dict[str, Any]) -> dict[str, Any]:
    """Return where the ranks are that live here, and what they use."""
    from ddplaunch.cli.commands.stacks import ranks_seen
    from ddplaunch.values.codec import plain

    run = next((run for run in Part(order).runs() if run.ranks), None)
    return {"seen": None if run is None else plain(ranks_seen(run))}


def samples(order: dict[str, Any], session: Session) -> int:
    """Send a sample of the ranks here every ``interval_s`` seconds, until they have ended."""
    from ddplaunch.values.codec import plain
    from ddplaunch.watch.live_samples import samples_here

    run = next(Part(order).runs(), None)
    if run is None:
        return 0
    watched = samples_here(run)
    next(watched)  # rates begin with the second
    while session.wait(float(order["interval_s"])) and (newest := next(watched, None)) is not None:
        for sample in newest.values():
            session.send(plain(sample))
    return 0


def logs(order: dict[str, Any], session: Session) -> int:
    """Send the output of ``ranks`` (null: all) that is recorded here: the last ``lines`` (null: all) of each file; with
    ``follow`` also what comes until the run is over.

    Each message says whose output it is; its text has a character for each byte.
    """
    from ddplaunch.cli.commands.logs import is_over
    from ddplaunch.records.log_files import blocks, follow_logs, log_parts

    directory, node = Part(order).to_send, order["node"]
    if directory is None:
        return 0
    ranks = None if order["ranks"] is None else frozenset(map(int, order["ranks"]))
    parts = [part for part in log_parts(directory, ranks, order["lines"]) if part.file.node == node]
    positions = {part.file.path: part.end for part in parts}
    later = follow_logs(directory, ranks, positions, is_over(directory)) if order["follow"] else ()
    for file, data in chain(blocks(parts), later):
        if file is None and not session.wait(0):
            return 0
        if file is not None and file.node == node:
            session.send({"attempt": file.attempt, "name": file.path.name, "text": data.decode("latin-1")})
    return 0


def record(order: dict[str, Any], session: Session) -> int:
    """Send the record as it is now, as an archive."""
    directory = Part(order).to_send
    if directory is not None:
        send_record(directory, session.output)
        session.output.flush()
    return 0


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


def launch(order: dict[str, Any], session: Session) -> int:
    """Start what ``order`` says, and return its exit status."""
    from ddplaunch.hosts.session.job import run_job

    return run_job(order, session.lines, {"out": session.output.fileno(), "err": 2})


_ANSWERS = {answer.__name__: answer for answer in (stop, stacks)}
_TO_THE_END = {handler.__name__: handler for handler in (launch, logs, samples, record)}


def serve(session: Session) -> int:
    """Answer until the asker is gone, or one thing has the rest of the session; return the exit status of that."""
    from ddplaunch.hosts.session.answers import Answers

    before_launch = Answers()
    while (line := session.lines.next(time.monotonic() + _UNUSED_S)) is not None:
        order = message_in(line)
        what = str(order.get("what"))
        if what in _TO_THE_END:
            before_launch.close_meeting()
            return _TO_THE_END[what](order, session)
        if order:
            try:
                reply = _ANSWERS.get(what, before_launch.to)(order)
            except Exception as error:  # told to the launcher, which knows who can do something about it
                reply = {"problem": f"{type(error).__name__}: {error}"}
            session.send(reply)
    return 0


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
        return serve(Session(incoming, outgoing))
    except (BrokenPipeError, ConnectionResetError):  # whoever asked has seen enough
        return 0


if __name__ == "__main__":
    ended = main()
    sys.stderr.flush()
    os._exit(ended)  # to free everything first takes an eighth of the CPU time of a host that only tells its facts
