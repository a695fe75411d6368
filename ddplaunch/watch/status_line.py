"""The line at the bottom of a terminal while nothing is printed: how long a launch takes, or how far it is."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

from ddplaunch.machine.files import read_end
from ddplaunch.machine.processes.process_table import read_stat

_RESTS_S = 0.3  # after the last output
_READ_BYTES = 1 << 14
#: What moves the cursor: a bar's return to the start of its line, controls, sequences other than colours.
_MOVES = re.compile(rb"\r[^\n]|[\b\v\f]|\x1b(?!\[[\d;]*m)")


class StatusLine:
    """Shows the line while all output rests at the start of a line; the console erases it before other output.

    Once the rank that it tells about, the node's first, has moved the cursor, no more is shown: that rank draws
    something itself.
    """

    def __init__(self, run: Any, console: Any, waiting: Callable[[], bytes]) -> None:
        """``run`` and ``console`` are the guard's; ``waiting()`` returns the line until that rank has printed."""
        self._run, self._console, self._waiting = run, console, waiting
        self._begin()

    def _begin(self) -> None:
        self._run.aside(self._look, "the status line cannot be shown")

    def _look(self) -> None:
        """Read in the background, where a slow disk holds up nothing, and show the line, once a second."""
        attempt, line, draws = self._run.latest(), self._waiting() if self._console.passing else b"", False
        if attempt is not None:
            folder, rank = f"{self._run.settings.node_directory}/attempt-{attempt.number}", min(attempt.ranks)
            printed = [read_end(f"{folder}/rank-{rank}.{stream}", _READ_BYTES) for stream in ("out", "err")]
            draws = any(map(_MOVES.search, printed))
            if any(printed):
                from ddplaunch.watch.step_rate import progress_line  # not while torch is imported: it takes 0.1 s

                self._waiting = bytes
                line = b"" if draws else progress_line(folder, rank, os.get_terminal_size(1).columns).encode()
        launcher = read_stat(os.getppid())
        # its process group is the terminal's; in the background a shell may have a prompt there
        if launcher is not None and launcher.field(5) == launcher.field(8):
            self._run.loop.at(0.0, lambda: self._show(line))
        if not draws:
            self._run.loop.at(time.monotonic() + 1.0, self._begin)

    def _show(self, line: bytes) -> None:
        console, sinks, now_s = self._console, (self._console.out, self._console.err), time.monotonic()
        if not line:
            console.end_passing()
        elif console.passing or all(
            sink.at_line_start and not sink.writer.pending and now_s - sink.writer.moved_s > _RESTS_S for sink in sinks
        ):
            console.passing = True
            console.out.put(b"\r\x1b[J" + line + b"\r")
