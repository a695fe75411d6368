"""Who a process id on a GPU belongs to, from /proc; refuses to ask NVML, to signal, or to judge."""

from __future__ import annotations

import pwd
from pathlib import Path

from ddplaunch.probes.facts import GpuProcess

COMMAND_LENGTH = 160


def gpu_process(pid: int, memory_bytes: int | None, proc: Path = Path("/proc")) -> GpuProcess:
    """Return what /proc tells of ``pid``; nothing but the number if it is gone or in another pid namespace."""
    directory = proc / str(pid)
    return GpuProcess(pid, memory_bytes, _user(directory), _command(directory), _is_orphan(pid, proc))


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


def _is_orphan(pid: int, proc: Path) -> bool:
    """Tell whether this is a rank, or a DataLoader worker of one, whose parent now is whoever adopts orphans.

    In a container torchrun itself may be process 1, and then parent 1 is as it should be.
    """
    from ddplaunch.probes.orphans import adopts_orphans  # not needed where GPUs are idle
    from ddplaunch.probes.process_table import read_process
    from ddplaunch.probes.run_processes import is_launcher

    process = read_process(pid, str(proc))
    if process is None or (process.mark("TORCHELASTIC_RUN_ID") or process.mark("CROSS_RANK")) is None:
        return False
    parent = read_process(process.parent, str(proc))
    return parent is not None and not is_launcher(parent) and adopts_orphans(parent, str(proc))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
