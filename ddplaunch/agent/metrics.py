"""The recorder of ``run --record-metrics``: a process beside the guard that writes samples; refuses to judge.

It is a process of its own because NVML may block for seconds where a driver is ill, and nothing that ranks print may
wait for that. It lives as long as its stdin has a writer, the guard, and as its ranks do; a guard that died is followed
by one that starts another recorder.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_EVERY_S = 1.0
_CODE = "import sys; sys.path.append({root!r}); from ddplaunch.agent.metrics import main; main(sys.argv[1])"
_LEFT_OUT = ("DDPLAUNCH_RUN_ID", "DDPLAUNCH_AGENT")  # or it would be taken for a part of the run, and waited for
_PATIENCE_S = 1.0


class Recorder:
    """The guard's side: one recorder at a time."""

    def __init__(self) -> None:
        """Nothing records yet."""
        self._pid = 0
        self._hold = -1

    def start(self, node_directory: str, table: Mapping[str, Any]) -> None:
        """Record the ranks of ``table`` (processes.json) from now on, instead of those before. Never raises."""
        self.end()
        wanted = json.dumps({"directory": node_directory, **{key: table[key] for key in ("host", "attempt", "ranks")}})
        with contextlib.suppress(OSError):
            reader, self._hold = os.pipe()
            actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
                (os.POSIX_SPAWN_DUP2, reader, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ]
            environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
            try:
                self._pid = os.posix_spawn(sys.executable, recorder_argv(wanted), environment, file_actions=actions)
            finally:
                os.close(reader)

    def end(self) -> None:
        """Let it end, and wait a moment until it has: each line is whole, whenever that is."""
        if self._hold >= 0:
            os.close(self._hold)
        pid, self._pid, self._hold = self._pid, 0, -1
        until_s = time.monotonic() + _PATIENCE_S
        with contextlib.suppress(OSError):
            while pid and os.waitpid(pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > until_s:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.002)


def recorder_argv(wanted: str) -> list[str]:
    """Return its command line: with site-packages, unlike the guard, because nvidia-ml-py is there."""
    root = str(Path(__file__).resolve().parents[2])
    cache = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", *cache, "-c", _CODE.format(root=root), wanted]


def main(wanted: str) -> None:
    """Record until stdin ends or no rank runs any more; ``wanted`` is JSON: directory, host, attempt, ranks."""
    os.closerange(3, 4096)  # what the guard reads from is not for us to hold open
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as file:
        file.write("ddplaunch-top")
    record(json.loads(wanted), 0)


def record(wanted: Mapping[str, Any], descriptor: int, every_s: float = _EVERY_S) -> None:
    """Write samples of ``wanted`` until ``descriptor`` is at its end or no rank runs any more."""
    from ddplaunch.probes.gpu_usage import GpuUsage
    from ddplaunch.probes.sampler import Sampler
    from ddplaunch.probes.samples import RankIdentity
    from ddplaunch.records.metrics import MetricsFile, interval_s
    from ddplaunch.records.step_rate import Steps

    directory = Path(wanted["directory"])
    ranks = [
        RankIdentity(each["rank"], each["local_rank"], each["pid"], each["start_time"])
        for each in wanted["ranks"]
        if each["pid"] is not None and each["start_time"] is not None
    ]
    file = MetricsFile(directory)
    steps = Steps(directory / f"attempt-{wanted['attempt']}", [rank.rank for rank in ranks])
    sampler = Sampler(
        ranks, wanted["attempt"], wanted["host"], lambda: steps.progress(time.time()), GpuUsage(), pss=False
    )
    sampler.sample()  # rates begin with the second
    taken, next_s = 0, time.monotonic()
    while file.open:
        next_s = max(next_s + interval_s(taken, every_s), time.monotonic())
        if select.select([descriptor], [], [], next_s - time.monotonic())[0]:
            return
        sample = sampler.sample()
        if not sample.ranks:
            return
        file.add(sample)
        taken += 1
