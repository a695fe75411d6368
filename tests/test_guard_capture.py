"""What the guard records and shows: complete, in order, as it is, and whatever happens to disk and console."""

from __future__ import annotations

from pathlib import Path

from tests.guarded import Guarded


def test_two_ranks_are_recorded_and_rank_0_is_shown(tmp_path: Path) -> None:
    program = "import sys; print('to out', {0}); print('to err', {0}, file=sys.stderr); sys.stdout.buffer.write(b'\\xff\\x00 end')"
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as console, err.open("wb") as errors, Guarded(tmp_path, console, errors) as guarded:
        guarded.attempt([program.format(0), program.format(1)])
        guarded.wait()
        status, ended = guarded.end()
        assert status == 0
        for rank in range(2):
            assert guarded.file(f"attempt-0/rank-{rank}.out") == f"to out {rank}\n".encode() + b"\xff\x00 end"
            assert guarded.file(f"attempt-0/rank-{rank}.err") == f"to err {rank}\n".encode()
        assert [(rank.exit_code, rank.signal, rank.ended_by) for rank in ended.attempts[0].ranks] == [
            (0, None, "itself")
        ] * 2
        assert ended.unrecorded is None
    assert out.read_bytes() == b"to out 0\n\xff\x00 end"
    assert err.read_bytes() == b"to err 0\nconcluded\n"
