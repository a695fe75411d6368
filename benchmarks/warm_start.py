"""Plain torchrun and warm ranks side by side, in turns: time until all ranks are ready, wall time, memory.

    python -m benchmarks.warm_start --ranks 2 8 --rounds 7

Ready is when the last rank has torch and has finished its first all-reduce (gloo), from the start of torchrun.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.warm.launching import environment, plugin, torchrun

RANKS = str(Path(__file__).with_name("warm_ranks.py"))
FLOOR = [sys.executable, "-c", "import torch.distributed.run"]


def once(warm: bool, ranks: int, folder: Path, memory: bool) -> dict[str, float]:
    """Return seconds since the launch; the sum of PSS in a run of its own, because reading it takes time."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        command = torchrun(warm, ranks, RANKS, name, *(["memory"] if memory else []))
        began = time.monotonic()
        used = cpu_s()
        subprocess.run(command, env=environment(folder), check=True, capture_output=True, timeout=120)
        wall, used = time.monotonic() - began, cpu_s() - used
        answers = [json.loads(path.read_text()) for path in Path(name).iterdir()]
    assert len(answers) == ranks
    if memory:
        return {"pss_mb": next(answer["pss_kb"] for answer in answers if "pss_kb" in answer) / 1024}
    last = max(answer["ready"] for answer in answers)
    return {
        "first line": min(answer["started"] for answer in answers) - began,
        "torch": max(answer["has_torch"] for answer in answers) - began,
        "ready": last - began,
        "end": began + wall - last,
        "wall": wall,
        "cpu": used,
    }


def cpu_s() -> float:
    """Return the CPU seconds of all that were waited for: tells more than wall time on a busy machine."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def floor(folder: Path) -> float:
    """Return the seconds of one interpreter that imports torch.distributed.run and ends."""
    began = time.monotonic()
    subprocess.run(FLOOR, env=environment(folder), check=True, capture_output=True, timeout=120)
    return time.monotonic() - began


def summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure, and the least: the one that other work on the machine has disturbed least."""
    middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    return {
        **middle,
        "ready, least": min(one["ready"] for one in rounds),
        "wall, least": min(one["wall"] for one in rounds),
    }


def main() -> None:
    """Print a table for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = plugin(Path(name))
        for ranks in options.ranks:
            results: dict[bool, list[dict[str, float]]] = {True: [], False: []}
            floors = []
            for way in (True, False):
                once(way, ranks, folder, False)
            for _ in range(options.rounds):
                floors.append(floor(folder))
                for way in (False, True):
                    results[way].append(once(way, ranks, folder, False))
            table = {way: {**summary(results[way]), **once(way, ranks, folder, True)} for way in (False, True)}
            alone = statistics.median(floors)
            print(f"{ranks} ranks, {options.rounds} rounds; to import torch.distributed.run alone {alone:.2f} s")
            for key in table[False]:
                cold, warm = table[False][key], table[True][key]
                print(f"  {key:12} cold {cold:8.2f}  warm {warm:8.2f}  ratio {warm / cold:.2f}")


if __name__ == "__main__":
    main()
