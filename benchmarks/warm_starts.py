"""Forks ranks from one template again and again, without torchrun around it, and counts hangs and wrong ends.

    python -u -m benchmarks.warm_starts --starts 1000 --ranks 4

What `warm_stress.py` does with torchrun, for many more starts in the same time: only the forks are under test. In every
start the ranks meet in an all-reduce; they end by falling off the end, by an exit code, and by a signal, in turns.
"""

import argparse
import collections
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddplaunch.agent.warm.template import Template

RANK = """
import os, signal, sys
import torch
import torch.distributed as distributed
rank, ranks = int(os.environ["RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=ranks)
tensor = torch.ones(1)
distributed.all_reduce(tensor)
assert tensor.item() == ranks
distributed.barrier()
if sys.argv[2] == "code":
    os._exit(40 + rank)
if sys.argv[2] == "signal":
    os.kill(os.getpid(), signal.SIGKILL)
distributed.destroy_process_group()
"""
HUNG_S = 120


def start(template: Template, ranks: int, folder: Path, end: str) -> str:
    """Start all ranks once; return "ok" or what was wrong."""
    words = [sys.executable, "-u", str(folder / "rank.py"), str(folder / f"store-{time.monotonic_ns()}"), end]
    processes = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"}
        process = template.start(words, env, (None, None), lambda: None)
        if process is None:
            return f"cold start: {template.reason}"
        processes.append(process)
    expected = [{"end": 0, "code": 40 + rank, "signal": -9}[end] for rank in range(ranks)]
    try:
        found = [process.wait(HUNG_S) for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
            process.wait()
        return f"hung for {HUNG_S} s"
    return "ok" if found == expected else f"ended with {found}, not {expected}"


def main() -> None:
    """Print the counts, and leave with 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=4)
    options = parser.parse_args()
    __import__("torch.distributed")
    counts: collections.Counter[str] = collections.Counter()
    template = Template(print, None)
    template.fork(())  # here: the fork leaves all frames, and a `with` around it would end there as well
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rank.py").write_text(RANK)
        began = time.monotonic()
        for number in range(options.starts):
            counts[start(template, options.ranks, folder, ("end", "code", "signal")[number % 3])] += 1
            if number % 50 == 49:
                print(f"{number + 1}: {dict(counts)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        template.end()
    print(f"{options.starts} starts of {options.ranks} ranks, {time.monotonic() - began:.0f} s: {dict(counts)}")
    sys.exit(0 if set(counts) == {"ok"} else 1)


if __name__ == "__main__":
    main()
