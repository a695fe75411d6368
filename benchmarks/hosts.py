"""How long the facts of many hosts take, beside plain ssh in the same run: ``python -m benchmarks.hosts``. Needs root.

Every host is a set of namespaces with a real sshd, and all of them, the launcher too, share this machine's CPUs: what a
cluster does side by side is done one after the other here. So beside wall time there is the CPU time of everything,
ssh clients and sshds included, for each host. Prints tables and writes benchmarks/results/hosts.json and hosts.md. With
``--check`` a missed target is exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.timing import TIMEOUT_S, busy, machine
from tests.hosts.launching import clean_environment, ddplaunch
from tests.ssh.lab import Lab, lab

RESULTS = Path(__file__).with_name("results")
COUNTS = (4, 8, 16, 32)
SSH, DOCTOR, DRY = "ssh HOST true, all at once", "ddplaunch doctor --hosts", "ddplaunch run --hosts --dry-run"
TARGET_HOSTS, TARGET_BESIDE_SSH = 32, 1.3
DEAD_DEADLINE_S = 5.0
BUSY_MAX = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Taken:
    """One command once: wall seconds, and CPU seconds of all its processes on all hosts."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Row:
    """One command on a number of hosts: medians over the rounds."""

    command: str
    hosts: int
    wall_s: float
    cpu_per_host_s: float
    beside_ssh: float


def main() -> int:
    """Measure, print, write; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="repetitions of each command")
    parser.add_argument("--most", type=int, default=max(COUNTS), help="leave larger numbers of hosts out")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--busy-ok", action="store_true", help="measure although other programs are running")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("hosts are namespaces with sshds: root is needed")
    others, load = busy(), os.getloadavg()[0]
    if others > BUSY_MAX and not arguments.busy_ok:
        parser.error(f"other programs use {others:.0%} of the CPUs; wait for them, or add --busy-ok")
    counts = [count for count in COUNTS if count <= arguments.most]
    with tempfile.TemporaryDirectory() as folder, lab(max(counts), Path(folder)) as made:
        made.write("train.py", "print('first')\n")
        rows = [row for count in counts for row in measured(made, count, arguments.rounds)]
        dead_s = with_a_dead_host(made)
    text = report(rows, dead_s, arguments.rounds, others, load)
    print(text)
    missed = [row for row in rows if row.hosts == TARGET_HOSTS and row.beside_ssh > TARGET_BESIDE_SSH]
    if not arguments.no_write:
        RESULTS.mkdir(exist_ok=True)
        value = {
            "machine": machine(),
            "others": others,
            "load": load,
            "rounds": arguments.rounds,
            "rows": [asdict(row) for row in rows],
            "dead_host_s": dead_s,
        }
        (RESULTS / "hosts.json").write_text(json.dumps(value, indent=1) + "\n")
        (RESULTS / "hosts.md").write_text(text)
    return 1 if arguments.check and missed else 0


def measured(made: Lab, count: int, rounds: int) -> list[Row]:
    """Run each command in turns, forwards and backwards, after once unmeasured."""
    names = [host.name for host in made.hosts[:count]]
    logins = " ".join(f"ssh -T -o BatchMode=yes {shlex.quote(name)} true &" for name in names)
    listed = ",".join(names)
    size = f"{count}x1"
    commands = {
        SSH: ["sh", "-c", f"{logins} wait"],
        DOCTOR: ddplaunch("doctor", "--hosts", listed),
        DRY: ddplaunch("run", size, "--device", "cpu", "--dry-run", "--hosts", listed, "--", "train.py"),
    }
    taken: dict[str, list[Taken]] = {name: [] for name in commands}
    for name in commands:
        once(made, commands[name])
    for number in range(rounds):
        for name in commands if number % 2 == 0 else reversed(commands):
            taken[name].append(once(made, commands[name]))
    return [
        Row(
            command=name,
            hosts=count,
            wall_s=round(statistics.median(each.wall_s for each in those), 3),
            cpu_per_host_s=round(statistics.median(each.cpu_s for each in those) / count, 3),
            beside_ssh=round(
                statistics.median(ours.wall_s / ssh.wall_s for ours, ssh in zip(those, taken[SSH], strict=True)), 2
            ),
        )
        for name, those in taken.items()
    ]


def once(made: Lab, argv: list[str]) -> Taken:
    """Run a command on the login host. Raises RuntimeError where it fails: its time would mean nothing."""
    before_s = cpu_of_hosts(made)
    children = os.times()
    started = time.perf_counter()
    done = subprocess.run(
        made.login.command(argv, made.work),
        env=clean_environment(),
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    wall_s = time.perf_counter() - started
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{argv[:4]} ended with status {done.returncode}: {done.stderr.decode()[-2000:]}")
    now = os.times()
    own_s = now.children_user + now.children_system - children.children_user - children.children_system
    return Taken(wall_s, own_s + settled(made) - before_s)


def settled(made: Lab) -> float:
    """Return the hosts' CPU time when their sessions have ended, so that all of it is counted."""
    last, until = cpu_of_hosts(made), time.monotonic() + 20
    while time.monotonic() < until:
        time.sleep(0.3)
        now = cpu_of_hosts(made)
        if now == last:
            return now
        last = now
    raise RuntimeError("the sessions of the hosts did not end")


