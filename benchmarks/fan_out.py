"""A launch on up to 1,000 hosts, simulated: ``python -m benchmarks.fan_out``.

The launcher is the real one, `ddplaunch run NxM --hosts …` from its command line to its exit status, with a real child
process and real pipes for each host. The hosts are scripted by one other process (``scripted_hosts``): they log in,
answer, train, print, fail and end after latencies that the report states. What ssh itself costs is not in it:
``benchmarks.hosts`` measures that. Writes benchmarks/results/fan_out.json and fan_out.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.scripted_hosts import Hosts, Script, Seen
from benchmarks.timing import busy, machine
from tests.hosts.launching import clean_environment

RESULTS = Path(__file__).with_name("results")
COUNTS = (10, 100, 300, 1000)
_SAMPLE_S = 0.25
_TICKS = os.sysconf("SC_CLK_TCK")
_MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """The launcher at one time: CPU seconds so far, resident bytes, open files, child processes."""

    at_s: float
    cpu_s: float
    rss: int
    files: int


@dataclass(frozen=True)
class Row:
    """One launch. Seconds count from the first session, and of an end from the failure of one host."""

    hosts: int
    facts_s: float
    first_start_s: float
    all_started_s: float
    start_cpu_s: float
    steady_cpu_percent: float
    rss_mib: float
    files: int
    all_told_s: float
    done_s: float
    end_cpu_s: float
    hosts_cpu_s: float
    status: int


@dataclass(frozen=True)
class Gated:
    """Facts of hosts that are all behind one sshd with MaxStartups 10:30:100."""

    hosts: int
    facts_s: float
    sessions: int
    dropped: int
    status: int


class Watch:
    """Looks at the launcher now and then."""

    def __init__(self, play: Hosts, pid: int) -> None:
        self.play, self.pid = play, pid
        self.samples: list[Sample] = []
        self.look()

    def look(self) -> None:
        """Take a sample, and another one later."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            files = len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 - only their number
        except OSError:
            return
        cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
        self.samples.append(Sample(time.monotonic(), cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), files))
        self.play.after(_SAMPLE_S, self.look)

    def cpu_at(self, at_s: float) -> float:
        """Return the CPU seconds until then."""
        before = [each for each in self.samples if each.at_s <= at_s]
        return before[-1].cpu_s if before else 0.0


