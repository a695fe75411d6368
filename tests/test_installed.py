"""ddplaunch as others get it: an sdist, the wheel that is made of it, and what installs it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 540

pytestmark = pytest.mark.slow


def done(*command: str | Path, cwd: Path, **more: str) -> str:
    words = [str(each) for each in command]
    environment = {**clean_environment(), **more}
    ended = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 0, f"{words}: {ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an unpacked sdist. It is made of what git would carry: a checkout may hold more."""
    place = tmp_path_factory.mktemp("sdist")
    build = "from setuptools import build_meta; import sys; build_meta.build_sdist(sys.argv[1])"
    source = place / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    names = [os.fsdecode(each) for each in listed.stdout.split(b"\0") if each]
    for name in names or [str(each.relative_to(ROOT)) for each in ROOT.rglob("*") if each.is_file()]:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    done(sys.executable, "-c", build, place, cwd=source)
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(place / "unpacked", filter="data")
    (folder,) = (place / "unpacked").iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(unpacked: Path) -> Path:
    folder = unpacked.parent / "wheels"
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    done(*pip, "-w", folder, unpacked, cwd=unpacked)
    return next(folder.glob("ddplaunch-*.whl"))


def test_the_sdist_has_what_its_tests_need(unpacked: Path) -> None:
    tests = ("tests/ui/test_plan_view.py", "tests/test_two_commands.py", "tests/test_dependencies.py")
    command = (sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-k", "not imported_and_no_other", *tests)
    done(*command, cwd=unpacked, PYTHONPATH=str(unpacked))


def test_the_wheel_has_all_modules_and_its_types(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [each for each in (ROOT / "ddplaunch").rglob("*.*") if each.is_file() and "__pycache__" not in each.parts]
    assert {str(each.relative_to(ROOT)) for each in files} <= names, "data, too"
    assert "ddplaunch/py.typed" in names
    assert not [each for each in names if each.startswith(("tests/", "benchmarks/"))]
    about = next(each for each in names if each.endswith(".dist-info/METADATA"))
    with zipfile.ZipFile(wheel) as packed:
        told = packed.read(about).decode()
    assert about.replace("METADATA", "licenses/LICENSE") in names and "License-Expression: Apache-2.0\n" in told
    head, _, readme = told.partition("\n\n")
    assert "Description-Content-Type: text/markdown\n" in head and readme.startswith("# ddplaunch\n")


def test_what_was_installed_runs_and_brings_no_second_torch(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", python, "install")
    done(*pip, "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # What it needs is lent by this environment: a folder of PYTHONPATH brings packages, but no editable ddplaunch.
    lent = {"PYTHONPATH": next(each for each in sys.path if "site-packages" in each)}
    beside = python.parent / "ddplaunch"
    for command in ((beside,), (python, "-m", "ddplaunch")):
        assert "Usage: ddplaunch run" in done(*command, "run", "--help", cwd=tmp_path, **lent)
    (tmp_path / "train.py").write_text("import argparse\n")
    shown = done(beside, "run", "2", "--device", "cpu", "--dry-run", "--", "train.py", cwd=tmp_path, **lent)
    assert "torch.distributed.run" in shown and str(python.parent) in shown
    where = done(python, "-c", "import ddplaunch; print(ddplaunch.__file__)", cwd=tmp_path, **lent)
    assert Path(where.strip()).is_relative_to(tmp_path)
    here = (sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", wheel)
    assert "torch" not in done(*here, cwd=tmp_path).partition("Would install")[2]
