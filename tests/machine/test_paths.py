"""Paths: what is there, what is missing, and mounts that never answer (a real one where root can make it)."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.machine import deadline, paths
from ddplaunch.machine.facts import PathFact
from ddplaunch.machine.paths import Role, begin_looks
from ddplaunch.machine.processes.process_table import read_stat
from tests.agent.guarded import open_files, until


def children() -> set[int]:
    """Return the children that run; one that was killed may still wait for its status to be taken."""
    return {
        int(pid)
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if (one := read_stat(int(pid))) is not None and one.alive
    }


def look(path: str, role: Role) -> PathFact:
    return begin_looks([(path, role)], 20)()[0]


def test_files_and_folders_empty_and_full(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a b.bin").write_bytes(b"x")
    (tmp_path / "full/nothing").touch()
    (tmp_path / "bare").mkdir()
    names = ("full", "bare", "full/a b.bin", "full/nothing")
    found = begin_looks([(f"{tmp_path}/{name}", "data") for name in names], 20)()
    kinds = [("directory", False), ("directory", True), ("file", False), ("file", True)]
    assert [(fact.kind, fact.empty) for fact in found] == kinds
    for fact in found:
        assert fact.readable and fact.error is None and fact.filesystem and fact.owner
        assert fact.free_bytes is not None and fact.total_bytes is not None and fact.free_bytes <= fact.total_bytes


def test_of_missing_output_the_nearest_parent_is_described_of_missing_data_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    asked: list[tuple[str, Role]] = [("nope", "data"), ("runs/today/out", "output"), ("file/out", "output")]
    data, output, below = begin_looks([(f"{tmp_path}/{name}", role) for name, role in asked], 20)()
    assert {data.kind, output.kind, below.kind} == {"missing"}
    assert (data.free_bytes, data.writable) == (None, False)
    assert (output.writable, output.error) == (True, None) and output.free_bytes is not None
    assert (below.writable, below.error) == (False, f"{tmp_path}/file is not a directory")


def test_a_pattern_stands_for_its_first_match_and_names_may_be_no_utf8(tmp_path: Path) -> None:
    (tmp_path / "part-0.bin").write_bytes(b"x")
    assert look(f"{tmp_path}/*.bin", "data").kind == "file"
    assert look(f"{tmp_path}/*.txt", "data").kind == "missing"
    (tmp_path / "[raw]").mkdir()
    assert look(f"{tmp_path}/[raw]", "data").kind == "directory"
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    Path(name).touch()
    assert look(name, "data").kind == "file"
    assert look(f"{tmp_path}/\0", "data").kind == "missing"


def test_a_look_that_crashes_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(path: str, role: Role) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL) if role == "output" else 1 / 0
        return {}

    monkeypatch.setattr(paths, "describe_path", crash)
    divided, killed = begin_looks([("/x", "data"), ("/x", "output")], 20)()
    assert divided.error == "ZeroDivisionError: division by zero"
    assert killed.error == "the child process that looked died without an answer"
    answer = deadline.collect([deadline.start(lambda: "x" * 1_000_000)], 20)[0]
    assert answer.value == "x" * 1_000_000, "larger than a pipe"


@pytest.mark.root
def test_a_real_mount_whose_server_never_answers(tmp_path: Path) -> None:
    """A FUSE mount that nobody serves blocks stat(2) exactly as a dead NFS server does."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    target = str(tmp_path / "mnt")
    Path(target).mkdir()
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"dead", target.encode(), b"fuse", 0, options):
        os.close(server)
        pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        before, descriptors = children(), open_files()
        dead, below, alive = begin_looks([(target, "data"), (f"{target}/x", "output"), (str(tmp_path), "data")], 1)()
        assert (dead.kind, below.kind, alive.kind) == ("unreachable", "unreachable", "directory")
        until(lambda: children() <= before, "a busy machine takes a while to end what was killed")
        assert dead.error == "no answer within 1 s" and not open_files() - descriptors
    finally:
        os.close(server)  # ends the connection: the mount now answers ENOTCONN
        gone = look(target, "data")
        libc.umount2(target.encode(), 2)
    assert (gone.kind, gone.filesystem) == ("unreachable", "fuse")


def test_file_system_by_the_longest_prefix(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    mounts = "/dev/sda1 / ext4 rw 0 0\nsrv:/a /data nfs4 rw 0 0\n"
    mounts += "/dev/b /my\\040data xfs rw 0 0\nsrv:/b /data lustre rw 0 0\n"
    (tmp_path / "proc/mounts").write_text(mounts)
    assert paths.filesystem("/datasets/x", tmp_path) == "ext4"
    assert paths.filesystem("/data/x", tmp_path) == "lustre"
    assert paths.filesystem("/my data", tmp_path) == "xfs"
