"""The file of `report --output`: only a new file is written, or an earlier page replaced.

A page begins with a mark. Any other file at that path, such as a training script, has none and is refused before
anything is gathered, unless ``--force`` is given.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ddplaunch.machine.files import open_plain
from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.words import open_flags

_PLAIN = open_flags("NOFOLLOW", "CLOEXEC", "BINARY")


_MARK = b'<!doctype html>\n<html lang="en">\n<head>\n<meta name="generator" content="ddplaunch report">\n'


class OutputFile(NamedTuple):
    """A file that may be written: its real path, and its name as typed. ``output_file`` creates these.

    ``mode`` is that of the existing file, or None.
    """

    path: Path
    named: str
    mode: int | None

    def write(self, text: str) -> None:
        """Write the file atomically, replacing the existing one and keeping its mode. Raises UsageError."""
        draft = self.path.with_name(f".ddplaunch-{os.getpid()}")
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666)
            try:
                with open(descriptor, "wb") as file:
                    file.write(text.encode("utf-8", "backslashreplace"))
                if self.mode is not None:
                    draft.chmod(self.mode)
                draft.replace(self.path)
            except BaseException:
                with contextlib.suppress(OSError):
                    draft.unlink()
                raise
        except OSError as error:
            raise _refused(self.named, f"cannot be written: {error.strerror}") from error


def output_file(named: str, *, force: bool) -> OutputFile | None:
    """Return the file to write; None for ``-``, which is stdout.

    Links are followed. Raises UsageError for anything that is not a regular file, and without ``force`` for an existing
    file that is not a page.
    """
    if named == "-":
        return None
    refused = partial(_refused, named)
    path, folder = Path(os.path.realpath(named)), Path(named).parent
    mode = None
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        if Path(named).is_symlink():
            raise refused("is a link that leads nowhere") from None
        if not folder.is_dir():
            raise refused(f"cannot be written: there is no directory `{folder}`") from None
    except OSError as error:
        raise refused(f"cannot be written: {error.strerror}") from error
    if mode is not None and not stat.S_ISREG(mode):
        raise refused("is not a regular file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise refused(f"cannot be written: `{path.parent}` takes no new files")
    if mode is not None and not force and not _is_page(path):
        raise refused("exists and is not a page of `ddplaunch report`", "`--force` replaces it; or name another file")
    return OutputFile(path, named, None if mode is None else stat.S_IMODE(mode))


def _is_page(path: Path) -> bool:
    """Return whether a file begins like a page; False if it cannot be read."""
    with contextlib.suppress(OSError), open(open_plain(path), "rb") as file:
        return file.read(len(_MARK)) == _MARK
    return False


def _refused(named: str, problem: str, fix: str = "name another file, or `-` for stdout") -> UsageError:
    why = "only a new file is written, or an earlier page"
    return usage(f"`{named}` {problem}", why=why, fix=fix, where="flag: --output", code="output-not-written")
