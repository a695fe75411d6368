"""The line at the bottom of the terminal: what it says, and when it is shown."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddplaunch.machine.processes.process_table import read_stat
from ddplaunch.machine.sample import GpuSample, RankSample
from ddplaunch.watch import gpu_usage, status_line
from ddplaunch.watch.status_line import StatusLine
from ddplaunch.watch.step_rate import progress_line
from tests.source import PACKAGE


def test_what_it_says_fits_into_the_terminal(tmp_path: Path) -> None:
    path, now_s = tmp_path / "rank-0.out", time.time()
    for ago_s, text in ((2, "step 10/40 loss 0.9\n"), (0, "step 20 of 40 loss nan\n")):
        with path.open("a") as file:
            file.write(text)
        os.utime(path, (now_s - ago_s, now_s - ago_s))
        progress_line(str(tmp_path), 0, 80)
    whole = "ddplaunch: step 20/40, 5 steps/s, 4.0 s left, loss nan, GPU 32 GiB"
    lengths = {80: 66, 67: 66, 66: 54, 55: 54, 54: 44, 40: 32, 22: 21, 21: 0, 0: 0}
    for columns, length in lengths.items():
        assert progress_line(str(tmp_path), 0, columns, 32 << 30) == whole[:length]
    assert progress_line(str(tmp_path), 0, 80) == whole[:54]
    path.write_text("no step\n")
    assert progress_line(str(tmp_path), 1, 80) == "", "a rank without a file"


class Launch:
    """A guard's run and its console, of which rank 0 has printed ``printed``."""

    def __init__(self, folder: Path, printed: bytes, pids: Iterable[int]) -> None:
        (folder / "attempt-0").mkdir(exist_ok=True)
        (folder / "attempt-0" / "rank-0.out").write_bytes(printed)
        self.settings, self.loop = SimpleNamespace(node_directory=str(folder)), self
        self.passing, self.shown, self.looks = False, list[bytes](), 0
        self.ranks = {
            rank: SimpleNamespace(rank=rank, local_rank=rank, pid=pid, ended_s=None) for rank, pid in enumerate(pids)
        }
        self.out, self.err = (
            SimpleNamespace(at_line_start=True, writer=SimpleNamespace(pending=0, moved_s=0.0), put=self.shown.append)
            for _ in range(2)
        )

    def latest(self) -> Any:
        return SimpleNamespace(number=0, ranks=self.ranks)

    def aside(self, work: Callable[[], None], _: str) -> None:
        work()

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        if at_s:
            self.looks, self.again = self.looks + 1, call
        else:
            call()

    def end_passing(self) -> None:
        self.passing = False


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Launch]:
    """What a launch shows whose rank 0 has printed this, with ``changes`` to the console's streams."""

    def launch(
        printed: bytes,
        *,
        group: int = 7,
        passing: bool = False,
        columns: int = 80,
        pids: Iterable[int] = (-1, -1),
        **changes: Any,
    ) -> Launch:
        stat = SimpleNamespace(field=lambda number: {5: 7, 8: group}[number])
        monkeypatch.setattr(status_line, "read_stat", lambda pid, *proc: read_stat(pid, *proc) if proc else stat)
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 24)))
        run = Launch(tmp_path, printed, pids)
        run.passing = passing
        for name, value in changes.items():
            stream, _, attribute = name.partition("_")
            sink = getattr(run, stream)
            setattr(sink if hasattr(sink, attribute) else sink.writer, attribute, value)
        StatusLine(run, run, lambda doing: f"3 s: {doing}".encode())
        return run

    return launch


@pytest.mark.parametrize(
    ("printed", "ago_s", "text"),
    [
        *((text, 59, "step 3/9") for text in (b"step 3/9\n", b"dos\r\nstep 3/9\r\n", b"step 3/9 \x1b[1mto\x1b[0m\n")),
        (b"step 12/9\n", 0, "step 12"),  # the total was of something else
        (b"step 3/9\n", 61, "no output for 1 min 1 s (`ddplaunch stacks` shows where), step 3/9"),
        *((text, 150, "no output for 2 min 30 s (`ddplaunch stacks` shows where)") for text in (b"epoch 1\n", b"")),
    ],
)
def test_it_is_shown_where_output_rests_at_the_start_of_a_line(
    shown: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch, printed: bytes, ago_s: int, text: str
) -> None:
    now_s = time.time() + ago_s
    monkeypatch.setattr(time, "time", lambda: now_s)
    run = shown(printed)
    assert (run.shown, run.passing, run.looks) == ([f"\r\x1b[Jddplaunch: {text}\r".encode()], True, 1)


