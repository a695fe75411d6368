"""A command in a scratch tree: whatever it does to files, the user's are as they were, and what it did is told."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddplaunch.machine import scratch_tree
from ddplaunch.machine.scratch_tree import NOT_STARTED, changes_in, remove
from ddplaunch.values.variable_names import own_command
from tests.hosts.launching import clean_environment, run_and_read

#: What training scripts do to files, each run in a folder of its own with the files of ``seeded``.
KINDS = {
    "saves": "open('model.pt', 'wb').write(b'new')",
    "replaces": "open('tmp', 'w').write('new'); os.replace('tmp', 'model.pt')",
    "renames": "os.rename('model.pt', 'model.old')",
    "renames a folder": "os.rename('ckpt', 'ckpt.old')",
    "appends": "open('log.csv', 'a').write('new')",
    "writes in the middle": "f = open('model.pt', 'r+b'); f.seek(2); f.write(b'xx'); f.close()",
    "maps": "import mmap; f = open('model.pt', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:2] = b'xx'; m.flush()",
    "writes a database": "import sqlite3; d = sqlite3.connect('runs.db'); d.execute('create table t (a)'); d.commit()",
    "removes a tree": "shutil.rmtree('ckpt')",
    "makes a tree anew": "shutil.rmtree('ckpt'); os.mkdir('ckpt'); open('ckpt/x', 'w').write('new')",
    "links over": "os.unlink('model.pt'); os.symlink('log.csv', 'model.pt')",
    "links and writes": "os.link('model.pt', 'second'); open('second', 'w').write('new')",
    "writes through a link": "open('latest', 'w').write('new')",
    "writes through a link to elsewhere": "open('data/x.bin', 'w').write('new')",
    "removes through a link to elsewhere": "os.unlink('data/x.bin')",
    "removes elsewhere": "shutil.rmtree('../elsewhere')",
    "writes elsewhere": "open('../elsewhere/x.bin', 'a').write('new')",
    "writes elsewhere by an absolute path": "open(os.path.realpath('data') + '/y', 'w').write('new')",
    "lets a program write": "subprocess.run('echo new >> log.csv; rm -rf ckpt', shell=True)",
    "lets a detached program write": "subprocess.run(['setsid', 'sh', '-c', 'rm -r ckpt ../elsewhere'])",
}


def seeded(folder: Path, elsewhere: Path | None = None) -> Path:
    """Make a working tree and what is beside it, or ``elsewhere``; return the tree."""
    tree, elsewhere = folder / "tree", elsewhere or folder / "elsewhere"
    for place in (tree / "ckpt", tree / ".ddplaunch", elsewhere):
        place.mkdir(parents=True)
    names = ("model.pt", "log.csv", "ckpt/first.pt", "ckpt/last.pt")
    for path in (elsewhere / "x.bin", *(tree / name for name in names)):
        path.write_bytes(path.name.encode() * 3)
    (tree / "latest").symlink_to("ckpt/last.pt")
    (tree / "data").symlink_to(elsewhere)
    return tree


def contents(folder: Path) -> dict[str, str]:
    """Return what is there by path: the sum of a file, the goal of a link."""
    found = {}
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            text = str(path.readlink()) if path.is_symlink() else path.is_dir() or hashlib.sha256(path.read_bytes())
            found[str(path.relative_to(folder))] = text if isinstance(text, str) else getattr(text, "hexdigest", str)()
    return found


def run(
    folder: Path, tree: Path, program: str, user: int | None = None, python: str = sys.executable, said: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run ``program`` in a scratch tree below ``folder``, by another ``python`` as another ``user`` (root may)."""
    places = [str(folder / "scratch"), str(tree), str(tree / ".ddplaunch"), str(folder / "temporary")]
    for name in ("scratch", "temporary"):
        (folder / name).mkdir()
    if user is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
    module = shutil.copy(scratch_tree.__file__, folder.parent)  # the other user cannot read where it is
    words = [python, str(module), *places, "--", python, "-c", program]
    return run_and_read(words, tree, clean_environment(), said, user=user, group=user)