def cpu_of_hosts(made: Lab) -> float:
    """Return the CPU seconds of all sshds and of every process that they waited for: proc_pid_stat(5), 14 to 17."""
    folder = os.fsencode(made.folder)
    total = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if folder in (words := (process / "cmdline").read_bytes()) and b"sshd_config" in words:
                total += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return total / _TICKS


def with_a_dead_host(made: Lab) -> float:
    """Cut off the last host; return how long `doctor` takes for it and three others, with a deadline of 5 s."""
    made.cut(made.hosts[-1])
    names = ",".join(host.name for host in (*made.hosts[:3], made.hosts[-1]))
    argv = ddplaunch("doctor", "--hosts", names, "--join-timeout", f"{DEAD_DEADLINE_S:.0f}s")
    started = time.perf_counter()
    done = made.login.run(argv, made.work, clean_environment())
    if "3 of 4 hosts answered" not in done.stdout:
        raise RuntimeError(f"one host of four is dead, and doctor says: {done.stdout}{done.stderr}")
    return round(time.perf_counter() - started, 2)


def report(rows: list[Row], dead_s: float, rounds: int, others: float, load: float | None) -> str:
    """Return the tables in Markdown; results of older versions do not say the load."""
    at_load = "" if load is None else f", at a load of {load:.1f}"
    about = "; ".join(f"{name} {value}" if name != "processor" else value for name, value in machine().items())
    lines = ["# Facts of many hosts", "", f"{about}.", ""]
    lines += [
        "All hosts, each with its own sshd, and the launcher share these CPUs. "
        f"{rounds} rounds in turns; other programs used {others:.0%} of the CPUs before{at_load}. "
        "CPU is that of ssh clients, sshds and everything they start.",
        "",
        "| hosts | command | wall, s | beside ssh | CPU for each host, s |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.hosts} | `{row.command}` | {row.wall_s:.2f} | {row.beside_ssh:.2f} | {row.cpu_per_host_s:.3f} |"
        )
    found = {(row.hosts, row.command): row for row in rows}
    for command in (DOCTOR, DRY):
        if (most := found.get((TARGET_HOSTS, command))) is not None:
            verdict = "kept" if most.beside_ssh <= TARGET_BESIDE_SSH else "**missed**"
            growth = most.wall_s / found[COUNTS[0], command].wall_s
            lines += ["", f"`{command}` of {TARGET_HOSTS} hosts: {most.beside_ssh:.2f} times as long as plain ssh, at "]
            lines[-1] += f"most {TARGET_BESIDE_SSH}: {verdict}. {TARGET_HOSTS // COUNTS[0]} times the hosts take "
            lines[-1] += f"{growth:.1f} times as long."
    lines += ["", f"Three hosts and one that is cut off, `--join-timeout {DEAD_DEADLINE_S:.0f}s`: {dead_s:.1f} s.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
