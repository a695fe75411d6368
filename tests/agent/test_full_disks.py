"""What is left of a run whose disk is full, or whose output has no end."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from ddplaunch.agent.guard import record_file
from ddplaunch.agent.guard.record_file import LAST_BYTES, RecordFile
from ddplaunch.machine.files import pieces_of, read_end
from ddplaunch.planning.options import parse_options
from ddplaunch.planning.resolve import plugin_settings
from ddplaunch.planning.settings import Settings
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.log_files import blocks, follow_logs, log_files, part_of
from ddplaunch.ui.logs_view import cut_text
from ddplaunch.values.finding import UsageError
from ddplaunch.values.resolved import Resolved, Source
from ddplaunch.values.words import size_text
from ddplaunch.watch.step_rate import Steps
from tests.agent.guarded import Guarded
from tests.agent.plugin_runs import DEADLINE_S
from tests.cli.cli_calls import Call
from tests.faults.catalogue import small_mount
from tests.hosts.launching import clean_environment, ddplaunch, run_to_end
from tests.records.fake_runs import record

LIMIT = 1 << 20
LINE = b"step %07d of a training that prints all day\n"


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(LINE % number for number in range(start, start + count))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the directory of a run of this host, without any output."""
    return record(tmp_path / ".ddplaunch", "r")


def log(run: Path, limit_bytes: int = LIMIT, rank: int = 0) -> RecordFile:
    file = RecordFile(f"{run}/node-0/attempt-0/rank-{rank}.out", limit_bytes)
    file.flush()
    return file


def whole(run: Path) -> bytes:
    (file,) = log_files(run)
    return b"".join(data for _, data in blocks([part_of(file, None)]))


# Without end


