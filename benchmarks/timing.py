"""Wall times of commands, taken in turns so that a drift of the machine falls on all alike."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 120


@dataclass(frozen=True)
class Command:
    """One thing to measure. ``until_line`` stops the clock at the first line of stdout, not at the end.

    ``statuses`` are the exit statuses of a run that counts.
    """

    name: str
    argv: tuple[str, ...]
    until_line: bool = False
    statuses: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Times:
    """What one command took, in seconds, in the order of the rounds."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """First and third quartile in seconds."""
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def in_turns(commands: Sequence[Command], rounds: int, cwd: Path, environment: Mapping[str, str]) -> dict[str, Times]:
    """Run every command once unmeasured, then ``rounds`` times each, one after the other, every second round backwards.

    Raises RuntimeError for a command that ends with another status than it should: its time would mean nothing.
    """
    taken: dict[str, list[float]] = {command.name: [] for command in commands}
    for command in commands:
        once(command, cwd, environment)
    for number in range(rounds):
        for command in commands if number % 2 == 0 else reversed(commands):
            taken[command.name].append(once(command, cwd, environment))
    return {name: Times(tuple(seconds)) for name, seconds in taken.items()}


def once(command: Command, cwd: Path, environment: Mapping[str, str]) -> float:
    """Return the seconds that ``command`` takes to its end, or to its first line of stdout."""
    started = time.perf_counter()
    with subprocess.Popen(
        command.argv, cwd=cwd, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        at_line = time.perf_counter()
        process.stdout.read()
        process.wait(timeout=TIMEOUT_S)
        ended = time.perf_counter()
    if process.returncode not in command.statuses or (command.until_line and not first):
        raise RuntimeError(f"{command.name} ended with status {process.returncode}")
    return (at_line if command.until_line else ended) - started


def imported(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> frozenset[str]:
    """Return the modules that ``argv`` (an interpreter with ``-X importtime``) imports before it ends or becomes
    another program."""
    done = subprocess.run(
        argv, cwd=cwd, env=dict(environment), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return frozenset(line.rpartition("|")[2].strip() for line in lines)


def busy(seconds: float = 3.0) -> float:
    """Return the share of CPU time, 0 to 1, that others use while this process sleeps (Linux, /proc/stat)."""
    before = _cpu_times()
    time.sleep(seconds)
    used, idle = (after - earlier for after, earlier in zip(_cpu_times(), before, strict=True))
    return used / max(1, used + idle)


def _cpu_times() -> tuple[int, int]:
    """Ticks since boot: busy or stolen, and idle or waiting for a disk."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def machine() -> dict[str, str]:
    """Return what a reader has to know of this machine; nothing that names it."""
    cpus = os.sched_getaffinity(0)
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": f"{model}, {len(cpus)} usable CPUs",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "torch": version("torch"),
        "ddplaunch": f"{version('ddplaunch')}, {how_installed()}",
    }


def how_installed() -> str:
    """Return how this environment got the ddplaunch that is measured: the folder of the sources does not count.

    https://packaging.python.org/en/latest/specifications/direct-url/ has what pip and uv note of it.
    """
    places = [place for place in sys.path if place and Path(place).resolve() != ROOT]
    found = next(iter(distributions(name="ddplaunch", path=places)), None)
    if found is None:
        return "not installed"
    noted = json.loads(found.read_text("direct_url.json") or "{}")
    return "installed editable" if noted.get("dir_info", {}).get("editable") else "installed normally"
