"""The storage family, on described paths and on real ones."""

from __future__ import annotations

import dataclasses
from typing import Any

from ddplaunch.machine.facts import PathFact
from tests.checks.cases import fires, in_doctor, judged, silent
from tests.checks.healthy import GIB

MIB = 1024**2
NOT_THERE = ("missing", "unreachable")
FAST = ("ext4", "xfs", "lustre", "gpfs", "beegfs", "fuse.juicefs", "tmpfs")
SLOW = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "davfs", "sshfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse",
    "fuse.rclone", "fuse.goofys", "fuse.blobfuse", "fuse.blobfuse2", "fuse.mountpoint-s3",
)  # fmt: skip
GOOD = PathFact("/data/my text", "directory", True, True, False, 800 * GIB, 1000 * GIB, 10**7, "ext4")


def data(**replace: Any) -> dict[str, Any]:
    return {"data_paths": (dataclasses.replace(GOOD, **replace),)}


def output(**replace: Any) -> dict[str, Any]:
    return {"output_paths": (dataclasses.replace(GOOD, **replace),)}


def record(**replace: Any) -> dict[str, Any]:
    return {"record_paths": (dataclasses.replace(GOOD, path=".ddplaunch", **replace),)}


FIRES = (
    fires("data-missing", "'/data/my text' does not exist", **data(kind="missing", readable=False)),
    fires("data-missing", "; `ls '/my data'` shows", **data(path="/my data/text/", kind="missing", readable=False)),
    fires(
        "data-missing",
        "`--data /a --data '/b c'` if these are several paths; `ls /` ",
        **data(path="/a,/b c", kind="missing", readable=False),
    ),
    fires("data-unreadable", "of eve is not readable … Permission denied", **data(readable=False, owner="eve")),
    fires("data-empty", "is an empty directory", **data(empty=True)),
    fires("data-empty", "is an empty file", **data(kind="file", empty=True)),
    fires("data-unreachable", "did not answer (nfs4)", **data(kind="unreachable", filesystem="nfs4")),
    fires("data-on-slow-storage", "`cp -rL '/data/my text' /path", "warning", **data(filesystem="nfs4")),
    *(fires("data-on-slow-storage", f"mount ({kind})", "warning", **data(filesystem=kind)) for kind in SLOW),
    fires("output-not-writable", "belongs to root … EROFS", **output(writable=False, owner="root", error="EROFS")),
    fires("output-unreachable", "did not answer … EIO; every", **output(kind="unreachable", error="EIO")),
    fires("disk-nearly-full", "50 MiB of 1000 GiB free", **output(free_bytes=50 * MIB)),
    fires("disk-nearly-full", "15 GiB of 1000 GiB free", "warning", **output(free_bytes=15 * GIB)),
    fires("output-inodes", "12 inodes free", "warning", **output(free_inodes=12)),
    fires("output-inodes", "0 inodes free", **output(free_inodes=0)),
    fires("record-not-writable", "cannot be written: .ddplaunch … EROFS; why", **record(writable=False, error="EROFS")),
    fires("record-not-writable", "the record of the run has 4 KiB left", **record(free_bytes=4096)),
    fires("record-not-writable", "has 50 MiB left", "warning", **record(free_bytes=50 * MIB)),
)
SILENT = (
    silent("data-missing", **data()),
    silent("data-unreadable", **data(kind="missing", readable=False)),
    silent("data-unreadable", **data(kind="unreachable", readable=False)),
    silent("data-empty", **data(empty=True, readable=False)),
    *(silent("data-empty", **data(kind=kind, empty=True)) for kind in NOT_THERE),
    silent("data-unreachable", **data(filesystem="nfs4")),
    *(silent("data-on-slow-storage", **data(filesystem=kind)) for kind in (None, *FAST)),  # built for it
    *(silent("data-on-slow-storage", **data(kind=kind, filesystem="nfs4")) for kind in NOT_THERE),
    silent("output-not-writable", **output(kind="unreachable", writable=False)),
    silent("output-not-writable", **output(kind="missing", writable=True)),
    silent("output-unreachable", **output(kind="missing")),
    silent("disk-nearly-full", **output(free_bytes=GIB, total_bytes=10 * GIB)),
    silent("disk-nearly-full", **output(free_bytes=20 * GIB, total_bytes=20_000 * GIB)),
    silent("disk-nearly-full", **output(free_bytes=None, total_bytes=None)),
    silent("disk-nearly-full", "nothing is known of its size", **output(free_bytes=0, total_bytes=0)),
    silent("disk-nearly-full", "another check says it", **output(kind="unreachable", free_bytes=0)),
    silent("output-inodes", **output(free_inodes=None, filesystem="btrfs")),
    silent("output-inodes", "another check says it", **output(free_inodes=0, writable=False)),
    silent("record-not-writable", "nothing is known of its size", **record(free_bytes=0, total_bytes=0)),
)


test_in_a_launch_and_in_doctor = judged(*FIRES, *SILENT, *in_doctor(*FIRES, *SILENT))
