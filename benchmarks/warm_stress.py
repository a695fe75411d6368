"""Starts warm ranks again and again, and counts hangs and wrong ends.

    python -m benchmarks.warm_stress --launches 1000 --ranks 4
    python -m benchmarks.warm_stress --launches 200 --ranks 8 --busy 4

Every launch is a real torchrun whose ranks meet in an all-reduce; in every tenth one rank fails, which torchrun has to
notice. ``--busy`` processes keep the CPUs occupied meanwhile.
"""

import argparse
import collections
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.warm.launching import environment, plugin, torchrun

SCRIPT = str(Path(__file__).with_name("warm_stress_rank.py"))
HUNG_S = 120


def one(number: int, ranks: int, folder: Path) -> str:
    """Launch once; return "ok" or what was wrong."""
    fails = number % 10 == 9
    with tempfile.TemporaryDirectory(dir=folder) as answers:
        command = torchrun(True, ranks, SCRIPT, answers, "fail" if fails else "end")
        process = subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            _, errors = process.communicate(timeout=HUNG_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"hung for {HUNG_S} s"
        said = sorted(path.read_text() for path in Path(answers).iterdir())
    if b"cold start" in errors:
        return errors.decode().split("cold start", 1)[1].splitlines()[0]
    if process.returncode != int(fails):
        return f"exit status {process.returncode}"
    return "ok" if said == [f"forked, sum {ranks}"] * ranks else f"ranks said {said}"


def main() -> None:
    """Print the counts, and leave with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--busy", type=int, default=0)
    options = parser.parse_args()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.busy)]
    counts: collections.Counter[str] = collections.Counter()
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = plugin(Path(name))
            for number in range(options.launches):
                counts[one(number, options.ranks, folder)] += 1
                if number % 20 == 19:
                    print(f"{number + 1}: {dict(counts)}", file=sys.stderr, flush=True)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    took = time.monotonic() - began
    print(f"{options.launches} launches of {options.ranks} ranks, {options.busy} busy processes, {took:.0f} s")
    for outcome, count in counts.most_common():
        print(f"  {count:5} {outcome}")
    sys.exit(0 if set(counts) == {"ok"} else 1)


if __name__ == "__main__":
    main()
