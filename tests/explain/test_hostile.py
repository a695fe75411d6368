"""What people hand to ``explain`` by mistake, or to break it: it answers, or says what to name instead."""

from __future__ import annotations

import gzip
import io
import os
import random
import sys
import threading
from pathlib import Path

import pytest

from ddplaunch.agent.end.conclude import last_lines
from ddplaunch.records import explain_sources
from ddplaunch.records.outcome import RankOutcome
from tests.cli.cli_calls import Call
from tests.explain.logs import diagnosed, raised

LOG = raised(None, "ValueError: shard 7 is empty")
MANY = "7" * 4301  # one more than `int` reads


def test_a_closed_stdin_and_an_empty_word(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    said = call("explain", "-")
    assert said.status == 2 and "stdin is closed" in said.err
    said = call("explain", "")
    assert said.status == 2 and "names no log" in said.err
    said = call("explain", "x" * 5000)
    assert said.status == 2 and "File name too long" in said.err and len(said.err) < 800


def test_a_folder_of_everything_is_refused(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_sources, "_MOST_ENTRIES", 8)
    for number in range(10):
        (folder / f"{number}.bin").touch()
    said = call("explain", ".")
    assert said.status == 2 and "is no folder of logs: it holds more than 8 files" in said.err


def test_pipes_are_read_and_devices_refused(folder: Path, call: Call) -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_text(LOG))
    writer.start()
    said = call("explain", "pipe")
    writer.join()
    assert said.status == 1 and "shard 7 is empty" in said.out
    reading, writing = os.pipe()
    os.write(writing, LOG.encode())
    os.close(writing)
    said = call("explain", f"/dev/fd/{reading}")  # as `<(…)` of a shell
    os.close(reading)
    assert said.status == 1 and "shard 7 is empty" in said.out
    for device in ("/dev/zero", "/dev/null"):
        said = call("explain", device)
        assert said.status == 2 and "is a device" in said.err


def test_of_a_compressed_log_it_is_said_how_to_unpack_it(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gzip.compress(LOG.encode())
    Path("train 1.log.gz").write_bytes(data)
    said = call("explain", "train 1.log.gz")
    assert said.status == 2 and "`zcat 'train 1.log.gz' | ddplaunch explain -`" in said.err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert "`zcat FILE | ddplaunch explain -`" in call("explain", "-").err


def test_binaries_are_not_logs_and_logs_of_any_encoding_are(
    folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("random.log").write_bytes(random.Random(2).randbytes(50_000))
    Path("zero.log").write_bytes(bytes(100))
    for name in ("random.log", "zero.log", sys.executable):
        said = call("explain", name)
        assert said.status == 2 and "is not a log: it holds no text" in " ".join(said.err.split()), name
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(random.Random(3).randbytes(5000))))
    assert call("explain", "-").status == 2
    chinese = "训练 第一轮\n" * 20 + LOG
    for data in (chinese.encode("gbk"), LOG.encode("utf-16"), bytes(20_000) + LOG.encode(), chinese.encode()):
        Path("some.log").write_bytes(data)
        assert "shard 7 is empty" in call("explain", "some.log").out, data[:40]
    Path("random.log").touch()
    assert "shard 7 is empty" in call("explain", ".").out, "the others of a folder are read without it"


def test_numbers_of_thousands_of_digits(tmp_path: Path) -> None:
    lines = (
        f"[rank{MANY}]: ValueError: x",
        f"[{MANY}] epoch {MANY}/{MANY} step {MANY} world_size={MANY}",
        f"failed (exitcode: {MANY}) local_rank: {MANY} (pid: {MANY}) of binary: x",
        f"process {MANY} terminated with exit code {MANY}",
        f"srun: error: n1: task {MANY}: Exited with exit code {MANY}",
        f"[n:{MANY}] *** x",
        f"(Worker pid={MANY}) KeyError: 1",
        f'{{"message": "x", "rank": {MANY}}}',
        f'  File "a.py", line {MANY}, in f',
        f"rank {MANY} has finished",
        f"[Rank {MANY}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={MANY}, OpType=ALLREDUCE, "
        f"NumelIn={MANY}) last enqueued work: {MANY}, last completed work: {MANY}",
    )
    found = diagnosed("\n".join(lines) + "\n" + LOG)
    assert found is not None
    log = tmp_path / "rank-0.err"
    log.write_text("\n".join(lines) + "\n" + LOG)
    rank = RankOutcome(0, 0, "node-1", err=log.name)
    assert last_lines(rank, tmp_path, {})[-1].endswith("shard 7 is empty"), "and a run keeps its outcome"


def test_a_world_of_trillions_costs_nothing() -> None:
    text = "[rank1]: RuntimeError: [x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.7]:4411\n"
    found = diagnosed(f"world_size=9999999999999\n{text}")
    assert found is not None and found.code == "unknown"


def test_deep_indents() -> None:
    indents = "".join(f'{"  " * number}File "a.py", line {number}, in f\n' for number in range(1, 300))
    found = diagnosed(f"Traceback (most recent call last):\n{indents}ValueError: deep\n")
    assert found is not None and found.exception is not None and found.exception.message == "deep"
