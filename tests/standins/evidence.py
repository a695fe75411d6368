"""What every stand-in training does: a real, tiny training whose every rank writes down what it saw.

Its ranks stay in step as with DistributedDataParallel, but by hand: to make one, or an optimizer, a rank imports torch's
compiler, which takes as long as torch itself.

Into STANDIN_OUT goes `rank-N.json` per rank (environment, arguments, sample numbers per epoch) and, from whoever
saves, `saved-by-N.json`. It needs an initialised process group.
"""

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES = 48
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")  # fmt: skip


def train(arguments, batch_size, epochs, lr=0.01, save_path=None):
    """Train a linear model on SAMPLES numbers; record this rank's share; save on rank 0."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    numbers = torch.arange(SAMPLES)
    dataset = TensorDataset(numbers, numbers.float().unsqueeze(1) / SAMPLES)
    sampler = DistributedSampler(dataset, world_size, rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=batch_size, sampler=sampler)
    model = torch.nn.Linear(1, 1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    seen, batch_sizes = [], []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append([])
        for indices, values in loader:
            step(model, (model(values) - 2 * values).square().mean(), lr)
            seen[-1].extend(indices.tolist())
            batch_sizes.append(len(indices))
    record(rank, arguments, seen, batch_sizes, model)
    if rank == 0:
        save(rank, model, save_path)
    dist.barrier()


def step(model, loss, lr):
    """Take one step of gradient descent by the mean of all ranks' gradients."""
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        dist.all_reduce(gradient)
        parameter.data -= lr * gradient / dist.get_world_size()


def record(rank, arguments, seen, batch_sizes, model):
    """Write this rank's evidence; `weights` shows that the ranks stayed in step."""
    evidence = {
        "environment": {name: os.environ.get(name) for name in NAMES},
        "arguments": {key: value if value is None else str(value) for key, value in vars(arguments).items()},
        "seen": seen,
        "largest_batch": max(batch_sizes, default=0),
        "weights": [parameter.tolist() for parameter in model.parameters()],
        "backend": dist.get_backend(),
    }
    out = Path(os.environ["STANDIN_OUT"])
    (out / f"rank-{rank}.json").write_text(json.dumps(evidence))


def save(rank, model, save_path):
    """Save the model, and leave a mark that says which rank did."""
    if save_path is not None:
        path = Path(save_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    (Path(os.environ["STANDIN_OUT"]) / f"saved-by-{rank}.json").write_text(json.dumps(str(save_path)))
    print(f"saved {save_path}", flush=True)