@pytest.mark.parametrize(
    ("printed", "changes", "looks"),
    [
        (b"step 3/9\n", {"out_at_line_start": False}, 1),
        (b"step 3/9\n", {"err_at_line_start": False}, 1),
        (b"step 3/9\n", {"err_moved_s": float("inf")}, 1),  # just now
        (b"step 3/9\n", {"out_pending": 1}, 1),
        (b"step 3/9\n", {"group": -1}, 1),  # not the terminal of its session
        (b"step 3/9\n", {"group": 8, "passing": True}, 1),  # a prompt in the background stays
        (b"epoch 1\n", {"passing": True}, 1),  # no steps
        (b"", {}, 1),  # another rank has printed
        (b"step 3/9\n\r 10%|# ", {"passing": True}, 0),
        (b"step 3/9\n\x1b[?25l", {}, 0),
        (b"\x1b[2Astep 3/9\n", {}, 0),
    ],
)
def test_it_is_not_shown(shown: Callable[..., Launch], printed: bytes, changes: dict[str, Any], looks: int) -> None:
    run = shown(printed, **changes)
    assert (run.shown, run.passing, run.looks) == ([], changes.keys() >= {"group", "passing"}, looks)


def test_once_shown_it_is_renewed_until_torchrun_is_gone(
    shown: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shown(b"step 3/9\n", passing=True, err_moved_s=float("inf"))
    monkeypatch.setattr(status_line, "read_stat", lambda *_: None)
    run.again()
    assert (len(run.shown), run.looks) == (1, 2)


def test_after_the_end_it_is_erased(shown: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    run = shown(b"step 3/9\n")
    monkeypatch.setattr(run, "latest", lambda: None)
    run.again()
    assert (len(run.shown), run.passing) == (1, False)


@pytest.mark.parametrize(
    ("mates", "columns", "text"),
    [
        ("ab", 80, "waiting for ranks 1, 3"),
        ("aa", 80, "no output yet"),
        ("bb", 80, "no output yet"),
        ("ab", 31, "waiting for"),
        ("bb", 19, ""),
        ("ab", 0, "waiting for ranks 1, 3"),
    ],
)
def test_until_the_first_output_it_says_what_a_launch_waits_for(
    mates: str, columns: int, text: str, shown: Callable[..., Launch]
) -> None:
    """A rank has come up with its first process group, for which gloo and NCCL start threads of known names."""
    own_name = Path("/proc/self/comm").read_text()
    Path("/proc/self/comm").write_text("gloo_tcp_loop")
    try:
        launch = shown(
            b"", passing=True, columns=columns, pids=[{"a": os.getpid(), "b": -1}[mate] for mate in mates * 2]
        )
        assert launch.shown == [f"\r\x1b[J3 s: {text}\r".encode()]
    finally:
        Path("/proc/self/comm").write_text(own_name)


def test_the_memory_of_the_gpu_of_the_first_rank(shown: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read in a thread of its own, which ends with the rank."""
    begun: list[Callable[[], None]] = []
    monkeypatch.setattr(status_line, "gpu_devices", lambda pid: ["/dev/nvidiactl"] if pid == 7 else [])
    monkeypatch.setattr(_thread, "start_new_thread", lambda work, words: begun.append(lambda: work(*words)))
    run = shown(b"step 3/9\n", pids=(7, 8))
    run.again()
    (follow,) = begun

    def sample(ranks: Sequence[RankSample], by_pid: Mapping[int, int]) -> Any:
        assert by_pid == {7: 0}
        run.ranks[0].ended_s = 1.0
        return [replace(rank, gpu=3) for rank in ranks], [GpuSample(2), GpuSample(3, memory_used_bytes=5 << 30)]

    monkeypatch.setattr(gpu_usage, "GpuUsage", lambda: SimpleNamespace(sample=sample))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    follow()
    run.again()
    assert slept == [1.0] and run.shown[-1] == b"\r\x1b[Jddplaunch: step 3/9, GPU 5 GiB\r"
    assert shown(b"step 3/9\n", pids=(8, 7)).shown and len(begun) == 1


def test_the_guard_stays_light_with_it() -> None:
    modules = "ddplaunch.agent.guard.guard, ddplaunch.watch.status_line, sys"
    code = f"import sys; sys.path.append({str(PACKAGE.parent)!r}); import {modules}; print(*sys.modules)"
    argv = [sys.executable, "-ISE", "-c", code]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert "ddplaunch.agent.guard.guard" in loaded
    assert not {"pathlib", "urllib.parse", "dataclasses", "inspect", "importlib", "subprocess"} & {*loaded}
