"""Checks of the data and output paths of a launch, and of the directory of its record."""

from __future__ import annotations

from pathlib import PurePosixPath
from shlex import quote

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.checks.host import GIB, MIB
from ddplaunch.machine.facts import PathFact
from ddplaunch.values.finding import error, warning
from ddplaunch.values.words import size_text

_REMOTE = "nfs nfs4 cifs smb3 smbfs afs 9p davfs"
# Parallel file systems (Lustre, GPFS, BeeGFS, WekaFS) are built for many readers and are not on the list.
_REMOTE_FUSE = "sshfs s3fs gcsfuse rclone goofys blobfuse blobfuse2 mountpoint-s3"
_FULL_BYTES = 100 * MIB
_NO_ROOM_BYTES = 1 << 20  # for the record
_LOW_BYTES = GIB
_LOW_SHARE, _LOW_SHARE_BYTES = 0.02, 20 * GIB
_LOW_INODES = 1000


def data_missing(data_paths: tuple[PathFact, ...]) -> Findings:
    """A data path does not exist.

    Every rank would start, take its GPU and fail at the same line. Remedy: the right path; with several nodes, the
    data must exist on each of them.
    """
    for path in data_paths:
        if path.kind == "missing":
            yield error(
                "data-missing",
                f"data path {quote(path.path)} does not exist",
                why="every rank would fail when it opens it",
                fix=_right_path(path.path),
                where="--data",
            )


def _right_path(path: str) -> str:
    """Return the fix for a missing path; file names may contain commas, so several paths are only suggested."""
    if "," in path:
        options = " ".join(f"--data {quote(part)}" for part in path.split(",") if part)
        return f"`{options}` if these are several paths; `ls {_parent(path.partition(',')[0])}` shows what is there"
    return f"name the right path with `--data`; `ls {_parent(path)}` shows what is there"


def _parent(path: str) -> str:
    """Return the directory above ``path``, quoted for a shell."""
    return quote(str(PurePosixPath(path).parent))


def data_unreadable(data_paths: tuple[PathFact, ...]) -> Findings:
    """A data path exists, but this user may not read it.

    A directory needs the permissions r and x, and every directory above it x. Remedy: ask the owner, or
    `chmod -R a+rX`.
    """
    for path in data_paths:
        if path.kind not in ("missing", "unreachable") and not path.readable:
            owner = f" of {path.owner}" if path.owner else ""
            yield error(
                "data-unreadable",
                f"data path {quote(path.path)}{owner} is not readable for this user",
                why=f"every rank would end in `{path.error or 'Permission denied'}`",
                fix=f"as its owner, `chmod -R a+rX {quote(path.path)}`; `namei -l {quote(path.path)}` shows which "
                "part of the path is closed",
                where="--data",
            )


def data_empty(data_paths: tuple[PathFact, ...]) -> Findings:
    """A data path is an empty directory or file.

    An unfinished download or a missing mount leaves an empty directory; a sampler over it has no samples, and the
    ranks fail with "num_samples=0". Remedy: mount or download the data, or leave `--data` out.
    """
    for path in data_paths:
        if path.empty and path.readable and path.kind in ("file", "directory"):
            yield error(
                "data-empty",
                f"data path {quote(path.path)} is an empty {path.kind}",
                why="a download did not finish or a mount is missing, and the ranks would find no samples",
                fix=f"`findmnt -T {quote(path.path)}` shows its mount; leave `--data` out if the script fills it",
                where="--data",
            )


def data_unreachable(data_paths: tuple[PathFact, ...]) -> Findings:
    """A data path does not answer: a dead mount.

    The server of a network mount is gone, and every process that looks at the path hangs in the kernel, where not even
    SIGKILL ends it. ddplaunch checks the path in a child process with a deadline. Remedy: `umount -l` and mount again.
    """
    yield from _unreachable("data-unreachable", "data path", "--data", data_paths)


def _unreachable(code: str, noun: str, flag: str, paths: tuple[PathFact, ...]) -> Findings:
    for path in paths:
        if path.kind == "unreachable":
            yield error(
                code,
                f"{noun} {quote(path.path)} did not answer{f' ({path.filesystem})' if path.filesystem else ''}",
                why=f"{path.error or 'the deadline passed'}; every rank would hang there and could not be killed",
                fix=f"`sudo umount -l {quote(path.path)}` and mount it again, or name another path",
                where=flag,
            )


def data_on_slow_storage(data_paths: tuple[PathFact, ...]) -> Findings:
    """A data path is on a network mount.

    All ranks and workers read at the same time and in random order, which is slow on such storage: GPUs wait for data.
    Remedy: a copy on a local SSD, or a few large files (shards) that are read from front to back.
    """
    for path in data_paths:
        if path.kind not in ("missing", "unreachable") and is_remote(path.filesystem):
            yield warning(
                "data-on-slow-storage",
                f"data path {quote(path.path)} is on a network mount ({path.filesystem})",
                why="all ranks and DataLoader workers read from it at once, and GPUs wait for data",
                fix=f"copy it to a local SSD: `cp -rL {quote(path.path)} /path/on/local/ssd/`, and pass that copy",
                where="--data",
            )


