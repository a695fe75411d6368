"""What training scripts do beside training, each thing once; prints a line for each as JSON into $PROBE/RANK.json."""

import json
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

answers: dict[str, Any] = {}


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(os.environ["RANK"]), os.getppid() == PARENT[0]])


PARENT = [os.getpid()]


def spawned(index: int, folder: str) -> None:
    Path(folder, "spawned").write_text(f"{index} {multiprocessing.current_process().name}")


def square(number: int) -> int:
    return number * number


def load(method: str) -> list[Any]:
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=2 if method == "fork" else 1, multiprocessing_context=method
    )
    return [batch.tolist() for batch in loader]


def main(folder: str) -> None:
    torch.set_num_interop_threads(3)  # refused once any have been started
    answers["interop threads"] = torch.get_num_interop_threads()
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    tensor = torch.ones(4) * rank
    distributed.all_reduce(tensor)
    answers["all_reduce"] = tensor.tolist()
    answers["loader fork"] = load("fork")
    if rank == 0:  # each of these imports torch once more
        answers["loader forkserver"] = load("forkserver")
        start: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
        start(spawned, args=(folder,), nprocs=1)
        answers["spawned"] = Path(folder, "spawned").read_text()
    with ProcessPoolExecutor(2) as pool:
        answers["pool"] = list(pool.map(square, range(4)))
    with ThreadPoolExecutor(2) as threads:
        answers["threads"] = [*threads.map(square, range(4)), threading.active_count() <= 3]
    child = subprocess.run([sys.executable, "-c", "import sys; print(sys.argv, 6 * 7)"], capture_output=True, text=True)
    answers["subprocess"] = [child.returncode, child.stdout, child.stderr]
    model = torch.nn.Linear(4, 2)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.zeros_(model.bias)
    compiled = torch.compile(model, backend="eager")
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # the fork has no OpenMP threads of its parent's
    answers["product"] = [before, torch.get_num_threads(), (torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()]
    torch.set_num_threads(before)
    replica = torch.nn.parallel.DistributedDataParallel(model)
    replica(torch.ones(3, 4)).sum().backward()
    assert model.weight.grad is not None
    answers["gradient"] = [compiled(torch.ones(1, 4)).tolist(), model.weight.grad.tolist()]
    torch.save(model.state_dict(), Path(folder, f"model-{rank}.pt"))
    answers["saved"] = sorted(torch.load(Path(folder, f"model-{rank}.pt")))
    distributed.destroy_process_group()
    Path(folder, f"{rank}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(os.environ["PROBE"])
