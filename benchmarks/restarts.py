"""How often a job trains on after one of its ranks was killed: plain torchrun and ddplaunch, on one node and on two.

    python -m benchmarks.restarts [--jobs 20] [--peers 5]

Two nodes are network namespaces with a network between them (root only). Results go to benchmarks/results/restarts.*.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.publishing import publish
from tests.hosts.launching import clean_environment, ddplaunch
from tests.hosts.namespaces import Node, nodes

DEADLINE_S = 120

#: Rank 1 kills itself once, after a collective; then all train to the end, and rank 0 writes that they did.
SCRIPT = """
import datetime, os, signal
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
model = DistributedDataParallel(torch.nn.Linear(4, 1))
killed = Path(os.environ["OUT"], "killed")
for step in range(10):
    model(torch.randn(8, 4)).pow(2).mean().backward()
    if step == 3 and dist.get_rank() == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
if dist.get_rank() == 0:
    Path(os.environ["OUT"], "done").touch()
dist.barrier()
del model  # it holds the process group, whose threads would outlive Python
dist.destroy_process_group()
"""

Start = Callable[[Path, dict[str, str]], list[subprocess.Popen[bytes]]]


def torchrun(*words: str) -> list[str]:
    """Return plain torchrun's command line with two ranks on this node and one restart."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", *words, "train.py"]


def ours(*words: str) -> list[str]:
    """Return ddplaunch's command line for the same."""
    return ddplaunch("run", "2", "--device", "cpu", "--max-restarts", "1", *words, "--", "train.py")


def here(argv: list[str]) -> Start:
    """Return what starts ``argv`` on this machine."""
    return lambda folder, environment: [_start(argv, folder, environment)]


def on_both(pair: tuple[Node, ...], argv: Callable[[int], list[str]]) -> Start:
    """Return what starts ``argv(node_rank)`` on each node of ``pair``."""
    return lambda folder, environment: [
        _start(node.command(argv(number), folder), folder, environment) for number, node in enumerate(pair)
    ]


def _start(argv: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / "said").open("ab") as said:
        return subprocess.Popen(argv, cwd=folder, env=environment, stdout=said, stderr=said)


def came_back(start: Start) -> bool:
    """Run one job; return whether the rank was killed and the job trained to its end all the same."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(SCRIPT)
        running = start(folder, clean_environment(OUT=name))
        end = time.monotonic() + DEADLINE_S
        try:
            statuses = [process.wait(max(1.0, end - time.monotonic())) for process in running]
        except subprocess.TimeoutExpired:
            statuses = [1]
        finally:
            for process in running:
                _end(process)
        back = (folder / "killed").exists() and (folder / "done").exists() and not any(statuses)
        if not back:
            print((folder / "said").read_text(errors="backslashreplace"))
        return back


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it has started: a torchrun that is left would hold the port of the next job."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def measure(jobs: int, peers: int) -> dict[str, list[bool]]:
    """Run ``jobs`` jobs of ddplaunch's and ``peers`` of plain torchrun's in turns; return what became of each."""
    kinds: dict[str, Start] = {
        "one node, torchrun --standalone": here(torchrun("--standalone")),
        "one node, ddplaunch": here(ours()),
    }
    with tempfile.TemporaryDirectory() as name:
        if os.geteuid() == 0:
            return _with_two_nodes(kinds, Path(name), jobs, peers)
        return _in_turns(kinds, jobs, peers)


def _with_two_nodes(kinds: dict[str, Start], folder: Path, jobs: int, peers: int) -> dict[str, list[bool]]:
    with nodes(2, folder) as pair:
        address = pair[0].address

        def plain(number: int) -> list[str]:
            return torchrun("--nnodes=2", f"--node-rank={number}", f"--master-addr={address}", "--master-port=29500")

        def by_us(number: int) -> list[str]:
            return ours("--nnodes", "2", "--node-rank", str(number), "--master-addr", address)

        both = {"two nodes, torchrun": on_both(pair, plain), "two nodes, ddplaunch": on_both(pair, by_us)}
        return _in_turns({**kinds, **both}, jobs, peers)


def _in_turns(kinds: dict[str, Start], jobs: int, peers: int) -> dict[str, list[bool]]:
    results: dict[str, list[bool]] = {kind: [] for kind in kinds}
    for number in range(jobs):
        for kind, start in kinds.items():
            if "torchrun" in kind and number >= peers:
                continue
            results[kind].append(came_back(start))
            print(f"{number + 1:3} {kind}: {'trained on' if results[kind][-1] else 'did not come back'}", flush=True)
    return results


def main() -> int:
    """Measure, print, write; exit with 1 if a job of ddplaunch's did not come back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument(
        "--peers", type=int, default=5, help="jobs of torchrun: one that fails takes its whole deadline"
    )
    arguments = parser.parse_args()
    results = measure(arguments.jobs, arguments.peers)
    lines = ["# Jobs that train on after one rank was killed", "", "| launch | came back |", "|---|---|"]
    lines += [f"| {kind} | {sum(each)} of {len(each)} |" for kind, each in results.items()]
    publish("restarts", "\n".join([*lines, ""]), results)
    return int(not all(all(each) for kind, each in results.items() if "ddplaunch" in kind))


if __name__ == "__main__":
    raise SystemExit(main())
