"""What capturing costs a rank, against ``torchrun --tee 3`` in the same run: ``python -m benchmarks.capture``.

Two things: how many lines a second ranks print without pause, until the last one is on the console, and how long one
line takes from ``print`` to the console. Prints a table and writes benchmarks/results/capture.json and capture.md. With
``--check`` a missed target is exit status 1. Needs an otherwise idle machine; compare within one run only.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.publishing import parser, publish
from benchmarks.timing import TIMEOUT_S, busy, machine

BIN = Path(sys.executable).parent
LINES, TIMED_LINES = 200_000, 200
LATENCY_MAX_MS = 20.0
BUSY_MAX = 0.1

LOUD = f"""
import time
began = time.perf_counter()
for number in range({LINES}):
    print("step", number, "loss 0.12345 lr 0.00030 tokens/s 12345")
print("PRINTED", began, time.perf_counter())
"""
# A pause that no poll can fall into step with.
TIMED = f"""
import random, time
for _ in range({TIMED_LINES}):
    time.sleep(random.uniform(0.01, 0.05))
    print("TIMED", time.perf_counter())
"""


@dataclass(frozen=True)
class Way:
    """One way to launch ``ranks`` ranks; ``argv`` goes before the script."""

    name: str
    ranks: int
    argv: tuple[str, ...]


def ways() -> list[Way]:
    """Return what is compared, plain torchrun before ours for each number of ranks."""
    torchrun, run = str(BIN / "torchrun"), str(BIN / "ddplaunch")
    found = []
    for ranks in (1, 4):
        tee = (torchrun, "--standalone", f"--nproc-per-node={ranks}", "--tee", "3")
        ours = (run, "run", str(ranks), "--show", "all" if ranks > 1 else "0", "--")
        found.append(Way(f"torchrun --tee 3, {ranks} ranks", ranks, tee))
        found.append(Way(f"ddplaunch run --show {ours[4]}, {ranks} ranks", ranks, ours))
    return found


def lines_of(way: Way, script: Path, environment: Mapping[str, str]) -> list[tuple[float, bytes]]:
    """Run ``script`` and return when each marked line came (time.perf_counter(), which Linux shares among processes).

    Raises RuntimeError if it fails or loses lines.
    """
    found: list[tuple[float, bytes]] = []
    count, rest = 0, b""
    with subprocess.Popen(
        [*way.argv, str(script)],
        cwd=script.parent,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        while data := os.read(process.stdout.fileno(), 1 << 18):
            now = time.perf_counter()
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            count += len(lines)
            marked = lines if len(lines) < 50 else [line for line in lines if b"PRINTED" in line]
            found += [(now, line) for line in marked if b"PRINTED" in line or b"TIMED" in line]
        process.wait(TIMEOUT_S)
    expected = way.ranks * (LINES + 1) if script.name == "loud.py" else way.ranks * TIMED_LINES
    if process.returncode or count != expected:
        raise RuntimeError(f"{way.name}: status {process.returncode}, {count} lines instead of {expected}")
    return found


def speed(way: Way, folder: Path, environment: Mapping[str, str]) -> tuple[float, float]:
    """Return lines a second of all ranks together: as the ranks see it, and until the last is on the console."""
    found = lines_of(way, folder / "loud.py", environment)
    spans = [tuple(map(float, line.split()[-2:])) for _, line in found]
    began = min(span[0] for span in spans)
    total = way.ranks * LINES
    return total / (max(span[1] for span in spans) - began), total / (max(at for at, _ in found) - began)


def latencies_ms(way: Way, folder: Path, environment: Mapping[str, str]) -> list[float]:
    """Return how long each timed line took to the console."""
    return [(at - float(line.split()[-1])) * 1000 for at, line in lines_of(way, folder / "timed.py", environment)]


@dataclass(frozen=True)
class Result:
    """One way's numbers: medians over the rounds of lines a second, percentiles of latencies in ms."""

    name: str
    ranks_lines_s: float
    console_lines_s: float
    latency_p50_ms: float
    latency_p99_ms: float


def measure(rounds: int, folder: Path, environment: Mapping[str, str]) -> list[Result]:
    """Take turns, every second round backwards, so that a drift of the machine falls on all alike."""
    compared = ways()
    speeds: dict[str, list[tuple[float, float]]] = {way.name: [] for way in compared}
    delays: dict[str, list[float]] = {way.name: [] for way in compared}
    for number in range(rounds):
        for way in compared if number % 2 == 0 else reversed(compared):
            speeds[way.name].append(speed(way, folder, environment))
            delays[way.name] += latencies_ms(way, folder, environment)
    return [
        Result(
            way.name,
            statistics.median(each[0] for each in speeds[way.name]),
            statistics.median(each[1] for each in speeds[way.name]),
            statistics.median(delays[way.name]),
            statistics.quantiles(delays[way.name], n=100, method="inclusive")[98],
        )
        for way in compared
    ]


def missed(results: Sequence[Result]) -> list[str]:
    """Return the promises that do not hold: as fast as ``--tee``, and a line well before its poll of 100 ms."""
    found = []
    for tee, ours in zip(results[::2], results[1::2], strict=True):
        if ours.console_lines_s < tee.console_lines_s:
            found.append(f"{ours.name}: fewer lines/s on the console than {tee.name}")
        if ours.latency_p99_ms > LATENCY_MAX_MS:
            found.append(f"{ours.name}: p99 latency above {LATENCY_MAX_MS:.0f} ms")
    return found


def report(results: Sequence[Result], rounds: int, others: float) -> str:
    """Return the table as Markdown."""
    about = machine()
    head = f"{about['processor']}; system {about['system']}; Python {about['Python']}; torch {about['torch']}"
    rows = [
        f"| `{each.name}` | {each.ranks_lines_s:,.0f} | {each.console_lines_s:,.0f} "
        f"| {each.latency_p50_ms:.2f} | {each.latency_p99_ms:.2f} |"
        for each in results
    ]
    wrong = missed(results)
    return "\n".join(
        [
            "# Capture",
            "",
            f"{head}; ddplaunch {about['ddplaunch']}.",
            f"{rounds} rounds in turns; other programs used {others:.0%} of the CPUs before. {LINES:,} lines of each",
            f"rank without pause, and {TIMED_LINES} with pauses of 10 to 50 ms; the console is a pipe that is read.",
            "",
            "| way | lines/s, ranks | lines/s, console | latency p50, ms | latency p99, ms |",
            "|---|---|---|---|---|",
            *rows,
            "",
            *(f"**Missed**: {each}." for each in wrong),
            *([] if wrong else [f"All kept: as fast as `--tee 3`, p99 latency at most {LATENCY_MAX_MS:.0f} ms."]),
            "",
        ]
    )


def main() -> int:
    """Measure, print, write; return the exit status."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=7, help="repetitions of each way")
    options.add_argument("--busy-ok", action="store_true", help="measure although other programs are running")
    arguments = options.parse_args()
    others = busy()
    if others > BUSY_MAX and not arguments.busy_ok:
        options.error(f"other programs use {others:.0%} of the CPUs; wait for them, or add --busy-ok")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PET_", "DDPLAUNCH_"))}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loud.py").write_text(LOUD)
        (folder / "timed.py").write_text(TIMED)
        results = measure(arguments.rounds, folder, environment)
    text = report(results, arguments.rounds, others)
    value = {"machine": machine(), "rounds": arguments.rounds, "results": [asdict(each) for each in results]}
    publish("capture", text, value, write=not arguments.no_write)
    return 1 if arguments.check and missed(results) else 0


if __name__ == "__main__":
    sys.exit(main())
