"""What people hand to ``explain`` by mistake, or to break it: it answers, or says what to name instead."""

from __future__ import annotations

import bz2
import gzip
import importlib.util
import io
import lzma
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddplaunch.agent.end.conclude import last_exception
from ddplaunch.explain.diagnosis import LogSource
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.explain.read import packed
from ddplaunch.records import explain_sources
from tests.cli.cli_calls import Call, call, folder  # noqa: F401 - fixtures
from tests.explain.logs import diagnosed, raised

LOG = raised(None, "ValueError: shard 7 is empty")
MANY = "7" * 5000


def test_a_closed_stdin_and_an_empty_word(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(sys, "stdin", None)
    said = call("explain", "-")
    assert said.status == 2 and "stdin is closed" in said.err
    said = call("explain", "")
    assert said.status == 2 and "names no log" in said.err
    said = call("explain", "x" * 5000)
    assert said.status == 2 and "File name too long" in said.err and len(said.err) < 800


def test_a_folder_of_everything_is_refused(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(explain_sources, "_MOST_ENTRIES", 8)
    for number in range(10):
        (folder / f"{number}.bin").touch()
    said = call("explain", ".")
    assert said.status == 2 and "is no folder of logs: it holds more than 8 files" in said.err


def test_pipes_are_read_and_devices_refused(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    os.mkfifo("pipe")
    monkeypatch.setattr(packed, "_WRITER_MS", 50)
    said = call("explain", "pipe")
    assert said.status == 2 and "nobody writes into `pipe`" in said.err
    monkeypatch.setattr(packed, "_WRITER_MS", 60_000)
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


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_compressed_logs_are_read(
    folder: Path,  # noqa: F811
    call: Call,  # noqa: F811
    ending: str,
    pack: Callable[[bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = pack((LOG + "x\n" * 9).encode())
    Path(f"train.log.{ending}").write_bytes(data)
    assert "shard 7 is empty" in call("explain", f"train.log.{ending}").out
    assert "shard 7 is empty" in call("explain", ".").out, "of a folder too"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert "shard 7 is empty" in call("explain", "-").out
    Path("none.log").write_bytes(data[:12])
    said = call("explain", "none.log")
    assert said.status == 2 and "nothing can be unpacked" in said.err


def test_of_a_compressed_log_that_was_cut_off_the_rest_counts(folder: Path, call: Call) -> None:  # noqa: F811
    chosen = random.Random(1)
    noise = "".join(f"tokens {chosen.random()}\n" for _ in range(20_000))
    data = gzip.compress((LOG + noise).encode())
    Path("cut.log.gz").write_bytes(data[: len(data) // 2])
    assert "shard 7 is empty" in call("explain", "cut.log.gz").out
    healthy = gzip.compress("".join(f"step {step}: loss {1 / step:.6f}\n" for step in range(1, 9999)).encode())
    Path("well.log.gz").write_bytes(healthy[: len(healthy) // 2])
    said = call("explain", "well.log.gz")
    assert said.status == 0 and "well.log.gz is cut off or damaged" in " ".join(said.out.split())


def test_zstd_is_read_where_python_can_and_else_said(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    Path("a.log.zst").write_bytes(b"\x28\xb5\x2f\xfd and so on")
    monkeypatch.setattr(packed, "_ZSTD", ("no_such_module",))
    said = call("explain", "a.log.zst")
    assert said.status == 2 and "`zstdcat a.log.zst | ddplaunch explain -`" in said.err
    stand_in = SimpleNamespace(open=lambda file: io.BytesIO(LOG.encode()))  # every reader of zstd has this function
    monkeypatch.setitem(sys.modules, "no_such_module", stand_in)
    assert "shard 7 is empty" in call("explain", "a.log.zst").out


@pytest.mark.skipif(
    not any(importlib.util.find_spec(name.partition(".")[0]) for name in ("compression", "zstandard")),
    reason="nothing here writes zstd",
)
def test_real_zstd(folder: Path, call: Call) -> None:  # noqa: F811
    if importlib.util.find_spec("zstandard"):
        data = importlib.import_module("zstandard").compress(LOG.encode())
    else:
        data = importlib.import_module("compression.zstd").compress(LOG.encode())
    Path("a.log.zst").write_bytes(data)
    assert "shard 7 is empty" in call("explain", "a.log.zst").out


def test_binaries_are_not_logs_and_logs_of_any_encoding_are(
    folder: Path,  # noqa: F811
    call: Call,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
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
    kept = last_exception(None, log)
    assert kept is not None and kept.message == "shard 7 is empty", "and a run keeps its outcome"


def test_a_world_of_trillions_costs_nothing() -> None:
    text = "[rank1]: RuntimeError: [x/gloo/transport/tcp/pair.cc:5] Connection closed by peer [10.0.0.7]:4411\n"
    found = diagnosed(f"world_size=9999999999999\n{text}")
    assert found is not None and found.code == "unknown"


def test_deep_indents_and_deep_groups(tmp_path: Path) -> None:
    indents = "".join(f'{"  " * number}File "a.py", line {number}, in f\n' for number in range(1, 3000))
    found = diagnosed(f"Traceback (most recent call last):\n{indents}ValueError: deep\n")
    assert found is not None and found.exception is not None and found.exception.message == "deep"
    group = ""
    for number in range(1000):
        pad = "  " * number
        group += f"{pad}  + Exception Group Traceback (most recent call last):\n"
        group += f'{pad}  |   File "a.py", line 1, in f\n{pad}  | ExceptionGroup: outer (1 sub-exception)\n'
        group += f"{pad}  +-+---------------- 1 ----------------\n"
    pad = "  " * 1000
    group += f"{pad}  | Traceback (most recent call last):\n"
    group += f'{pad}  |   File "leaf.py", line 3, in g\n{pad}  | KeyError: leaf\n'
    path = tmp_path / "deep.log"
    path.write_text(group)
    begun = time.process_time()
    leaf = explain_texts([LogSource("deep.log", path)]).diagnosis
    assert leaf is not None and leaf.exception is not None and leaf.exception.message == "leaf"
    assert time.process_time() - begun < 20, "a generous deadline: it takes half a second"
