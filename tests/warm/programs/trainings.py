"""Trains small models as examples do, each from its own seed; writes the losses as JSON to $PROBE/losses-RANK.json."""

import json
import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

distributed: Any = torch.distributed


def steps(model: nn.Module, optimizer: Any, batches: Any, loss_of: Any) -> Iterator[float]:
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        yield loss.item()


def regression(model: Any, batch: Any) -> Any:
    return F.mse_loss(model(batch[0]), batch[1])


def classes(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def loader(size: int, *shape: int, workers: int = 0, targets: int = 0) -> Any:
    data = torch.randn(size, *shape)
    answers = torch.randint(targets, (size,)) if targets else data.flatten(1).sum(1, keepdim=True)
    dataset = TensorDataset(data, answers)
    return DataLoader(dataset, 8, sampler=DistributedSampler(dataset, seed=3), num_workers=workers)


def mlp(*sizes: int) -> nn.Module:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def images_by_workers() -> Iterator[float]:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(5))
    plain(torch.zeros(1, 3, 8, 8))
    model = DistributedDataParallel(plain)
    batches = loader(64, 3, 8, 8, workers=2, targets=5)
    yield from steps(model, torch.optim.Adam(model.parameters()), batches, classes)


def augmented_by_numpy_and_random() -> Iterator[float]:
    np.random.seed(4)
    random.seed(4)

    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            noise = np.random.rand(16).astype("float32") * random.random()
            return torch.from_numpy(noise) + index / 64, torch.tensor([float(index)])

    dataset = Augmented()
    model = DistributedDataParallel(mlp(16, 16, 1))
    batches = DataLoader(dataset, 8, sampler=DistributedSampler(dataset))
    yield from steps(model, torch.optim.Adagrad(model.parameters()), batches, regression)


def compiled() -> Iterator[float]:
    plain = mlp(16, 16, 1)
    model = DistributedDataParallel(plain)
    fast: Any = torch.compile(model, backend="aot_eager")
    yield from steps(fast, torch.optim.SGD(model.parameters(), 0.01), loader(32, 16), regression)


def main() -> None:
    distributed.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
    losses = {}
    for number, function in enumerate((images_by_workers, augmented_by_numpy_and_random, compiled)):
        torch.manual_seed(number)
        losses[function.__name__] = list(function())
    distributed.destroy_process_group()
    Path(os.environ["PROBE"], f"losses-{os.environ['RANK']}.json").write_text(json.dumps(losses))