@pytest.fixture(params=["overlay", "copy"])
def folder(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder whose working tree gets an overlay where that is possible, or a copy: overlayfs takes no commas.

    It is none of pytest's: every session that begins closes those of all sessions to other users.
    """
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        path = Path(place, "a,b" if request.param == "copy" else "ab")
        path.mkdir()
        yield path


#: Does each kind in the folder of its name, and prints what it was refused.
ALL = """
import json, os, shutil, subprocess, sys
tree, refused = os.getcwd(), {}
for kind, program in json.loads(sys.stdin.read()).items():
    os.chdir(os.path.join(tree, kind, "tree"))
    try:
        exec(program)
    except OSError as error:
        refused[kind] = str(error)
print(json.dumps(refused))
"""


def test_nothing_of_the_user_changes(folder: Path) -> None:
    tree = folder / "all"
    for kind in KINDS:
        seeded(tree / kind, folder / "elsewhere" / kind)
    (tree / ".ddplaunch").mkdir()
    before = {name: contents(folder / name) for name in ("all", "elsewhere")}
    programs = {kind: text.replace("../elsewhere", f"../../../elsewhere/{kind}") for kind, text in KINDS.items()}
    done = run(folder, tree, ALL, said=json.dumps(programs))
    assert {name: contents(folder / name) for name in ("all", "elsewhere")} == before
    refused, told = json.loads(done.stdout), changes_in(folder / "scratch", tree)
    for kind in KINDS:
        written, removed = ([name for name in names if name.startswith(f"{kind}/")] for names in told)
        elsewhere = "elsewhere" in KINDS[kind] or "data" in KINDS[kind]
        if kind == "renames a folder" and kind not in refused:
            assert removed == [f"{kind}/tree/ckpt"] and written[0].startswith(f"{kind}/tree/ckpt.old")
        elif kind == "renames a folder":
            assert os.geteuid() != 0 and "Invalid cross-device link" in refused[kind], "root may, in an overlay"
        else:
            assert elsewhere or written or removed, kind
            assert kind not in refused or elsewhere, refused[kind]
    remove(folder / "scratch")
    assert not (folder / "scratch").exists()


def test_what_was_written_and_removed_is_told(folder: Path) -> None:
    tree = seeded(folder)
    program = (
        "import os, shutil\nopen('model.pt', 'w').write('x'); open('new', 'w'); os.unlink('log.csv')\n"
        "shutil.rmtree('ckpt'); os.mkdir('ckpt'); open('ckpt/first.pt', 'w').write('x')\n"
        "open('.ddplaunch/run.json', 'w').write('{}')"
    )
    assert run(folder, tree, program).stderr == ""
    assert changes_in(folder / "scratch", tree) == (("ckpt/first.pt", "model.pt", "new"), ("ckpt/last.pt", "log.csv"))
    assert (tree / ".ddplaunch" / "run.json").read_text() == "{}", "records are shared"


def test_a_copy_counts_where_an_overlay_was_refused_after_it_was_prepared(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    tree = seeded(folder)
    run(folder, tree, "open('model.pt', 'w').write('x')")
    (folder / "scratch" / "upper").mkdir()
    assert changes_in(folder / "scratch", tree) == (("model.pt",), ())


def test_large_files_and_full_folders_are_read_through_links(tmp_path: Path) -> None:
    folder = tmp_path / "a,b"
    tree = seeded(folder)
    with (tree / "large.pt").open("wb") as file:
        file.truncate(40 << 20)
    (tree / "images").mkdir()
    for number in range(2001):
        (tree / "images" / f"{number}.jpg").touch()
    done = run(folder, tree, "import os; print(os.path.getsize('large.pt'), len(os.listdir('images')), os.getcwd())")
    assert done.stdout.split() == [str(40 << 20), "2001", f"{folder}/scratch/copy/tree"], done.stderr
    assert not list((folder / "temporary").iterdir()) and changes_in(folder / "scratch", tree) == ((), ())


@pytest.mark.root
@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="no Python that all users can run")
def test_an_ordinary_user_changes_nothing_either(folder: Path) -> None:
    tree = seeded(folder)
    program = "import shutil; open('model.pt', 'w').write('x'); shutil.rmtree('ckpt'); shutil.os.unlink('data/x.bin')"
    done = run(folder, tree, program, user=65534, python="/usr/bin/python3")
    assert "Permission denied" in done.stderr, done.stderr
    left = {each.name for each in tree.iterdir()}
    assert left == {".ddplaunch", "ckpt", "data", "latest", "log.csv", "model.pt"}
    assert (folder / "elsewhere" / "x.bin").exists()
    told = changes_in(folder / "scratch", tree)
    assert told == (("model.pt",), ("ckpt",)), "the overlay is had by this user, or the copy"


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    tree = seeded(tmp_path)
    places = [str(tmp_path / "scratch"), str(tree), str(tree), str(tmp_path)]
    words = own_command(sys.executable, "ddplaunch.machine.scratch_tree", *places, "--", "no-such-program")
    (tmp_path / "scratch").mkdir()
    assert subprocess.run(words, cwd=tree, env=clean_environment(), check=False).returncode == NOT_STARTED
    assert "No such file" in (tmp_path / "problem").read_text()
