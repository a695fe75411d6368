"""Writes when this rank has torch and its first all-reduce, and what memory all processes hold then; no training.

Run by `warm_start.py`, which gives the folder for the answers.
"""

import json
import os
import sys
import time
from pathlib import Path

started = time.monotonic()

import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402

has_torch = time.monotonic()


def pss_kb(pid: int) -> int:
    """Return what the process holds, shared pages divided by how many share them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def tree(pid: int) -> list[int]:
    """Return the process and all its descendants."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    return [pid, *(found for child in children for found in tree(child))]


def main() -> None:
    """Do one all-reduce and write the answers."""
    distributed.init_process_group("gloo")
    tensor = torch.ones(1)
    distributed.all_reduce(tensor)
    ready = time.monotonic()
    assert tensor.item() == distributed.get_world_size()
    answer = {"started": started, "has_torch": has_torch, "ready": ready}
    if len(sys.argv) > 2 and distributed.get_rank() == 0:
        answer["pss_kb"] = sum(map(pss_kb, tree(os.getppid())))
    if len(sys.argv) > 2:
        distributed.barrier()
    Path(sys.argv[1], f"{distributed.get_rank()}.json").write_text(json.dumps(answer))
    distributed.destroy_process_group()


main()
