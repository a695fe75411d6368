"""Big logs: both ends whole, and trouble in the middle found with its true line number."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from ddplaunch.explain.diagnosis import LogSource
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.explain.read import lines as reading
from tests.explain.logs import explained, failed, raised

STEP = b"2026-01-05 04:11:20,001 INFO tokens 18234 in 3.1 s, queue 12\n"
CAUSE = b"Traceback (most recent call last):\n  File \"train.py\", line 7, in <module>\nKeyError: 'title'\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make "big" mean some hundred KB, so that the test does not write megabytes."""
    monkeypatch.setattr(reading, "WHOLE_BYTES", 64 << 10)
    monkeypatch.setattr(reading, "_LEAST_BYTES", 16 << 10)
    monkeypatch.setattr(reading, "_ENDS_BYTES", 16 << 10)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 50_000)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("before", [0, 1, 400, 3000, 5990, 6000])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_cause_anywhere_is_found_where_it_stands(tmp_path: Path, before: int, kind: str) -> None:
    data = STEP * before + CAUSE + STEP * (6000 - before)
    if kind == "stream":
        source = LogSource("big.log", io.BytesIO(data))
    else:
        path = tmp_path / "big.log"
        path.write_bytes(data)
        source = LogSource("big.log", path)
    found = explain_texts([source]).diagnosis
    assert found is not None and found.exception is not None and found.exception.type == "KeyError"
    assert found.evidence[0].line == before + 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("before", [-2, 4, 60, 81, 82, 2000])
def test_a_cause_that_lies_in_two_blocks_is_read_whole_and_so_is_the_end(tmp_path: Path, before: int) -> None:
    begins = (16 << 10) + 2 * 50_000 - before
    steps = STEP * (begins // len(STEP) - 1)
    data = steps + b"x" * (begins - len(steps) - 1) + b"\n" + CAUSE
    path = tmp_path / "big.log"
    path.write_bytes(data + b"".join(b"step %d\n" % number for number in range(9000)) + b"an Error\n")
    ((_, lines),) = reading.numbered_lines([LogSource("big.log", path)])
    number = data.count(b"\n")
    assert [text for place, text in lines if number - 3 < place <= number] == CAUSE.decode().splitlines()
    head = (16 << 10) // 4 // len(STEP)
    assert [place for place, _ in lines[:head]] == [*range(1, head + 1)], "its beginning too"
    assert [text for _, text in lines[-900:-1]] == [f"step {number}" for number in range(8101, 9000)], "and the end"


@pytest.mark.usefixtures("small")
def test_lines_stay_in_order_and_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    path.write_bytes(b"".join(b"%06d Error of some kind\n" % number for number in range(1, 60_001)))
    ((_, lines),) = reading.numbered_lines([LogSource("big.log", path)])
    numbers = [number for number, _ in lines]
    assert numbers == sorted(set(numbers)) and numbers[0] == 1 and numbers[-1] == 60_000
    assert all(text in f"{number:06d} Error of some kind" for number, text in lines), "a part of the line, or all of it"
    assert sum(len(text) for _, text in lines) < 600_000


@pytest.mark.usefixtures("small")
def test_of_many_telling_words_those_of_the_first_and_of_the_last_places_are_read(tmp_path: Path) -> None:
    words = (b"ERROR", b"an Error", b"terminate called", b"Traceback (most", b"an ERROR is an Error")
    blocks = (b"y\n" * 10_000 + words[place % 5] + b" %d\n" % place for place in range(40))
    path = tmp_path / "big.log"
    path.write_bytes(b"x" * 16_383 + b"\n" + b"".join(block.ljust(49_999, b"z") + b"\n" for block in blocks) + b"end")
    ((_, lines),) = reading.numbered_lines([LogSource("big.log", path)])
    read = {place: number for number, text in lines for place in range(40) if text.endswith(f" {place}")}
    assert "" not in dict(lines).values(), "each begins with a whole line"
    assert read == {place: 10_002 * (place + 1) for place in (*range(24), *range(32, 40))}


def test_bytes_that_are_no_text_and_a_missing_last_newline(tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(b"\xff\xfe\x00\r\n\n" + CAUSE.rstrip())
    found = explain_texts([LogSource("odd.log", path)]).diagnosis
    assert found is not None and found.evidence[0].line == 5


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_a_thousand_failed_ranks_take_no_time_that_grows_with_their_square(own: bool) -> None:
    last = (
        "KeyError: 'x'"
        if own
        else "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:4"
    )
    text = "".join(raised(rank, "KeyError: 'y'" if rank == 7 else last) + failed(1, rank, rank) for rank in range(1000))
    begun = time.process_time()
    found = explained(text)
    assert found.diagnosis is not None and found.diagnosis.code == "script-exception"
    assert {echo.rank for echo in found.cascade} == (set() if own else set(range(1000)) - {7}), "all are named"
    assert time.process_time() - begun < 10, "the square takes longer"


DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
ENDED = (
    "[rank{0}]: SignalException: Process {0} got signal: 15\nslurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT now\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("text", [(CAUSE.decode() + DURING) * 2500, "".join(map(ENDED.format, range(12_000)))])
def test_long_chains_and_many_speakers_take_no_time_that_grows_with_their_square(text: str) -> None:
    begun = time.process_time()
    explained(text)
    assert time.process_time() - begun < 10, "the square takes longer"


@pytest.mark.parametrize(
    "text", ["\n" * 1_000_000, "ValueError: bad sample\n" * 10_000, "CUDA out of memory\n" * 10_000, "x\n" * 300_000]
)
def test_equal_lines_in_a_row_take_no_time(text: str) -> None:
    begun = time.process_time()
    explained(text)
    assert time.process_time() - begun < 1, "each line was looked at, and compared with all the others"
    source = LogSource("train.log", io.BytesIO(text.encode()))
    assert [len(lines) for _, lines in reading.numbered_lines([source])] == [100], "more of them add nothing"