def test_of_endless_output_the_beginning_and_the_end_are_kept_and_the_cut_is_named(run: Path) -> None:
    file, written = log(run), b""
    for start in range(0, 60_000, 1000):
        file.write(lines(1000, start))
        written += lines(1000, start)
        assert sum(path.stat().st_size for path in (run / "node-0/attempt-0").iterdir()) <= LIMIT + LIMIT // 8
    file.close()
    kept = whole(run)
    head, notice, tail = kept.partition(
        b"[ddplaunch: output was cut here; the last of it is in rank-0.out.from-*, as `--log-max-size` says]\n"
    )
    assert notice and written.startswith(head) and written.endswith(tail)
    first, middle, last = pieces_of(file.path or "")
    over = (first.end - len(notice) - LIMIT // 4, middle.end - middle.start - LIMIT * 3 // 8)
    assert all(0 <= each < len(LINE % 0) for each in over) and middle.end == last.start
    assert first.end - len(notice) == len(head) and head.endswith(b"\n") and tail.startswith(b"step")
    assert file.problem is None
    (part,) = [part_of(each, None) for each in log_files(run)]
    assert part.cut_bytes == pytest.approx(len(written) - len(head) - len(tail), abs=200)
    said = f"{size_text(part.cut_bytes)} between the first and the last output of rank 0 were cut, as "
    assert cut_text([part]) == f"{said}`--log-max-size` says\n"
    assert b"".join(data for _, data in blocks([part_of(part.file, 3)])) == lines(3, 59_997)
    assert read_end(part.file.path, 4 * len(LINE % 0)) == lines(4, 59_996)


def test_until_something_is_cut_nothing_says_so_and_all_is_there(run: Path) -> None:
    file = log(run)
    assert whole(run) == b"", "there is a file before there is output"
    for start in range(0, 12_000, 100):
        file.write(lines(100, start))
        assert len(pieces_of(file.path or "")) == (1 if start < 5000 else 2) or 5000 <= start < 7500
    assert whole(run) == lines(12_000) and cut_text([part_of(each, None) for each in log_files(run)]) is None


@pytest.mark.parametrize(("limit", "piece", "most"), [(LIMIT, b"x" * 50_000, 1.5 * LIMIT), (0, lines(1000), 6e6)])
def test_a_line_without_end_is_bounded_and_without_a_limit_nothing_is(
    run: Path, limit: int, piece: bytes, most: float
) -> None:
    file = log(run, limit)
    for _ in range(100):
        file.write(piece)
    kept = sum(path.stat().st_size for path in (run / "node-0/attempt-0").iterdir())
    assert kept < most and (kept == 100 * len(piece)) is (limit == 0)


def test_a_piece_ends_at_the_end_of_a_line_that_was_begun_in_it(run: Path) -> None:
    file = log(run)
    file.write(b"." * (LIMIT // 4 - 51) + b"\n")
    for piece in (b"begun", b" goes on" * 9, b" ends", b"\n" + lines(1)):
        file.write(piece)
    first, second = pieces_of(file.path or "")
    assert Path(first.path).read_bytes().endswith(b"\nbegun" + b" goes on" * 9 + b" ends\n")
    assert Path(second.path).read_bytes() == lines(1)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("short", [0, 1])
def test_a_piece_that_is_full_to_the_byte_takes_no_other_line(run: Path, short: int, at_once: bool) -> None:
    file, filled = log(run), b"." * (LIMIT // 4 - 1 - short) + b"\n"
    for data in (filled + lines(2),) if at_once else (filled, lines(2)):
        file.write(data)
    first, second = pieces_of(file.path or "")
    assert first.end == second.start == len(filled) + short * len(LINE % 0)


def test_a_second_guard_goes_on_in_the_last_piece(run: Path) -> None:
    for start in range(0, 30_000, 500):
        file = log(run)  # each dies without closing it
        file.write(lines(500, start))
    assert whole(run).endswith(lines(5000, 25_000))
    assert len(pieces_of(file.path or "")) == 3


def test_following_goes_on_in_the_next_piece(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in ("_POLL_S", "_NEW_FILES_S"):
        monkeypatch.setattr(f"ddplaunch.records.log_files.{pause}", 0.005)
    file, seen = log(run), b""
    file.write(lines(5000))
    stop = iter([False] * 40 + [True] * 100)
    later = iter(range(5000, 20_000, 100))
    for source, data in follow_logs(run, None, {}, lambda: next(stop), over_s=0.02):
        seen += data
        if source is None and (start := next(later, None)) is not None:
            file.write(lines(100, start))
    assert seen.startswith(lines(15_000)) and seen.endswith(lines(1000, 19_000))


def test_steps_are_counted_in_the_next_piece(run: Path) -> None:
    file = log(run)
    steps = Steps(run / "node-0/attempt-0", [0])
    file.write(lines(4000))
    assert steps.progress(Path(file.path or "").stat().st_mtime)[0].step == 3999
    file.write(lines(4000, 4000))
    assert len(pieces_of(file.path or "")) == 2
    os.utime(file.path or "", (1.0, 1.0))
    steps.progress(10.0)
    steps.progress(20.0)
    assert steps.progress(Path(pieces_of(file.path or "")[-1].path).stat().st_mtime)[0].step == 7999


def test_the_explanation_reads_the_end_and_names_its_file(run: Path, call: Call) -> None:
    words = ("explain", "--run-dir", str(run.parents[1]), "r")  # as a full disk leaves a run: no end is recorded
    assert call(*words).out.startswith("error[unknown]: how run r ended is not recorded, and its launcher is gone\n")
    file = log(run)
    for start in range(0, 60_000, 1000):
        file.write(lines(1000, start))
    file.write(b"Traceback (most recent call last):\n  File 'a.py', line 1, in <module>\nKeyError: 'bird'\n")
    file.close()
    names = [source.name for source in recorded_run(run).sources]
    assert names[0] == "node-0/attempt-0/rank-0.out" and len(names) == 3
    assert names[-1].startswith("node-0/attempt-0/rank-0.out.from-")
    assert call(*words).out.startswith("error[script-exception]: KeyError: 'bird'\n  --> rank 0\n")


NO_SIZES = ("", "5", "0G", "900K", "-1G", "1e3G", "99999999T", "٣G", "G", "1 G G")
SIZES = [("1M", 1 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30), ("300 MB", 300 << 20), ("none", 0)]


@pytest.mark.parametrize(("text", "size"), [*SIZES, *((text, None) for text in NO_SIZES)])
def test_sizes(text: str, size: int | None) -> None:
    said = {"log_max_size": Resolved(text, Source("flag", "--log-max-size"))}
    refused = pytest.raises(UsageError, match="--log-max-size")
    judged: AbstractContextManager[object] = nullcontext() if size is not None else refused
    with judged:
        settings = plugin_settings(parse_options(said), Settings("r", "d"))
        assert Settings.from_json(settings.to_json()) == settings and settings.log_max_bytes == size


# A full disk


class Disk:
    """Stands in for ``os.write``: it takes ``room`` bytes and refuses the rest with ``code``."""

    def __init__(self, room: int, code: int) -> None:
        self.room, self.code = room, code

    def refuse(self, *_: object) -> NoReturn:
        raise OSError(self.code, os.strerror(self.code))

    def write(self, descriptor: int, data: bytes) -> int:
        if not self.room:
            self.refuse()
        done = os.write(descriptor, data[: self.room])
        self.room -= done
        return done


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Disk:
    disk = Disk(100, getattr(request, "param", errno.ENOSPC))
    own = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    own.write = disk.write
    monkeypatch.setattr(record_file, "os", own)
    monkeypatch.setattr(record_file, "_AGAIN_S", 0.0)
    return disk


@pytest.mark.parametrize(
    "full", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE], indirect=True, ids=errno.errorcode.get
)
def test_what_the_disk_does_not_take_is_kept_and_written_when_there_is_room(run: Path, full: Disk) -> None:
    file = log(run)
    file.write(lines(10))
    assert file.problem == os.strerror(full.code) and file.unwritten() == lines(10)[100:]
    file.write(lines(10, 10))
    assert whole(run) + file.unwritten() == lines(20)
    full.room = 1 << 30
    file.write(lines(1, 20))
    assert whole(run) == lines(21) and file.unwritten() == b"" and file.problem is None


def test_of_much_that_was_not_written_the_last_is_kept_and_the_gap_named(run: Path, full: Disk) -> None:
    file = log(run)
    for start in range(0, 60_000, 1000):
        file.write(lines(1000, start))
    kept = file.unwritten()
    missing = size_text(60_000 * len(LINE % 0) - 100 - LAST_BYTES)
    assert kept.startswith(f"\n[ddplaunch: {missing} of output are missing here, which the disk did".encode())
    other = RecordFile(None)
    other.write(lines(2000))
    assert other.unwritten().startswith(b"[ddplaunch: "), "nothing is before it"
    assert kept.endswith(lines(1000, 59_000)) and LAST_BYTES <= len(kept) < LAST_BYTES + 100
    full.room = 1 << 30
    file.close()
    assert whole(run) == lines(10)[:100] + kept and file.unwritten() == b""
    assert file.problem == "No space left on device"  # there is a gap


def test_what_is_only_reported_when_a_file_is_closed_is_lost_and_the_first_reason_is_told(
    run: Path, full: Disk
) -> None:
    first, second = log(run), log(run, rank=1)
    first.write(lines(10))
    full.room, full.code = 0, errno.EDQUOT
    first.write(lines(1))
    full.room = 1 << 20
    second.write(lines(1))
    record_file.os.close = full.refuse  # type: ignore[attr-defined]
    second.close()
    assert (first.problem, second.problem) == tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


def test_a_disk_that_is_full_again_loses_nothing_that_fits(run: Path, full: Disk) -> None:
    file = log(run)
    for room in (30, 0, 7, 0, 200, 0, 1 << 20):
        full.room = room
        file.write(lines(3))
    assert whole(run) == lines(3) * 7 and file.problem is None


# The console


@pytest.mark.slow
def test_a_full_disk_behind_stdout_reaches_no_rank_and_costs_no_good_run_its_status(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as console, Guarded(tmp_path, console, 2) as guarded:
        guarded.attempt(["for i in range(1000): print('line', i)"])
        guarded.wait()
        status, _ = guarded.end()
        assert guarded.ranks[0].returncode == status == 0
        assert guarded.file("attempt-0/rank-0.out").endswith(b"line 999\n")


FAILS = """
import os, sys, time
time.sleep(120 if os.environ["RANK"] == "0" else 1)  # as a training, which does not fail before its record is begun
print("the pet is not known", file=sys.stderr)
{}["bird"]
"""


@pytest.mark.slow
@pytest.mark.root
def test_where_the_disk_of_records_and_of_temporary_files_is_full_a_failure_is_explained(tmp_path: Path) -> None:
    """What a rank fills by itself, and how the record is explained then, is tested in ``tests/ssh/test_losses.py``."""
    (tmp_path / "train.py").write_text(FAILS)
    full = [*small_mount(".ddplaunch", "16m"), "sh", "-c", 'cat /dev/zero > .ddplaunch/fill; exec "$@"', "sh"]
    words = ddplaunch("run", "2", "--device", "cpu", "--no-checks", "--", "train.py")
    environment = clean_environment(TMPDIR=str(tmp_path / ".ddplaunch"))
    status, said = run_to_end([*full, *words], tmp_path, environment, DEADLINE_S)
    assert status == 1 and "error[script-exception]: " in said and "KeyError: 'bird'" in said, said
    assert "incomplete: " in said and "outcome.json: No space left on device" in " ".join(said.split()), said
