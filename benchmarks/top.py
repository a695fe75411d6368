"""What watching a run costs, in CPU time at a sample a second: ``python -m benchmarks.top``.

A real launch of 8 ranks, each with 4 children, 16 threads and a bar that moves 20 times a second, among further idle
processes; then the CPU time of `top` on a terminal of 120 by 40, and of `top --json` into a pipe, after their
start. Prints a table and writes benchmarks/results/top.json and top.md. With
``--check`` a missed target is exit status 1. There is no GPU in it: what NVML costs comes on top of this.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.publishing import parser, publish
from benchmarks.timing import busy, machine

PROGRAM = str(Path(sys.executable).parent / "ddplaunch")
RANKS, IDLE, TARGET_PERCENT, START_S = 8, 300, 2.0, 4.0
_TICKS = os.sysconf("SC_CLK_TCK")

RANK = """
import os, sys, threading, time
for _ in range(4):
    if os.fork() == 0:
        time.sleep(1000)
for _ in range(15):
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
end, n = time.time() + float(sys.argv[1]), 0
while time.time() < end:
    n += 1
    sys.stderr.write(f"\\r 10%|###       | {n}/100000 [00:05<01:30, 20.00it/s, loss=0.1]")
    sys.stderr.flush()
    time.sleep(0.05)
os.killpg(0, 9)
"""


@dataclass(frozen=True)
class Result:
    """One program: CPU time in percent of one core, and resident memory in MiB."""

    name: str
    cpu_percent: float
    rss_mib: float


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, proc_pid_stat(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measured(pids: Mapping[str, int], span_s: float) -> list[Result]:
    """Return what each process uses over ``span_s``, all at the same time."""
    before = {name: (time.monotonic(), cpu_s(pid)) for name, pid in pids.items()}
    time.sleep(span_s)
    found = []
    for name, pid in pids.items():
        at_s, used_s = before[name]
        percent = 100 * (cpu_s(pid) - used_s) / (time.monotonic() - at_s)
        found.append(Result(name, round(percent, 2), round(rss_mib(pid), 1)))
    return found


@contextmanager
def idle_processes(number: int) -> Iterator[None]:
    """Keep processes around that are no rank's, as on a real machine."""
    others = [subprocess.Popen(["sleep", "1000"]) for _ in range(number)]
    try:
        yield
    finally:
        for each in others:
            each.kill()
            each.wait()


def on_a_terminal(words: list[str], folder: Path) -> int:
    """Start ``words`` on a terminal of 120 by 40 that is read; return the pid."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(words[0], words, {**os.environ, "TERM": "xterm-256color"})
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    threading.Thread(target=_read_all, args=(master,), daemon=True).start()
    return pid


def _read_all(descriptor: int) -> None:
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except OSError:
        return


def measure(span_s: float, folder: Path) -> list[Result]:
    """Launch, watch, and measure."""
    (folder / "train.py").write_text(RANK)
    run = [PROGRAM, "run", str(RANKS), "--device", "cpu", "--run-id", "benchmark-top", "--"]
    with idle_processes(IDLE), (folder / "log").open("wb") as log:
        launch = subprocess.Popen([*run, "train.py", str(span_s + 40)], cwd=folder, stdout=log, stderr=log)
        _until_it_runs(folder)
        seen = on_a_terminal([PROGRAM, "top", "benchmark-top"], folder)
        with (folder / "seen").open("wb") as out:
            piped = subprocess.Popen([PROGRAM, "top", "benchmark-top", "--json"], cwd=folder, stdout=out)
        try:
            time.sleep(START_S)
            pids = {"`top`, terminal": seen, "`top --json`": piped.pid}
            results = measured(pids, span_s)
            ranks = json.loads((folder / "seen").read_text().splitlines()[-1])["ranks"]
            if sum("step_rate" in each and each.get("workers") == 4 for each in ranks) != RANKS:
                raise RuntimeError(f"not all ranks were seen: {ranks}")
            return results
        finally:
            piped.terminate()
            os.kill(seen, 15)
            os.waitpid(seen, 0)
            piped.wait()
            launch.terminate()
            launch.wait()


def _until_it_runs(folder: Path) -> None:
    """Wait until all ranks of the launch run, which its record says."""
    table = folder / ".ddplaunch" / "runs" / "benchmark-top" / "node-0" / "processes.json"
    end = time.monotonic() + 60
    while not table.exists():
        if time.monotonic() > end:
            raise RuntimeError("the launch did not come up")
        time.sleep(0.2)


def report(results: list[Result], span_s: float, others: float) -> str:
    """Return the table as Markdown."""
    about = machine()
    wrong = [each.name for each in results if each.cpu_percent > TARGET_PERCENT]
    return "\n".join(
        [
            "# Watching",
            "",
            f"{about['processor']}; system {about['system']}; Python {about['Python']}; "
            f"ddplaunch {about['ddplaunch']}.",
            f"{RANKS} ranks with 4 children and 16 threads each, {IDLE} other processes, a sample a second, over "
            f"{span_s:.0f} s; other programs",
            f"used {others:.0%} of the CPUs before. No GPU: what NVML costs comes on top.",
            "",
            "| program | % of one core | resident, MiB |",
            "|---|---|---|",
            *(f"| {each.name} | {each.cpu_percent:.2f} | {each.rss_mib:.1f} |" for each in results),
            "",
            f"**Missed**: {', '.join(wrong)} above {TARGET_PERCENT:g} %."
            if wrong
            else f"All kept: at most {TARGET_PERCENT:g} % of one core.",
            "",
        ]
    )


def main() -> int:
    """Measure, print, write; return the exit status."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=30, help="how long to measure")
    arguments = options.parse_args()
    others = busy()
    with tempfile.TemporaryDirectory() as name:
        results = measure(arguments.seconds, Path(name))
    text = report(results, arguments.seconds, others)
    value = {"machine": machine(), "seconds": arguments.seconds, "results": [asdict(each) for each in results]}
    publish("top", text, value, write=not arguments.no_write)
    return 1 if arguments.check and any(each.cpu_percent > TARGET_PERCENT for each in results) else 0


if __name__ == "__main__":
    sys.exit(main())
