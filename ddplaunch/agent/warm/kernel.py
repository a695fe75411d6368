"""Calls to the kernel and the C library that Python does not offer, for warm starts."""

from __future__ import annotations

import contextlib
import ctypes
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddplaunch.machine.processes.process_table import read_stat

_PR_SET_NAME = 15
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
#: The fields of /proc/PID/stat with the borders of a process's memory, numbered as in proc(5), in the struct's order.
_BORDERS = (26, 27, 45, 46, 47, None, 28, 48, 49, 50, 51)


class _MemoryMap(ctypes.Structure):
    """``struct prctl_mm_map`` of linux/prctl.h."""

    _fields_ = (
        *((f"border_{number}", ctypes.c_uint64) for number in range(len(_BORDERS))),
        ("auxv", ctypes.c_void_p),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def is_shown_as(name: str, argv: Sequence[str], environ: Mapping[str, str]) -> None:
    """Let `top`, `ps` and /proc show this process as ``name``, started with ``argv`` and ``environ``.

    The name is cut to 15 bytes, as by execve. The arguments and environment stay unchanged if the kernel was built
    without PR_SET_MM_MAP (prctl(2)) or a sandbox forbids it; it needs no privilege.
    """
    _prctl(_PR_SET_NAME, ctypes.c_char_p(os.fsencode(name)[:15]))
    arguments = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    shown = ctypes.create_string_buffer(arguments + variables)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(shown))  # never freed: the kernel reads it until the process ends
    start = ctypes.addressof(shown)
    stat = read_stat(os.getpid())
    if stat is None:
        return
    borders = [libc.sbrk(0) if number is None else stat.field(number) for number in _BORDERS]
    middle = start + len(arguments)
    borders[-4:] = [start, middle, middle, middle + len(variables)]
    memory = _MemoryMap(*borders, None, 0, 0xFFFFFFFF)
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(memory), ctypes.sizeof(memory))


def close_all_but(kept: int) -> None:
    """Close every descriptor except stdin, stdout, stderr and ``kept``, as Popen does for a rank."""
    for number in [int(link.name) for link in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing is already closed
                os.close(number)


def flush_c_streams() -> None:
    """Flush stdio's buffers of C code, which every forked child would otherwise write again."""
    ctypes.CDLL(None).fflush(None)


def fork_on_trial() -> int:
    """Fork without Python 3.12's warning of threads, which comes before the caller can count them after the fork."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _prctl(option: int, *values: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    padded = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *padded) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
