"""Launches warm ranks again and again, and counts hangs, wrong ends and what is left behind.

    python -m benchmarks.warm_stress --launches 1000 --ranks 4
    python -m benchmarks.warm_stress --launches 200 --ranks 8 --busy 4

Every launch is `ddplaunch run --start warm` whose ranks meet in an all-reduce; in every tenth one rank exits with 3,
which has to be the launch's exit status. ``--busy`` processes keep the CPUs occupied meanwhile.
"""

import argparse
import collections
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.timing import machine
from tests.hosts.launching import run_to_end

RESULTS = Path(__file__).with_name("results") / "warm_stress.json"
SCRIPT = str(Path(__file__).with_name("warm_stress_rank.py"))
HUNG_S = 120
FAILURE = 3  # the exit code of the rank that fails


def one(number: int, ranks: int, folder: Path) -> str:
    """Launch once; return "ok" or what was wrong."""
    fails = number % 10 == 9
    with tempfile.TemporaryDirectory(dir=folder) as answers:
        words = ["run", str(ranks), "--device", "cpu", "--start", "warm", "--run-dir", f"{answers}.runs"]
        command = [sys.executable, "-m", "ddplaunch", *words, "--", SCRIPT, answers, "fail" if fails else "end"]
        status, said = run_to_end(command, folder, os.environ, HUNG_S)
        if status is None:
            return f"hung for {HUNG_S} s"
        left = naming(answers)
        answered = sorted(path.read_text() for path in Path(answers).iterdir())
    shutil.rmtree(f"{answers}.runs", ignore_errors=True)
    if "cold start" in said:
        return said.split("cold start", 1)[1].splitlines()[0]
    if status != (FAILURE if fails else 0):
        return f"exit status {status}"
    if left:
        return f"{left} processes were left"
    return "ok" if answered == [f"forked, sum {ranks}"] * ranks else f"ranks said {answered}"


def naming(answers: str) -> int:
    """Return how many processes have the folder of one launch on their command line."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += answers.encode() in path.read_bytes()
    return found


def main() -> None:
    """Print the counts and add them to results/warm_stress.json, and leave with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--no-write", action="store_true", help="print only")
    options = parser.parse_args()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    counts: collections.Counter[str] = collections.Counter()
    loads = []
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as name:
            for number in range(options.launches):
                counts[one(number, options.ranks, Path(name))] += 1
                loads.append(os.getloadavg()[0])
                if number % 20 == 19:
                    print(f"{number + 1}: {dict(counts)}", file=sys.stderr, flush=True)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    found = {
        "launches": options.launches,
        "ranks": options.ranks,
        "busy": options.busy,
        "outcomes": dict(counts.most_common()),
        "took_s": round(time.monotonic() - began),
        "load": [round(min(loads), 1), round(max(loads), 1)],
        "machine": machine(),
    }
    print(json.dumps(found, indent=1))
    if not options.no_write:
        before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        RESULTS.write_text(json.dumps([*before, found], indent=1) + "\n")
    sys.exit(0 if set(counts) == {"ok"} else 1)


if __name__ == "__main__":
    main()
