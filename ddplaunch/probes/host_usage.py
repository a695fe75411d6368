"""What this host as a whole does: CPUs, memory, network and disks, from /proc; refuses to tell processes apart."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from ddplaunch.probes import files
from ddplaunch.probes.cpu import probe_cpu
from ddplaunch.probes.memory import probe_memory
from ddplaunch.probes.samples import HostSample
from ddplaunch.values import Unavailable

_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own is: https://docs.kernel.org/admin-guide/iostats.html
_NO_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd)\d*")  # stacked on disks, or none: they would count twice


class HostUsage:
    """Reads the counters; each call tells what happened since the call before."""

    def __init__(self, root: str = "/") -> None:
        """Read nothing yet but what does not change."""
        self._root = root.rstrip("/")
        self._cpus = probe_cpu(Path(root)).usable
        self._before: dict[str, float] = {}
        self._at_s = 0.0
        self._disks: dict[str, bool] = {}

    def sample(self) -> HostSample:
        """Return the state now and the rates since the last call."""
        now_s = time.monotonic()
        counters = {**self._cpu(), **self._network(), **self._storage()}
        grown = {name: value - self._before[name] for name, value in counters.items() if name in self._before}
        since_s = now_s - self._at_s
        self._before, self._at_s = counters, now_s
        memory = probe_memory(Path(self._root or "/"))
        total, available = (
            (None, None)
            if isinstance(memory, Unavailable)
            else (memory.limit_bytes or memory.total_bytes, memory.available_bytes)
        )
        return HostSample(
            cpus=self._cpus,
            cpu_percent=round(100 * grown["busy"] / grown["all"], 1) if grown.get("all") else None,
            memory_total_bytes=total,
            memory_available_bytes=available,
            received_bytes_s=_rate(grown.get("received"), since_s),
            sent_bytes_s=_rate(grown.get("sent"), since_s),
            disk_read_bytes_s=_rate(grown.get("read"), since_s),
            disk_write_bytes_s=_rate(grown.get("written"), since_s),
        )

    def _cpu(self) -> dict[str, float]:
        """Return ticks of all CPUs, proc_stat(5): idle and iowait are not busy, guests are part of user."""
        line = (files.read(f"{self._root}/proc/stat") or "").partition("\n")[0].split()
        try:
            ticks = [int(word) for word in line[1:9]]
        except ValueError:
            return {}
        return {"all": sum(ticks), "busy": sum(ticks) - sum(ticks[3:5])} if len(ticks) > 4 else {}

    def _network(self) -> dict[str, float]:
        received = sent = 0
        lines = (files.read(f"{self._root}/proc/net/dev") or "").splitlines()[2:]
        for line in lines:
            name, _, rest = line.partition(":")
            words = rest.split()
            if name.strip() != "lo" and len(words) > 8:
                received, sent = received + int(words[0]), sent + int(words[8])
        return {"received": received, "sent": sent} if lines else {}

    def _storage(self) -> dict[str, float]:
        read = written = 0
        lines = (files.read(f"{self._root}/proc/diskstats") or "").splitlines()
        for line in lines:
            words = line.split()
            if len(words) > 9 and self._is_disk(words[2]):
                read, written = read + int(words[5]), written + int(words[9])
        return {"read": read * _SECTOR_BYTES, "written": written * _SECTOR_BYTES} if lines else {}

    def _is_disk(self, name: str) -> bool:
        """Whether it is a whole disk: partitions are not in /sys/block."""
        if name not in self._disks:
            whole = os.path.isdir(f"{self._root}/sys/block/{name}")  # noqa: PTH112 - called for each new name
            self._disks[name] = whole and _NO_DISK.fullmatch(name) is None
        return self._disks[name]


def _rate(grown: float | None, since_s: float) -> float | None:
    return round(grown / since_s) if grown is not None and grown >= 0 and since_s > 0 else None
