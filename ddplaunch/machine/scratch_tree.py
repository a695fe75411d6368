"""``python -m ddplaunch.machine.scratch_tree``: runs a command so that it cannot change the user's files.

The command sees the working tree as it is: through an overlay in its own mount namespace, if the kernel allows this
user one (https://docs.kernel.org/filesystems/overlayfs.html), else as a copy in which large files and large folders are
links. Landlock keeps it from writing anywhere except to the folders it is given
(https://docs.kernel.org/userspace-api/landlock.html). ``changes_in`` reports what it wrote and removed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

#: The exit status if the command was not started.
NOT_STARTED = 125

_NEWNS, _NEWUSER = 0x20000, 0x10000000  # unshare(2)
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x40000  # mount(2)
_NO_NEW_PRIVS = 38  # prctl(2)
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
#: Landlock's rights that change files: all except executing and reading, as of version 3.
_ALL_WRITES = 0x7FF2
_REFER, _TRUNCATE = 0x2000, 0x4000  # added in versions 2 and 3
_OF_FILES = 0x4002
_COPIED_BYTES = 32 << 20  # a larger file is data or a checkpoint: it is linked, and cannot be written
_COPIED_ENTRIES = 2000  # a folder with more entries is a dataset
_MOST_COPIED = 50_000  # files; copying more takes longer than a trial
_LIBC = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (word.encode() for word in (source, target, kind))
    _checked(_LIBC.mount(*words, flags, options.encode()), target)


def lay_over(tree: Path, folder: Path, through: Iterable[Path]) -> None:
    """Show ``tree`` to this process and its children through an overlay that keeps changes in ``folder``/upper.

    Paths of ``through``, which are below ``tree``, are not overlaid. Raises OSError if the kernel does not allow this
    user an overlay.
    """
    uid, gid, working_directory = os.getuid(), os.getgid(), Path.cwd()
    options = f"lowerdir={tree},upperdir={folder / 'upper'},workdir={folder / 'work'}"
    if any(sign in f"{tree}{folder}" for sign in ",:\\"):
        raise OSError(errno.EINVAL, "a comma, colon or backslash in a path", str(tree))
    for name in ("upper", "work"):
        (folder / name).mkdir()
    if uid:
        _checked(_LIBC.unshare(_NEWNS | _NEWUSER), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        options += ",userxattr"
    else:
        _checked(_LIBC.unshare(_NEWNS), "unshare")
    _mount("none", "/", "none", _REC | _PRIVATE)
    open_paths = [(path, os.open(path, os.O_PATH)) for path in (*through, *_mounts_below(tree))]
    try:
        _mount("overlay", str(tree), "overlay", 0, f"{options},redirect_dir=on")
    except OSError:  # redirect_dir may need root; without it, renaming a folder fails with EXDEV
        _mount("overlay", str(tree), "overlay", 0, options)
    for path, descriptor in open_paths:
        _mount(f"/proc/self/fd/{descriptor}", str(path), "none", _BIND | _REC)
        os.close(descriptor)
    os.chdir(working_directory)


def _mounts_below(tree: Path) -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        point = Path(line.split()[4].encode().decode("unicode_escape"))
        if tree in point.parents:
            yield point


def copy(tree: Path, folder: Path, shared: Path) -> None:
    """Copy ``tree`` to ``folder``, large files and folders as links; link its siblings beside the copy.

    ``shared`` is also linked. Raises OSError if there is no space, or if there are more than 50,000 files.
    """
    folder.mkdir(parents=True)
    for sibling in _entries(tree.parent):
        if sibling.name != tree.name:
            (folder.parent / sibling.name).symlink_to(sibling.path)
    _copy(tree, folder, shared, 0)


def _copy(source: Path, target: Path, shared: Path, copied: int) -> int:
    """Copy ``source``; return how many files were copied in total, including the ``copied`` ones before."""
    for entry in _entries(source):
        if copied > _MOST_COPIED:
            raise OSError(errno.EFBIG, f"more than {_MOST_COPIED} files", str(source))
        path, new = Path(entry.path), target / entry.name
        with suppress(FileNotFoundError):
            if _is_copied_folder(entry, shared):
                new.mkdir()
                copied = _copy(path, new, shared, copied)
            elif entry.is_symlink() or (entry.is_file() and entry.stat().st_size <= _COPIED_BYTES):
                shutil.copy2(path, new, follow_symlinks=False)
                copied += 1
            else:
                new.symlink_to(path)
    return copied


def _is_copied_folder(entry: os.DirEntry[str], shared: Path) -> bool:
    if not entry.is_dir(follow_symlinks=False) or entry.name == ".git" or Path(entry.path) == shared:
        return False
    return len(_entries(Path(entry.path))) <= _COPIED_ENTRIES


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def allow_writes_below(folders: Iterable[Path]) -> None:
    """Restrict writes of this process and its children to ``folders`` and below. Raises OSError without Landlock."""
    version = _checked(_LIBC.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock")
    handled = _ALL_WRITES & ~(0 if version > 1 else _REFER) & ~(0 if version > 2 else _TRUNCATE)
    ruleset = _checked(_LIBC.syscall(_CREATE_RULESET, struct.pack("Q", handled), ctypes.c_size_t(8), 0), "landlock")
    for folder in folders:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_PATH)
            rights = handled if stat.S_ISDIR(os.fstat(descriptor).st_mode) else handled & _OF_FILES
            rule = struct.pack("=Qi", rights, descriptor)
            _checked(_LIBC.syscall(_ADD_RULE, ruleset, 1, rule, 0), str(folder))
            os.close(descriptor)
    _checked(_LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _checked(_LIBC.syscall(_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def changes_in(folder: Path, tree: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths in ``tree`` that a command with ``folder`` wrote, and those that it removed."""
    copied, written, removed = folder / "copy" / tree.name, set[str](), set[str]()
    top = copied if copied.is_dir() else folder / "upper"  # upper stays empty if the overlay was refused late
    for place, folders, names in os.walk(top):
        below = Path(place).relative_to(top)
        links = {name for name in folders if Path(place, name).is_symlink()}
        written |= {str(below / name) for name in folders if _has_mark(Path(place, name), "redirect")}
        for name in (*names, *links):
            now = Path(place, name)
            if stat.S_ISCHR(now.lstat().st_mode):  # overlayfs marks removed files by a device 0:0
                removed.add(str(below / name))
            elif not _is_same(now, tree / below / name):
                written.add(str(below / name))
        if top == copied or _has_mark(Path(place), "opaque"):
            original_names = {*folders, *names}
            removed |= {str(below / entry.name) for entry in _entries(tree / below) if entry.name not in original_names}
    return tuple(sorted(written)), tuple(sorted(removed))


