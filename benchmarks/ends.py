"""Ends launches of five small programs again and again, in turns plain, cold and warm, and counts how ranks ended.

    python -m benchmarks.ends --minutes 60 --busy 4
    python -m benchmarks.ends --ends 1000 --ranks 4 --only destroys

An end is a rank's. torchrun ends the other ranks of a launch as soon as one has failed, so a launch counts once,
whatever became of its other ranks; one that ended well counts for as many ends as it has ranks. Ways take turns, each
round begins with another one, and ``--busy`` processes keep the CPUs occupied meanwhile. The table goes to
benchmarks/results/ends.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from benchmarks.timing import machine
from tests.hosts.launching import run_to_end

RESULTS = Path(__file__).with_name("results") / "ends.md"
DEADLINE_S = 300
_IMPORT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
"""
_BEGIN = """
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
"""
_TRAIN = """
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
_LOAD = """
loader = iter(torch.utils.data.DataLoader(list(range(64)), batch_size=2, num_workers=2, persistent_workers=True))
next(loader)
"""


def _program(*parts: str) -> str:
    """Return a program of ``parts``; only its imports are read again where Python 3.14 starts DataLoader workers."""
    return f"{_IMPORT}if __name__ == '__main__':\n{textwrap.indent(''.join(parts), '    ')}"


_DESTROY = "dist.destroy_process_group()\n"
_RAISE = "dist.all_reduce(torch.ones(1 << 16), async_op=True)\nraise ValueError('no')\n"
#: By name: the program, and the exit status with which its launch is to end.
PROGRAMS = {
    "destroys its group": (_program(_BEGIN, _TRAIN, _DESTROY), 0),
    "leaves its group": (_program(_BEGIN, _TRAIN), 0),
    "DataLoader workers": (_program(_BEGIN, _LOAD, _TRAIN, _DESTROY), 0),
    "torch.compile": (_program(_BEGIN, "model = torch.compile(model)\n", _TRAIN, _DESTROY), 0),
    "exception": (_program(_BEGIN, _TRAIN, _RAISE), 1),
}
WAYS = {
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{ranks}"),
    "cold": ("-m", "ddplaunch", "run", "{ranks}", "--device", "cpu", "--"),
    "warm": ("-m", "ddplaunch", "run", "{ranks}", "--device", "cpu", "--start", "warm", "--"),
}


def one(way: str, ranks: int, script: Path, expected: int) -> str:
    """Launch once; return "ok" or how it ended."""
    words = [word.format(ranks=ranks) for word in WAYS[way]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory(dir=script.parent) as folder:
        status, said = run_to_end([sys.executable, *words, str(script)], Path(folder), environment, DEADLINE_S)
    if status is None:
        return f"hung for {DEADLINE_S} s"
    if "without an active exception" in said or "exitcode  : -6" in said or "SIGABRT" in said:
        return "aborted"
    if way == "warm" and ("start warm" not in said or "cold start" in said):
        return "not warm"
    return "ok" if status == expected else f"status {status}"


def table(counts: dict[tuple[str, str], collections.Counter[str]], about: str, ranks: int) -> str:
    """Return the table of all programs and ways."""
    lines = ["# How ranks end", "", about, ""]
    lines += ["| program | " + " | ".join(WAYS) + " |", "|---" * (len(WAYS) + 1) + "|"]
    for program in PROGRAMS:
        cells = []
        for way in WAYS:
            found = counts[program, way]
            wrong = [f"{number} {how}" for how, number in found.most_common() if how != "ok"]
            said = f"{', '.join(wrong) or 'all right'} of {sum(found.values())}, {found['ok'] * ranks} ends well"
            cells.append(said if found else "not tried")
        lines.append(f"| {program} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Launch until the time is over or each way has its ends; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ends", type=int, default=1000, help="of ranks, for each program and way")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--only", default="", help="programs whose name contains it")
    parser.add_argument("--ways", default=",".join(WAYS), help="of launching, with commas [all]")
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    began, loads, ways = time.monotonic(), [os.getloadavg()[0]], [way for way in WAYS if way in options.ways.split(",")]
    chosen = {name: each for name, each in PROGRAMS.items() if options.only in name}
    text = ""
    try:
        with tempfile.TemporaryDirectory(prefix="ddplaunch-ends-") as name:
            for number in range(-(-options.ends // options.ranks)):
                for place, (program, (source, expected)) in enumerate(chosen.items()):
                    script = Path(name, f"program{place}.py")
                    script.write_text(source)
                    for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                        if time.monotonic() - began < options.minutes * 60:
                            counts[program, way][one(way, options.ranks, script, expected)] += 1
                            loads.append(os.getloadavg()[0])
                about = (
                    f"`python -m benchmarks.ends`: launches of {options.ranks} ranks with gloo beside "
                    f"{options.busy} busy processes, {(time.monotonic() - began) / 60:.0f} minutes, "
                    f"load {min(loads):.0f} to {max(loads):.0f}. {json.dumps(machine())}"
                )
                text = table(counts, about, options.ranks)
                if not options.no_write:
                    RESULTS.write_text(text, encoding="utf-8")
                if time.monotonic() - began > options.minutes * 60:
                    break
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    print(text)


if __name__ == "__main__":
    main()