def main() -> int:
    """Simulate, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=max(COUNTS), help="leave larger numbers of hosts out")
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--keep", metavar="DIR", help="keep what the launchers said in this directory")
    arguments = parser.parse_args()
    others, load = busy(), os.getloadavg()[0]
    counts = [count for count in COUNTS if count <= arguments.most]
    with tempfile.TemporaryDirectory() as folder:
        rows = [launched(count, Path(folder)) for count in counts]
        gated = [through_one_gate(count, Path(folder)) for count in counts]
        if arguments.keep:
            shutil.copytree(folder, arguments.keep, dirs_exist_ok=True)
    text = report(rows, gated, others, load)
    print(text)
    if not arguments.no_write:
        value = {
            "machine": machine(),
            "others": others,
            "load": load,
            "script": asdict(Script()),
            "launches": [asdict(row) for row in rows],
            "behind_one_gate": [asdict(row) for row in gated],
        }
        (RESULTS / "fan_out.json").write_text(json.dumps(value, indent=1) + "\n")
        (RESULTS / "fan_out.md").write_text(text)
    return 0


def played(count: int, cwd: Path, script: Script, *words: str) -> tuple[Seen, Watch, int, tuple[float, float]]:
    """Run a launcher against ``count`` scripted hosts; return what was seen, its status, when it began and ended."""
    cwd.mkdir()
    (cwd / "train.py").write_text("print('first')\n")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    hosts = ",".join(f"h{number}" for number in range(count))
    argv = [sys.executable, "-m", "benchmarks.scripted_ssh", str(there.fileno())]
    begun_s = time.monotonic()
    with open(cwd / "out", "wb") as out, open(cwd / "err", "wb") as err, here, there:
        process = subprocess.Popen(
            [*argv, "run", f"{count}x8", "--hosts", hosts, *words, "--", "train.py"],
            cwd=cwd,
            env=clean_environment(PYTHONPATH=str(Path(__file__).parents[1])),
            pass_fds=(there.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        there.close()
        play = Hosts(here, count, script)
        watch = Watch(play, process.pid)
        seen = play.serve()
        status = process.wait(60)
    return seen, watch, status, (begun_s, time.monotonic())


def launched(count: int, folder: Path) -> Row:
    """Launch on ``count`` hosts, of which one fails after a while."""
    before = os.times()
    seen, watch, status, (_, ended_s) = played(count, folder / f"run-{count}", Script(), "--run-id", f"sim-{count}")
    now = os.times()
    if len(seen.ended) != count:
        said = (folder / f"run-{count}" / "err").read_text()
        raise RuntimeError(f"{len(seen.ended)} of {count} hosts ended a run, and it said: {said[-3000:]}")
    all_started_s = max(seen.launched)
    steady_s = seen.failed_s - all_started_s
    steady_cpu_s = watch.cpu_at(seen.failed_s) - watch.cpu_at(all_started_s + _SAMPLE_S)
    return Row(
        hosts=count,
        facts_s=round(max(seen.answered) - seen.first_session_s, 2),
        first_start_s=round(min(seen.launched) - seen.first_session_s, 2),
        all_started_s=round(all_started_s - seen.first_session_s, 2),
        start_cpu_s=round(watch.cpu_at(all_started_s + _SAMPLE_S), 2),
        steady_cpu_percent=round(100 * steady_cpu_s / (steady_s - _SAMPLE_S), 1),
        rss_mib=round(max(each.rss for each in watch.samples) / _MIB, 1),
        files=max(each.files for each in watch.samples),
        all_told_s=round(max(seen.told) - seen.failed_s, 2),
        done_s=round(ended_s - seen.failed_s, 2),
        end_cpu_s=round(watch.samples[-1].cpu_s - watch.cpu_at(seen.failed_s), 2),
        hosts_cpu_s=round(now.user + now.system - before.user - before.system, 2),
        status=status,
    )


def through_one_gate(count: int, folder: Path) -> Gated:
    """Ask hosts that are all behind one sshd which drops connections while many log in."""
    seen, _, status, _ = played(
        count, folder / f"gate-{count}", Script(gate=True), "--dry-run", "--join-timeout", "60s"
    )
    facts_s = round(max(seen.answered, default=float("nan")) - seen.first_session_s, 2)
    return Gated(len(seen.answered), facts_s, seen.sessions, seen.dropped, status)


def report(rows: list[Row], gated: list[Gated], others: float, load: float) -> str:
    """Return the tables in Markdown."""
    about = "; ".join(f"{name} {value}" if name != "processor" else value for name, value in machine().items())
    lines = ["# A simulated launch on many hosts", "", f"{about}. "]
    lines[-1] += f"Other programs used {others:.0%} of the CPUs before, at a load of {load:.1f}."
    lines += [""]
    lines += [conditions(Script()), ""]
    lines += [
        "| hosts | facts, s | first start, s | all started, s | CPU, s | CPU while it runs | memory | open files |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row.hosts, row.facts_s, row.first_start_s, row.all_started_s, row.start_cpu_s)
        lines.append(_line(*cells, f"{row.steady_cpu_percent}%", f"{row.rss_mib:.0f} MiB", row.files))
    lines += ["", "| hosts | all told to end, s after the failure | all ended and recorded, s | CPU, s |"]
    lines += ["|---|---|---|---|", *(_line(row.hosts, row.all_told_s, row.done_s, row.end_cpu_s) for row in rows), ""]
    lines += ["All behind one sshd with `MaxStartups 10:30:100`:", ""]
    lines += ["| hosts that answered | facts, s | connections | dropped |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_line(each.hosts, each.facts_s, each.sessions, each.dropped) for each in gated), ""])


def conditions(script: Script) -> str:
    """Say what is real, and how long scripted hosts take."""
    return (
        "The launcher is real, with a child process and pipes for each host; the hosts are one process, which shares "
        f"these CPUs. Medians of their latencies: {script.login_s} s to log in ({script.slow:.0%} take three times as "
        f"long), {script.facts_s} s for facts, {script.end_s} s to end, {1000 * script.round_trip_s:.0f} ms for a "
        f"round trip; the logarithms vary normally by {script.spread}. Rank 0 prints {script.lines_per_s:.0f} lines a "
        f"second. One host fails {script.train_s:.0f} s after the last start."
    )


def _line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
