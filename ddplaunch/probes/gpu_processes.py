"""Who a process id on a GPU belongs to, from /proc; refuses to ask NVML, to signal, or to judge."""

from __future__ import annotations

import pwd
from pathlib import Path

from ddplaunch.probes.facts import GpuProcess

COMMAND_LENGTH = 160
_LAUNCHERS = ("torchrun", "torch.distributed", "ddplaunch", "pt_elastic")


def gpu_process(pid: int, memory_bytes: int | None, proc: Path = Path("/proc")) -> GpuProcess:
    """Return what /proc tells of ``pid``; nothing but the number if it is gone or in another pid namespace."""
    directory = proc / str(pid)
    return GpuProcess(pid, memory_bytes, _user(directory), _command(directory), _is_orphan(directory, proc))


def _user(directory: Path) -> str | None:
    try:
        uid = directory.stat().st_uid
    except OSError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a container without this user in its /etc/passwd
        return f"uid {uid}"


def _command(directory: Path) -> str | None:
    words = _read(directory / "cmdline").rstrip(b"\0").split(b"\0")
    text = " ".join(word.decode(errors="replace") for word in words).strip()
    if not text:
        name = _read(directory / "comm").decode(errors="replace").strip()
        return f"[{name}]" if name else None
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable if len(printable) <= COMMAND_LENGTH else printable[: COMMAND_LENGTH - 1] + "…"


def _is_orphan(directory: Path, proc: Path) -> bool:
    """Tell whether this is a torchelastic worker that init adopted because its torchrun is gone.

    In a container torchrun itself may be process 1, and then parent 1 is as it should be.
    """
    names = {entry.partition(b"=")[0] for entry in _read(directory / "environ").split(b"\0")}
    if b"TORCHELASTIC_RUN_ID" not in names or _parent(directory) != 1:
        return False
    init = (_read(proc / "1" / "cmdline") + b"\0" + _read(proc / "1" / "comm")).decode(errors="replace")
    return not any(launcher in init for launcher in _LAUNCHERS)


def _parent(directory: Path) -> int | None:
    # The name in parentheses may hold spaces and parentheses itself: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    fields = _read(directory / "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
