"""macOS and Windows: what needs no Linux works on an interpreter that lacks what they lack, the rest says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment
from tests.records.fake_runs import outcome, record

OTHER = Path(__file__).with_name("other_system.py")
LOG = """rank 0
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("no such pet")
ValueError: no such pet
"""


@dataclass(frozen=True)
class Answers:
    """What command lines that one interpreter read after another ended with and printed."""

    by_line: dict[str, tuple[int, str]]

    def __call__(self, line: str, status: int = 0) -> str:
        ended, shown = self.by_line[line]
        assert ended == status and "this is a bug" not in shown, shown
        return shown


def on(system: str, folder: Path, lines: Sequence[str], **environment: str) -> Answers:
    """Return all that ddplaunch says there to these command lines."""
    words = [line.split() for line in lines]
    ran = subprocess.run(
        [sys.executable, str(OTHER), system, json.dumps(words)],
        cwd=folder,
        env=clean_environment(COLUMNS="100", **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    answers = [json.loads(answer) for answer in ran.stdout.splitlines()]
    assert len(answers) == len(lines), ran.stdout + ran.stderr
    return Answers({line: (status, shown) for line, (status, shown) in zip(lines, answers, strict=True)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().add_argument('--batch-size')\n")
    (tmp_path / "log.txt").write_text(LOG)
    (tmp_path / "train.sh").write_bytes(b"export A=1\r\ntorchrun --nproc-per-node 2 train.py\r\n")
    (tmp_path / "crlf.txt").write_bytes(LOG.replace("\n", "\r\n").encode())
    attempt = record(tmp_path / ".ddplaunch", "failed") / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    (attempt / "rank-0.out").write_text(LOG)
    outcome(attempt.parents[1], "failed", exit_status=1)
    return tmp_path


LINES = (
    "explain log.txt", "explain crlf.txt", "explain shm-too-small", "explain -", "explain nonsense",
    "plan 2 --batch-size 8 -- train.py", "convert -- torchrun --nproc-per-node 2 train.py",
    "convert train.sh", "help run", "doctor --list",
    "submit 2 --dry-run -- train.py", "run 2 -- train.py", "doctor", "top",
    "plan 2 --hosts a,b -- train.py", "explain failed", "ps", "ps --json", "logs failed", "report failed",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_what_needs_no_linux_works_and_the_rest_says_so(folder: Path, system: str, name: str) -> None:
    said = on(system, folder, LINES)
    for log in ("log.txt", "crlf.txt"):
        assert "ValueError: no such pet" in said(f"explain {log}", 1)
    assert "shm-size" in said("explain shm-too-small") and "nothing failed in stdin" in said("explain -")
    assert "`nonsense` is not a code, run or file" in said("explain nonsense", 2)
    plan = said("plan 2 --batch-size 8 -- train.py")
    assert "train.py --batch-size 8" in plan and "probe failed" not in plan
    assert said("convert -- torchrun --nproc-per-node 2 train.py") == "ddplaunch run 2 -- train.py\n"
    assert "+ddplaunch run 2 -- train.py" in said("convert train.sh")
    assert "ddplaunch run" in said("help run") and "shm-too-small" in said("doctor --list")
    assert "#SBATCH" in said("submit 2 --dry-run -- train.py")
    refused = said("run 2 -- train.py", 4)
    assert f"error[not-on-linux]: this is {name}, where `run` does not work" in refused
    assert "nothing was launched" in refused and ("wsl --install" in refused) == (system == "win32")
    for line in ("doctor", "top", "plan 2 --hosts a,b -- train.py"):
        assert f"`{line.replace(' 2 ', ' ').partition(' a')[0]}` does not work" in said(line, 4)
    if system == "win32":  # where records are not read
        for line in ("ps", "logs failed", "report failed"):
            assert "error[not-on-linux]: this is Windows, where `" in said(line, 4)
        assert "is not a code, run or file" in said("explain failed", 2)
        return
    assert "no such pet" in said("explain failed", 1) and "no such pet" in said("logs failed")
    assert "failed" in said("ps") and json.loads(said("ps --json"))["runs"][0]["run_id"] == "failed"
    assert "is described in" in said("report failed")
    assert "failed" in (folder / "ddplaunch-failed.html").read_text(encoding="utf-8")
