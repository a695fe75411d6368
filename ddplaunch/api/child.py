"""Runs ``ddplaunch run`` as a child of this program: passes its output and interrupts on, and reads its report."""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, TextIO

from ddplaunch.cli.streams import StartReport, asked, read_told
from ddplaunch.records.own.own_files import LOCK_SHARED, closing, try_lock
from ddplaunch.values.variable_names import own_command

_LAST_WORDS_S = 2.0  # to read the rest of a pipe after the child's end; a process left by a rank may hold it open


class Ended(NamedTuple):
    """How the child ended: ``returncode`` as in ``subprocess``; ``interrupted``: there was a Ctrl-C here."""

    returncode: int
    interrupted: bool
    told: StartReport


def run_child(words: Sequence[str], *, show: bool) -> Ended:
    """Run ``ddplaunch WORDS`` to its end; if ``show``, its output appears on this program's stdout and stderr.

    Each interrupt (KeyboardInterrupt) is passed on once, and the end of the ranks is awaited. If this program is
    killed, the ranks end.
    """
    with held_folder() as folder, open(report_path := folder / "told.jsonl", "x+b") as report_file:
        command = own_command(sys.executable, "ddplaunch", *words)
        variables = {**os.environ, **asked(report_path)}
        status, interrupted = _run(command, variables, show=show)
        return Ended(status, interrupted, read_told(report_file.fileno()))


@contextlib.contextmanager
def held_folder() -> Iterator[Path]:
    """Make a folder in /tmp or TMPDIR, and remove it after the block, which may take weeks.

    The folder is locked, so that programs that clean /tmp by age skip it: https://systemd.io/TEMPORARY_DIRECTORIES/.
    """
    with contextlib.ExitStack() as cleanup:
        name = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="ddplaunch-", ignore_cleanup_errors=True))
        with contextlib.suppress(OSError):  # a file system without locks
            try_lock(cleanup.enter_context(closing(os.open(name, os.O_RDONLY))), LOCK_SHARED)
        yield Path(name)


def _has_console() -> bool:
    """Return whether Python's stdout and stderr are descriptors 1 and 2, which a child inherits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return (sys.stdout.fileno(), sys.stderr.fileno()) == (1, 2)
    return False  # in a notebook, or if they were replaced


def _run(command: Sequence[str], variables: Mapping[str, str], *, show: bool) -> tuple[int, bool]:
    """Run ``command``; return its status, and whether there was an interrupt.

    Unless the child shares our console, it gets its own session, so that an interrupt of a notebook's kernel and its
    children reaches it only once.
    """
    shared = show and _has_console()
    if shared:
        sys.stdout.flush()
        sys.stderr.flush()
    output = None if shared else subprocess.PIPE if show else subprocess.DEVNULL
    interrupted = False
    with subprocess.Popen(
        command,
        env=variables,
        bufsize=0,
        stdin=None if shared else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=not shared,
    ) as process:
        sinks = ((process.stdout, sys.stdout), (process.stderr, sys.stderr))
        readers = [threading.Thread(target=_copy, args=pair, daemon=True) for pair in sinks if pair[0] is not None]
        for reader in readers:
            reader.start()
        while True:
            try:
                status = process.wait()
                for reader in readers:
                    reader.join(_LAST_WORDS_S)
                return status, interrupted
            except KeyboardInterrupt:
                interrupted = True
                if not (shared and _from_terminal()):
                    process.send_signal(signal.SIGINT)


def _copy(pipe: IO[bytes], sink: TextIO) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := pipe.read(1 << 16):
        sink.write(decoder.decode(data))
        sink.flush()


def _from_terminal() -> bool:
    """Return whether this program is in the terminal's foreground, so that Ctrl-C reaches its children too."""
    with contextlib.suppress(OSError):
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
        try:
            return os.tcgetpgrp(descriptor) == os.getpgrp()
        finally:
            os.close(descriptor)
    return False
