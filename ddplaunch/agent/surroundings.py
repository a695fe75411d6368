"""Evidence outside the logs, read when a run has failed: the kernel's and the record's; refuses to judge it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ddplaunch.probes.cgroup import levels
from ddplaunch.probes.files import read

#: The variable with which the plug-in leaves to the guard what ``oom_kills`` was before the run.
OOM_KILLS_BEFORE = "DDPLAUNCH_OOM_KILLS_BEFORE"
_MOST_LINES = 400
_RECORD = re.compile(rb"^\d+,\d+,(\d+),[^;]*;([^\n]*)")


def oom_kills() -> int | None:
    """Return how many processes the kernel has killed for memory in this process's cgroup so far, None if unknown.

    ``oom_kill`` of memory.events, of memory.oom_control with cgroup v1:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files
    """
    found = levels("memory")
    for folder in found.folders:
        for name in ("memory.events", "memory.oom_control"):
            match = re.search(r"^oom_kill (\d+)$", read(f"{folder}/{name}") or "", re.MULTILINE)
            if match:
                return int(match[1])
    return None


def kernel_lines(since_s: float) -> tuple[str, ...]:
    """Return what the kernel has logged since (epoch), where this user may read it; ``/dev/kmsg`` is in its docs:
    https://docs.kernel.org/admin-guide/abi-testing.html (ABI file dev-kmsg).
    """
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    since_boot_us = (since_s - time.time() + time.clock_gettime(time.CLOCK_MONOTONIC)) * 1e6
    lines: list[str] = []
    try:
        while True:
            try:
                match = _RECORD.match(os.read(log, 8192))
            except BrokenPipeError:  # overwritten while it was read: the next one is there
                continue
            if match and int(match[1]) >= since_boot_us:
                lines.append(match[2].decode("utf-8", "replace"))
    except OSError:  # BlockingIOError at the end
        pass
    finally:
        os.close(log)
    return tuple(lines[-_MOST_LINES:])


def space(path: str) -> tuple[int, int] | None:
    """Return free and all bytes of the file system that holds ``path``, None if it cannot be asked."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def run_record(directory: Path | None, node: int) -> Mapping[str, Any]:
    """Return run.json of this node, empty where there is none."""
    for holder in () if directory is None else (directory / f"node-{node}", directory):
        try:
            value = json.loads((holder / "run.json").read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict):
            return value
    return {}