def _is_same(path: Path, original: Path) -> bool:
    try:
        old, now = original.lstat(), path.lstat()
    except OSError:
        return False
    if stat.S_ISLNK(now.st_mode):
        goal = path.readlink()
        return goal == original or (stat.S_ISLNK(old.st_mode) and goal == original.readlink())
    return (old.st_mtime_ns, old.st_size) == (now.st_mtime_ns, now.st_size)


def _has_mark(path: Path, mark: str) -> bool:
    """Return whether a folder of an overlay replaces one that was removed ("opaque"), or was renamed ("redirect")."""
    for attributes in ("trusted", "user"):
        with suppress(OSError):
            return bool(os.getxattr(path, f"{attributes}.overlay.{mark}"))
    return False


def remove(folder: Path) -> None:
    """Remove ``folder`` and its contents, as far as possible."""
    with suppress(OSError):
        (folder / "work" / "work").chmod(0o700)  # overlayfs creates it without permissions
    shutil.rmtree(folder, ignore_errors=True)


def main(words: Sequence[str]) -> int:
    """Run ``FOLDER TREE RECORDS TEMPORARY [WRITABLE…] -- COMMAND``; changes to TREE go to FOLDER.

    RECORDS, which may be below TREE, is shared. Returns only if the command was not started; TEMPORARY/problem then
    says why.
    """
    at = words.index("--")
    folder, tree, records, temporary, *writable = map(Path, words[:at])
    os.environ["TMPDIR"] = str(temporary)
    below = [records] if tree in records.parents else []
    try:
        try:
            lay_over(tree, folder, below)
        except OSError:
            copied = folder / "copy" / tree.name
            copy(tree, copied, records)
            os.chdir(copied / Path.cwd().relative_to(tree))
            tree = copied
        allow_writes_below([tree, records, temporary, *writable, *map(Path, ("/dev", "/proc", "/sys"))])
        os.execvp(words[at + 1], list(words[at + 1 :]))
    except OSError as error:
        (temporary / "problem").write_text(f"{error.strerror}: {error.filename}")
        return NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
