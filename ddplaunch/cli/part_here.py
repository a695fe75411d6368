"""``python -m ddplaunch.cli.part_here NODE RECORD``: this host's part of a command typed where its run was launched.

It reads one question on stdin and answers it on stdout, in messages; what it sends after that ends when stdin does.
Only the launch with the token of the question is meant, not another of its id.
"""

from __future__ import annotations

import os
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any

from ddplaunch.hosts.json_lines import GREETING, LineReader, json_line, message_in
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import RunProcesses, runs_in

_LONGEST_LINE = 1 << 20
_UNUSED_S = 3600.0
_KEPT = 256 << 20  # bytes of one file's end; sending more takes too long


class Part:
    """What this host has of a run, and the session of who asks."""

    def __init__(self, incoming: int, outgoing: int, node: int, record: str) -> None:
        """Greet, and read the question."""
        self._lines, self.output = LineReader(incoming, _LONGEST_LINE), os.fdopen(outgoing, "wb")
        self.node, self._record = node, record
        self.output.write(GREETING)
        self.output.flush()
        self.order = self._heard()

    def _heard(self) -> dict[str, Any]:
        """Return the next thing that is said; end where nobody is there to say it."""
        line = self._lines.next(time.monotonic() + _UNUSED_S)
        return sys.exit(0) if line is None else message_in(line)

    def answer_and_go_on(self, body: dict[str, Any]) -> None:
        """Send the answer, and wait until all hosts have given theirs: from then on messages are listened to."""
        self.send(body)
        self._heard()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message. Raises OSError where nobody reads any more."""
        self.output.write(json_line(message))
        self.output.flush()

    def wait(self, timeout_s: float) -> bool:
        """Wait so many seconds; return at once, and False, where whoever asked has gone."""
        until_s = time.monotonic() + timeout_s
        while self._lines.next(until_s) is not None:
            continue
        return not self._lines.ended

    def runs(self) -> Iterator[RunProcesses]:
        """Yield what lives here of the launch, of this user; a pasted torchrun has no token, and its id has to do."""
        identity = (str(self.order["run_id"]), os.geteuid(), str(self.order["launch"]))
        for run in runs_in(process_table()):
            if (run.run_id, run.uid, run.launch) == identity:
                yield run

    @property
    def directory(self) -> Path | None:
        """The record of the run on this host, as the launcher noted it or as its processes name it."""
        from ddplaunch.records.run_states import recorded_at

        path = Path(self._record) if self._record else next(filter(None, map(recorded_at, self.runs())), None)
        return path if path is not None and path.is_dir() else None

    @property
    def shared(self) -> bool:
        """Whether the record here is the launcher's own: one file system."""
        from ddplaunch.records.launchers import is_of_launch

        return self.directory is not None and is_of_launch(self.directory, str(self.order["launch"]))


def stop(part: Part) -> None:
    """End what runs here of the launch, within ``grace_s`` seconds and SIGKILL."""
    from ddplaunch.hosts.local.stop_run import stop_run
    from ddplaunch.records.directory import note_stop
    from ddplaunch.ui.stop_view import stop_json

    processes: dict[str, list[object]] = {"ended": [], "remaining": []}
    if part.directory is not None:
        note_stop(part.directory)
    for run in part.runs():
        run_json = stop_json(run.run_id, stop_run(run, float(part.order["grace_s"])))
        for key, listed in processes.items():
            listed += run_json[key]
    part.send(processes)


def stacks(part: Part) -> None:
    """Say where the ranks are that live here, and what they use."""
    from ddplaunch.cli.commands.stacks import ranks_seen
    from ddplaunch.values.codec import plain

    run = next((each for each in part.runs() if each.ranks), None)
    part.send({"seen": None if run is None else plain(ranks_seen(run))})


def samples(part: Part) -> None:
    """Send a sample of the ranks here every ``interval_s`` seconds, until they have ended."""
    from ddplaunch.values.codec import plain
    from ddplaunch.watch.live_samples import samples_here

    run = next(part.runs(), None)
    part.answer_and_go_on({"runs": run is not None})
    if run is None:
        return
    watched = samples_here(run)
    next(watched)  # rates begin with the second
    while part.wait(float(part.order["interval_s"])) and (newest := next(watched, None)) is not None:
        for sample in newest.values():
            part.send(plain(sample))


def logs(part: Part) -> None:
    """Send the output of ``ranks`` (null: all) that is recorded here: the last ``lines`` (null: all) of each file; with
    ``follow`` also what comes until the run is over.

    Each message says whose output it is; its text has a character for each byte.
    """
    from ddplaunch.cli.commands.logs import is_over
    from ddplaunch.records.log_files import blocks, follow_logs, log_parts

    directory, asked_ranks, shared = part.directory, part.order.get("ranks"), part.shared
    part.answer_and_go_on({"shared": shared})
    if directory is None or shared:
        return
    ranks = None if asked_ranks is None else frozenset(map(int, asked_ranks))
    parts = [
        log_part for log_part in log_parts(directory, ranks, part.order.get("lines")) if log_part.file.node == part.node
    ]
    positions = {log_part.file.path: log_part.end for log_part in parts}
    later = follow_logs(directory, ranks, positions, is_over(directory)) if part.order.get("follow") else ()
    for file, data in chain(blocks(parts), later):
        if file is None and not part.wait(0):
            return
        if file is not None and file.node == part.node:
            part.send({"attempt": file.attempt, "name": file.path.name, "text": data.decode("latin-1")})


def record(part: Part) -> None:
    """Send the record as it is now, as an archive; nothing where the launcher has the same one."""
    directory, shared = part.directory, part.shared
    part.answer_and_go_on({"shared": shared})
    if directory is not None and not shared:
        send_record(directory, part.output)


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


_ANSWERS = {each.__name__: each for each in (stop, stacks, samples, logs, record)}


def main(node: str, directory: str) -> int:
    """Answer at the other end of stdin and stdout."""
    os.environ.pop("PYTHONSAFEPATH", None)  # the launcher set it for this interpreter alone
    outgoing = os.dup(1)
    os.dup2(2, 1)  # what a library prints must not stand between messages
    try:
        part = Part(0, outgoing, int(node), directory)
        answer_to = _ANSWERS.get(str(part.order.get("what")))
        if answer_to is None:
            part.send({"problem": f"this host's ddplaunch knows no `{part.order.get('what')}`"})
        else:
            answer_to(part)
    except (BrokenPipeError, ConnectionResetError):  # whoever asked has seen enough
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
