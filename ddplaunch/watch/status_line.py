"""The line at the bottom of a terminal while nothing is printed: how long a launch takes, or how far it is."""

from __future__ import annotations

import _thread
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from glob import glob
from typing import Any

from ddplaunch.machine.files import gpu_devices, read_end
from ddplaunch.machine.processes.process_table import pids, read_stat
from ddplaunch.values.words import duration_text, ranks_text

_RESTS_S = 0.3  # after the last output
_SILENT_S = 60.0  # without output, after which a training may hang
_READ_BYTES = 1 << 14
_TIME = 20  # cells of how long a start takes by now, before what goes on: what wraps is not erased whole
#: How torch names the threads that a process group of gloo or NCCL starts.
_OF_A_GROUP = ("gloo_", "pt_nccl_")
#: What moves the cursor: a bar's return to the start of its line, controls, sequences other than colours.
_MOVES = re.compile(rb"\r[^\n]|[\b\v\f]|\x1b(?!\[[\d;]*m)")


class StatusLine:
    """Shows the line while all output rests at the start of a line; the console erases it before other output.

    Once the rank that it tells about, the node's first, has moved the cursor, no more is shown: that rank draws
    something itself.
    """

    def __init__(self, run: Any, console: Any, starting: Callable[[str], bytes]) -> None:
        """``run`` and ``console`` are the guard's; ``starting(what goes on)`` is the line until that rank prints."""
        self._run, self._console, self._starting = run, console, starting
        self._starts = True  # until that rank has printed
        self._on_gpu: Any = None  # the rank whose GPU is read
        self._gpu_bytes: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._run.aside(self._look, "the status line cannot be shown")

    def _look(self) -> None:
        """Read in the background, where a slow disk holds up nothing, and show the line, again and again."""
        attempt, line, draws, doing = self._run.latest(), b"", False, "no output yet"
        columns = os.get_terminal_size(1).columns or 80  # 0 where nobody said how wide it is
        if attempt is not None:
            folder, rank = f"{self._run.settings.node_directory}/attempt-{attempt.number}", min(attempt.ranks)
            printed = [read_end(f"{folder}/rank-{rank}.{stream}", _READ_BYTES) for stream in ("out", "err")]
            draws = any(map(_MOVES.search, printed))
            silent_s = 0.0
            with suppress(OSError, ValueError):  # a piece was just removed; nothing is recorded
                files = glob(f"{folder}/rank-*.[oe][ur]*")  # noqa: PTH207 - the guard starts without pathlib
                silent_s = time.time() - max(map(os.path.getmtime, files))
            where = " (`ddplaunch stacks` shows where)" * (silent_s >= _SILENT_S)
            self._starts &= self._console.passing and not any(printed)
            if self._starts:
                absent = [rank for rank, life in attempt.ranks.items() if not _has_joined(f"/proc/{life.pid}/task")]
                if 0 < len(absent) < len(attempt.ranks):
                    doing = f"waiting for {ranks_text(absent)}"
                doing += where
            else:
                from ddplaunch.watch.step_rate import progress_line  # not while torch is imported: it takes 0.1 s

                life = attempt.ranks[rank]
                if life is not self._on_gpu and gpu_devices(life.pid):
                    self._on_gpu = life
                    _thread.start_new_thread(self._follow_gpu, (life,))
                silent = where and f"no output for {duration_text(silent_s)}{where}"
                line = b"" if draws else progress_line(folder, rank, columns, self._gpu_bytes, silent).encode()
        if self._starts and self._console.passing:
            line = self._starting(doing[: max(0, columns - _TIME)])
        # its process group is the terminal's; in the background a shell may have a prompt there
        if (launcher := read_stat(os.getppid())) and launcher.field(5) == launcher.field(8):
            self._run.loop.at(0.0, lambda: self._show(line))
        if not draws:  # not once a second, which would always be just after a script that prints once a second
            self._run.loop.at(time.monotonic() + 0.7, self._begin)

    def _follow_gpu(self, life: Any) -> None:
        """Read how much memory of the rank's GPU is in use, in a thread of its own: NVML hangs with a broken driver."""
        from ddplaunch.machine.sample import RankSample
        from ddplaunch.watch.gpu_usage import GpuUsage

        with suppress(Exception):  # a traceback would be shown between the ranks' output
            usage, sample = GpuUsage(), RankSample(life.rank, life.local_rank, life.pid, "")
            while life.ended_s is None:
                (rank,), gpus = usage.sample((sample,), {life.pid: life.rank})
                self._gpu_bytes = next((gpu.memory_used_bytes for gpu in gpus if gpu.index == rank.gpu), None)
                time.sleep(1.0)

    def _show(self, line: bytes) -> None:
        console, now_s = self._console, time.monotonic()
        if not line:
            console.end_passing()
        elif console.passing or all(
            sink.at_line_start and not sink.writer.pending and now_s - sink.writer.moved_s > _RESTS_S
            for sink in (console.out, console.err)
        ):
            console.passing = True
            console.out.put(b"\r\x1b[J" + line + b"\r")


def _has_joined(threads: str) -> bool:
    return any((stat := read_stat(pid, threads)) and stat.name.startswith(_OF_A_GROUP) for pid in pids(threads))
