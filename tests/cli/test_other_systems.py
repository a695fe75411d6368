"""macOS and Windows: what needs no Linux works on an interpreter that lacks what they lack, the rest says so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.values.words import needs_linux
from tests.hosts.launching import clean_environment
from tests.records.fake_runs import outcome, record

OTHER = Path(__file__).with_name("other_system.py")
LOG = """rank 0
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    raise ValueError("no such pet")
ValueError: no such pet
"""
SYSTEMS = ("darwin", "win32")


def on(system: str, folder: Path, *words: str, status: int = 0, **environment: str) -> str:
    """Return all that ddplaunch says there; it ends with ``status``."""
    ran = subprocess.run(
        [sys.executable, str(OTHER), system, *words],
        cwd=folder,
        env=clean_environment(COLUMNS="100", **environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding=environment.get("PYTHONIOENCODING", "utf-8"),
        timeout=60,
        check=False,
    )
    assert ran.returncode == status and "this is a bug" not in ran.stderr, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("import argparse\nargparse.ArgumentParser().add_argument('--batch-size')\n")
    (tmp_path / "log.txt").write_text(LOG)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_what_needs_no_linux_works(folder: Path, system: str) -> None:
    assert "ValueError: no such pet" in on(system, folder, "explain", "log.txt", status=1)
    assert "shm-size" in on(system, folder, "explain", "shm-too-small")
    plan = on(system, folder, "plan", "2", "--batch-size", "8", "--", "train.py")
    assert "train.py --batch-size 8" in plan and "probe failed" not in plan
    converted = on(system, folder, "convert", "--", "torchrun", "--nproc-per-node", "2", "train.py")
    assert converted == "ddplaunch run 2 -- train.py\n"
    assert "ddplaunch run" in on(system, folder, "help", "run")
    assert "shm-too-small" in on(system, folder, "doctor", "--list")
    assert "#SBATCH" in on(system, folder, "submit", "2", "--dry-run", "--", "train.py")
    (folder / "train.sh").write_bytes(b"export A=1\r\ntorchrun --nproc-per-node 2 train.py\r\n")
    assert "+ddplaunch run 2 -- train.py" in on(system, folder, "convert", "train.sh")
    (folder / "crlf.txt").write_bytes(LOG.replace("\n", "\r\n").encode())
    assert "ValueError: no such pet" in on(system, folder, "explain", "crlf.txt", status=1)
    assert on(system, folder, "explain", "-") == "nothing failed in stdin\n"


@pytest.mark.slow
def test_a_run_that_is_not_there_is_told(folder: Path) -> None:
    for system, command in (("darwin", "explain"), ("darwin", "logs"), ("darwin", "report"), ("win32", "explain")):
        said = on(system, folder, command, "nonsense", status=2)
        assert "`nonsense`" in said and "Traceback" not in said


@pytest.mark.slow
def test_windows_reads_no_records(folder: Path) -> None:
    record(folder / ".ddplaunch", "other").mkdir(exist_ok=True)
    (folder / "ddplaunch.toml").write_text("batch-size = 8\n")
    for words in (("ps",), ("logs", "other"), ("report", "other")):
        assert "error[not-on-linux]: this is Windows, where `" in on("win32", folder, *words, status=4)
    assert "is not a code, run or file" in on("win32", folder, "explain", "other", status=2)
    assert "--batch-size 8" in on("win32", folder, "plan", "2", "--", "train.py")


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_terminal_without_utf_8_gets_what_it_can_show(folder: Path, encoding: str) -> None:
    (folder / "train.py").write_text("import argparse  # \u00d7 \u2192\n", encoding="utf-8")
    (folder / "log.txt").write_text(LOG.replace("pet", "\u732b"), encoding="utf-8")
    words = (("plan", "2", "--batch-size", "8", "--", "train.py"), ("explain", "log.txt"), ("help", "run"))
    for each in words:
        said = on("win32", folder, *each, status=int(each[0] == "explain"), PYTHONIOENCODING=encoding)
        assert "Error: " not in said.replace("ValueError: ", ""), said


@pytest.mark.slow
def test_records_are_read_on_macos(folder: Path) -> None:
    attempt = record(folder / ".ddplaunch", "failed") / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    (attempt / "rank-0.out").write_text(LOG)
    outcome(attempt.parents[1], "failed", exit_status=1)
    assert "no such pet" in on("darwin", folder, "explain", "failed", status=1)
    assert "failed" in on("darwin", folder, "ps")
    assert json.loads(on("darwin", folder, "ps", "--json"))["runs"][0]["run_id"] == "failed"
    assert "no such pet" in on("darwin", folder, "logs", "failed")
    assert "is described in" in on("darwin", folder, "report", "failed")
    assert "failed" in (folder / "ddplaunch-failed.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows")])
def test_what_starts_ranks_says_what_is_missing(folder: Path, system: str, name: str) -> None:
    said = on(system, folder, "run", "2", "--", "train.py", status=4)
    assert f"error[not-on-linux]: this is {name}, where `run` does not work" in said
    assert "nothing was launched" in said and not (folder / ".ddplaunch").exists()
    assert ("wsl --install" in said) == (system == "win32")
    for words in (("doctor",), ("top",)):
        assert f"`{words[0]}` does not work" in on(system, folder, *words, status=4)
    said = on(system, folder, "plan", "2", "--hosts", "a,b", "--", "train.py", status=4)
    assert "`plan --hosts` does not work" in said


def test_linux_lacks_nothing() -> None:
    assert needs_linux("run") is None
