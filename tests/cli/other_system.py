"""Makes this interpreter as poor as one on macOS or Windows, then runs ddplaunch: ``other_system.py SYSTEM LINES``.

LINES are JSON, a list of command lines; what each ended with and printed is printed as a line of JSON.

Loaded before: what the standard library and others need of Linux to be imported here.
"""

import asyncio
import builtins
import contextlib
import ctypes
import importlib.abc
import io
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import psutil
import rich.console
import typer.main
import typer.rich_utils
import yaml

sysconfig.get_config_vars()  # from a file that is named after the system
LOADED = (asyncio, io, multiprocessing, shutil, subprocess, tempfile, psutil, rich, typer, yaml)
#: What Python has on Linux alone; https://docs.python.org/3/library/os.html says of each where it is.
LINUX = {
    os: (
        "O_PATH", "eventfd", "memfd_create", "pidfd_open", "posix_fadvise", "sched_getaffinity", "sched_setaffinity",
        "SCHED_IDLE", "waitid", "P_PIDFD", "getresuid",
    ),
    select: ("epoll",),
    signal: ("SIGRTMAX", "SIGRTMIN", "SIGPWR", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo"),
    socket: ("SOCK_SEQPACKET", "SO_PEERCRED", "AF_NETLINK", "SOCK_CLOEXEC"),
}  # fmt: skip
UNIX = {
    os: (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "WNOHANG", "chown", "eventfd_read",
        "fchmod", "fork", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getpgrp", "getsid", "getuid",
        "killpg", "mkfifo", "posix_spawn", "register_at_fork", "setsid", "statvfs", "sysconf", "uname", "wait",
    ),
    select: ("poll",),
    signal: (
        "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGSTOP", "SIGTSTP",
        "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGXCPU", "SIGXFSZ", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "alarm",
        "pthread_sigmask", "setitimer", "SIGTTIN", "SIGTTOU",
    ),
    socket: ("AF_UNIX",),
}  # fmt: skip
MODULES = frozenset({"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"})
AWAY = ("/proc", "/sys", "/dev/shm", "/etc/passwd")


class Missing(importlib.abc.MetaPathFinder):
    """Finds no module that only Unix has."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing, loudly."""
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without_files(function: object) -> object:
    """Return ``function``, whose first argument is a path, as it is where Linux's files are not."""

    def call(path: object = ".", *words: object, **more: object) -> object:
        text = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        if str(text).startswith(AWAY):
            raise FileNotFoundError(2, "No such file or directory", text)
        return function(path, *words, **more)  # type: ignore[operator]

    return call


def without_folders(function: object) -> object:
    """Return ``os.open`` as it is on Windows: folders are not opened, and nothing is opened below one."""

    def call(path: object, *words: object, dir_fd: int | None = None) -> object:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        if Path(path).is_dir():  # type: ignore[arg-type]
            raise PermissionError(13, "Permission denied", path)
        return function(path, *words)  # type: ignore[operator]

    return call


def take(taken: Mapping[ModuleType, Sequence[str]]) -> None:
    """Take these names away from modules, where they are."""
    for module, names in taken.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)


def poorer(system: str) -> None:
    """Take away what ``system`` ("darwin" or "win32") lacks."""
    take(LINUX)
    if system == "win32":
        take(UNIX)
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, Missing())
        os.open = without_folders(os.open)  # type: ignore[assignment]
    for name in ("open", "stat", "lstat", "listdir", "scandir", "readlink", "access"):
        setattr(os, name, without_files(getattr(os, name)))
    builtins.open = without_files(open)  # type: ignore[assignment]
    io.open = builtins.open
    sys.platform = system
    loaded = ctypes.CDLL

    def library(name: object, *words: object, **more: object) -> object:
        if name is None and system == "win32":
            raise TypeError("a library has a name")
        if name is not None and "nvidia" in str(name):
            raise OSError(f"{name}: cannot open shared object file")
        return loaded(name, *words, **more)  # type: ignore[arg-type]

    ctypes.CDLL = library  # type: ignore[assignment, misc]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    poorer(sys.argv[1])
    from ddplaunch.cli.main import main

    for words in json.loads(sys.argv[2]):
        shown = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding, errors="strict")
        try:
            with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
                main(words)
        except SystemExit as end:
            shown.flush()
            text = shown.buffer.getvalue().decode(sys.stdout.encoding)
            print(json.dumps([end.code, text]))
