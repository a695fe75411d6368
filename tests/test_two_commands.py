"""The set-up that both README commands share: what it says without a usable Python, and that it installs only once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.hosts.launching import run_and_read

ROOT = Path(__file__).parent.parent


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder that looks like a fresh clone to the scripts."""
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    return folder


def program(path: Path, body: str) -> str:
    """Write an executable shell script and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def ready(clone: Path, what: str, python: str = "python3") -> subprocess.CompletedProcess[str]:
    """Source venv.sh in ``clone`` as the two commands do."""
    words = ["sh", "-euc", '. scripts/venv.sh; ready_venv "$1"', "scripts/try.sh", what]
    return run_and_read(words, clone, os.environ | {"PYTHON": python})


@pytest.mark.parametrize(
    ("body", "complaint", "fix"),
    [
        (None, "there is no `", "PYTHON=/path/to/python3"),
        ('case "$*" in -V) echo Python 3.8.1;; *) exit 1;; esac', "is Python 3.8.1, ddplaunch needs 3.10", "PYTHON="),
        ('case "$*" in *version_info*) ;; *) exit 1;; esac', "has no `venv` module", "apt-get install python3-venv"),
        ('case "$*" in *version_info*|*venv*) ;; *) exit 1;; esac', "neither `ensurepip` nor `pip`", "python3-venv"),
    ],
)
def test_an_unusable_python_is_named_and_nothing_is_made(
    clone: Path, tmp_path: Path, body: str | None, complaint: str, fix: str
) -> None:
    python = program(tmp_path / "bin" / "python", body) if body else str(tmp_path / "nothing")
    done = ready(clone, ".", python)
    assert done.returncode == 2
    assert complaint in done.stderr and "fix: " in done.stderr and fix in done.stderr
    assert not (clone / ".venv").exists()


def test_it_installs_once_and_again_only_after_a_change(clone: Path) -> None:
    # An environment whose interpreter writes down what it was asked for.
    program(clone / ".venv" / "bin" / "python", 'case "$*" in *install*) echo "$*" >>.venv/asked;; esac')
    asked = clone / ".venv" / "asked"

    def installs() -> list[str]:
        return [line.rsplit(" ", 1)[1] for line in asked.read_text().splitlines()]

    assert ready(clone, ".").returncode == ready(clone, ".").returncode == 0
    assert installs() == ["."]
    ready(clone, ".[dev]")
    ready(clone, ".[dev]")
    ready(clone, ".")
    assert installs() == [".", ".[dev]"], "the development environment serves both commands"
    (clone / "constraints.txt").write_text("torch==2.12.0\n")
    ready(clone, ".[dev]")
    assert installs() == [".", ".[dev]", ".[dev]"]
    assert all(" -c constraints.txt " in line and " -e " in line for line in asked.read_text().splitlines())