def is_remote(filesystem: str | None) -> bool:
    """Whether a file system type of /proc/mounts is a general-purpose network mount."""
    kind = filesystem or ""
    return kind in _REMOTE.split() or kind.removeprefix("fuse.") in _REMOTE_FUSE.split()


def output_not_writable(output_paths: tuple[PathFact, ...]) -> Findings:
    """An output path cannot be written.

    The training would run until the first checkpoint and lose it. For a path that does not exist yet, the nearest
    directory above it counts. Remedy: another path, or permission to write.
    """
    for path in output_paths:
        if path.kind != "unreachable" and not path.writable:
            owner = f", it belongs to {path.owner}" if path.owner else ""
            yield error(
                "output-not-writable",
                f"output path {quote(path.path)} cannot be written by this user{owner}",
                why=path.error or "the first checkpoint would be lost",
                fix='name another path, for example `--output "$PWD/out"`; '
                f"`namei -l {quote(path.path)}` shows the permissions",
                where="--output",
            )


def output_unreachable(output_paths: tuple[PathFact, ...]) -> Findings:
    """An output path does not answer: a dead mount.

    A rank that saves a checkpoint there hangs in the kernel while the others wait in a collective until it times out.
    Remedy: `umount -l` and mount again, or another path.
    """
    yield from _unreachable("output-unreachable", "output path", "--output", output_paths)


def disk_nearly_full(output_paths: tuple[PathFact, ...]) -> Findings:
    """The disk of an output path is nearly full.

    `torch.save` on a full disk says "iostream error" or "unexpected pos" and leaves a broken checkpoint.
    Less than 100 MiB free is an error; less than 1 GiB, or less than both 2 % and 20 GiB, a warning. During a run, the
    disks of its outputs and of its record are checked every half minute; less than 1 GiB, less than 5 % of a small
    disk, or fewer than 1000 inodes are reported once. Remedy: free some space, or use another disk.
    """
    for path in output_paths:
        free, total = path.free_bytes, path.total_bytes
        if free is None or total == 0 or not path.writable or path.kind == "unreachable":
            continue
        below_share = total is not None and free < _LOW_SHARE * total and free < _LOW_SHARE_BYTES
        if free >= _LOW_BYTES and not below_share:
            continue
        of_total = f" of {size_text(total)}" if total else ""
        yield (error if free < _FULL_BYTES else warning)(
            "disk-nearly-full",
            f"output path {quote(path.path)} has {size_text(free)}{of_total} free",
            why="`torch.save` on a full disk fails with `unexpected pos` and leaves a broken checkpoint",
            fix=f"`du -xh {_parent(path.path)} | sort -h | tail` shows what takes the space; or name another disk with "
            "`--output`",
            where="--output",
        )


def record_not_writable(record_paths: tuple[PathFact, ...]) -> Findings:
    """The record of the run cannot be written on a host, or its disk is full.

    The output of the ranks there, and why they failed, would be lost. Checked on every host of a launch over ssh. Less
    than 1 MiB free is an error, less than 100 MiB a warning. Remedy: free some space, or keep records in another
    directory with `--run-dir`.
    """
    for path in record_paths:
        name = quote(path.path)
        fix = "`--run-dir DIR` names a place for records that can be written on every host"
        if path.kind == "unreachable" or not path.writable:
            owner = f" (it belongs to {path.owner})" if path.owner else ""
            reason = path.error or f"this user may not write there{owner}, or the file system is read-only"
            what = f"the record of the run cannot be written: {name}"
            yield error("record-not-writable", what, why=f"{reason}; why a rank failed would be lost", fix=fix)
        elif path.free_bytes is not None and path.total_bytes and path.free_bytes < _FULL_BYTES:
            what = f"the record of the run has {size_text(path.free_bytes)} left: {name}"
            why = "what ranks print is kept there, and why they failed"
            yield (error if path.free_bytes < _NO_ROOM_BYTES else warning)(
                "record-not-writable", what, why=why, fix=fix
            )


def output_inodes(output_paths: tuple[PathFact, ...]) -> Findings:
    """The file system of an output path is running out of inodes.

    Each file takes one. When none is free, creating a file fails with "No space left on device" although `df -h` shows
    free space. Remedy: remove many small files (caches, old logs), or use another disk.
    """
    for path in output_paths:
        if path.free_inodes is not None and path.free_inodes < _LOW_INODES and path.writable:
            yield (error if path.free_inodes == 0 else warning)(
                "output-inodes",
                f"output path {quote(path.path)} has {path.free_inodes} inodes free",
                why="each new file takes one; without any, creating a file fails with `No space left on device`",
                fix=f"`du --inodes -x {_parent(path.path)} | sort -n | tail` shows where the many small files are",
                where="--output",
            )


CHECKS = checks_in(globals(), "storage")
