"""ddplaunch as others get it: an sdist, the wheel that is made of it, and what installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.hosts.launching import clean_environment

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 540
USE = """\
import ddplaunch

ddplaunch.current().nonsense
"""

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
    tests = (
        "tests/test_dependencies.py",
        "tests/scaling",
        "tests/checks/test_codes.py",
        "tests/explain/test_corpus.py",
    )
    done(sys.executable, "-m", "pytest", "-q", "-m", "not slow", *tests, cwd=unpacked, PYTHONPATH=str(unpacked))


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


@pytest.mark.parametrize("installer", ["pip", "uv", "pipx"])
def test_what_was_installed_runs(installer: str, wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    if installer == "pipx":
        if find_spec("pipx") is None:
            pytest.skip("pipx is not installed")
        homes = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
        pipx = (
            sys.executable,
            "-m",
            "pipx",
            "install",
            "--python",
            sys.executable,
            f"--pip-args=-c {ROOT / 'constraints.txt'}",
        )
        done(*pipx, wheel, cwd=tmp_path, **homes)
        python = next((tmp_path / "pipx" / "venvs" / "ddplaunch" / "bin").glob("python"))
    else:
        done(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
        if installer == "pip":
            done(python, "-m", "pip", "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
        elif find_spec("uv") is None:
            pytest.skip("uv is not installed")
        else:
            uv = (sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", python)
            done(*uv, wheel, cwd=tmp_path)
    # What it needs is lent by this environment: a folder of PYTHONPATH brings packages, but no editable ddplaunch.
    # pipx takes no package whose dependencies are not there, so that its environment has them all.
    lent = {} if installer == "pipx" else {"PYTHONPATH": next(each for each in sys.path if "site-packages" in each)}
    beside = python.parent / "ddplaunch"
    for command in ((beside,), (python, "-m", "ddplaunch")):
        assert "Usage: ddplaunch run" in done(*command, "run", "--help", cwd=tmp_path, **lent)
    (tmp_path / "train.py").write_text("import argparse\n")
    shown = done(beside, "run", "2", "--device", "cpu", "--dry-run", "--", "train.py", cwd=tmp_path, **lent)
    assert "torch.distributed.run" in shown and str(python.parent) in shown
    where = done(python, "-c", "import ddplaunch; print(ddplaunch.__file__)", cwd=tmp_path, **lent)
    assert Path(where.strip()).is_relative_to(tmp_path)
    shutil.rmtree(tmp_path)  # with a torch of its own it is large


def test_an_older_one_is_replaced_and_nothing_is_left(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copytree(unpacked, older)
    settings = older / "pyproject.toml"
    settings.write_text(settings.read_text().replace('\nversion = "', '\nversion = "0.0.', 1))
    (older / "ddplaunch" / "gone_by_now.py").write_text("")
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index")
    done(*pip, "-w", tmp_path / "wheels", older, cwd=tmp_path)
    done(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    there = (tmp_path / "env" / "bin" / "python", "-m", "pip")
    done(*there, "install", "--no-deps", "--no-index", next((tmp_path / "wheels").glob("*.whl")), cwd=tmp_path)
    assert list((tmp_path / "env").rglob("gone_by_now.py"))
    done(*there, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    assert not list((tmp_path / "env").rglob("gone_by_now*")) and list((tmp_path / "env").rglob("ddplaunch-*"))
    done(*there, "uninstall", "--yes", "ddplaunch", cwd=tmp_path)
    assert list((tmp_path / "env").rglob("*ddplaunch*")) == []


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_no_second_torch_is_brought_where_there_is_one(installer: str, wheel: Path, tmp_path: Path) -> None:
    if installer == "uv":
        if find_spec("uv") is None:
            pytest.skip("uv is not installed")
        command = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--offline", "--python", sys.executable]
    else:
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index"]
    ended = subprocess.run(
        [*command, str(wheel)],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    wanted = [line for line in said.splitlines() if line.startswith(("Would install", " + "))]
    assert not any("torch" in line for line in wanted), said


def test_type_checkers_see_its_types(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "use.py"]
    environment = {**clean_environment(), "MYPYPATH": str(tmp_path / "site")}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert 'has no attribute "nonsense"' in ended.stdout, ended.stdout
    assert ended.stdout.count("error:") == 1, ended.stdout
