"""Opens the pipes that ranks write to, or a terminal if the launcher has one.

The rank that is shown as if it ran alone gets the same as the launcher has: a terminal (one for both streams, so that
their order is exact), a pipe, or one pipe if stdout and stderr are one file (``2>&1 | tee``). Every other rank gets two
pipes; so does the shown rank if no terminal can be opened (devpts is not mounted or is full). No rank gets a file,
so that a full disk cannot stop it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import termios
import threading
from collections.abc import Sequence
from typing import Literal, NamedTuple

from ddplaunch.machine.files import is_same_file

Kind = Literal["pipe", "terminal"]

_OUTPUT_FLAGS = 1
_LOCAL_FLAGS = 3


class Outlet(NamedTuple):
    """The two descriptors of one stream: the guard reads from one, the rank writes to the other."""

    read: int
    write: int


def console_kinds(out: int = 1, err: int = 2) -> tuple[Kind, ...]:
    """Return what a rank shown alone gets for the launcher's streams: one outlet if these are one file, else two."""
    kinds: tuple[Kind, Kind] = ("terminal" if os.isatty(out) else "pipe", "terminal" if os.isatty(err) else "pipe")
    return kinds[:1] if is_same_file(out, err) else kinds


def open_outlets(wanted: Sequence[Kind]) -> list[Outlet]:
    """Open one outlet for each kind. Raises OSError, and then leaves none open."""
    opened: list[Outlet] = []
    try:
        for kind in wanted:
            opened.append((_terminal() if kind == "terminal" else None) or Outlet(*os.pipe()))
    except BaseException:
        close(opened)
        raise
    return opened


def _terminal() -> Outlet | None:
    """Open a terminal that passes bytes on unchanged, as the console's terminal processes them; None without a pty.

    It has the size of stdout's. The guard may be too late for a rank's first look, and follows later changes.
    """
    try:
        terminal = Outlet(*os.openpty())
    except OSError:
        return None
    try:
        attributes = termios.tcgetattr(terminal.write)
        attributes[_OUTPUT_FLAGS] &= ~termios.OPOST
        attributes[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ECHONL)
        termios.tcsetattr(terminal.write, termios.TCSANOW, attributes)
    except (OSError, termios.error):
        close([terminal])
        return None
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal.write, termios.TIOCSWINSZ, fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
    return terminal


def path_of(descriptor: int) -> str:
    """Return a path that opens this pipe or terminal again, in this process."""
    return f"/proc/self/fd/{descriptor}"


def close(outlets: Sequence[Outlet]) -> None:
    """Close both ends of each outlet."""
    for outlet in outlets:
        for descriptor in outlet:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def drain(readers: Sequence[int]) -> None:
    """Copy all output from ``readers`` to stdout in threads, because no guard is left to read it."""
    for reader in readers:
        threading.Thread(target=_copy, args=(reader,), daemon=True).start()


def _copy(reader: int) -> None:
    from ddplaunch.values.escapes import HarmlessPieces  # seldom needed

    os.set_blocking(reader, True)  # the guard made it non-blocking
    pieces = HarmlessPieces() if os.isatty(1) else None
    with contextlib.suppress(OSError):  # EIO: the other side of the terminal is closed
        while data := os.read(reader, 1 << 16):
            data = data if pieces is None else pieces.feed(data)
            with contextlib.suppress(OSError):  # the console is gone; the ranks go on
                while data:
                    data = data[os.write(1, data) :]
