"""Trains small models as examples do, each from its own seed; writes the losses as JSON to $PROBE/losses-RANK.json."""

import json
import os
import random
from collections.abc import Callable, Iterator
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
TRAININGS: list[Callable[[], Iterator[float]]] = []


def training(function: Callable[[], Iterator[float]]) -> Callable[[], Iterator[float]]:
    TRAININGS.append(function)
    return function


def steps(model: nn.Module, optimizer: Any, batches: Any, loss_of: Any, schedule: Any = None) -> Iterator[float]:
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        yield loss.item()


def regression(model: Any, batch: Any) -> Any:
    return F.mse_loss(model(batch[0]), batch[1])


def classes(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def loader(size: int, *shape: int, workers: int = 0, targets: int = 0, **more: Any) -> Any:
    data = torch.randn(size, *shape)
    answers = torch.randint(targets, (size,)) if targets else data.flatten(1).sum(1, keepdim=True)
    dataset = TensorDataset(data, answers)
    return DataLoader(dataset, 8, sampler=DistributedSampler(dataset, seed=3), num_workers=workers, **more)


def mlp(*sizes: int) -> nn.Module:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


@training
def images_by_workers() -> Iterator[float]:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    plain(torch.zeros(1, 3, 8, 8))
    model = DistributedDataParallel(plain)
    batches = loader(64, 3, 8, 8, workers=2, targets=5)
    yield from steps(model, torch.optim.Adam(model.parameters()), batches, classes)


@training
def dropout_and_clipping() -> Iterator[float]:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5), nn.Linear(64, 1)))
    optimizer = torch.optim.RMSprop(model.parameters())

    def loss_of(model: Any, batch: Any) -> Any:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return regression(model, batch)

    yield from steps(model, optimizer, loader(64, 16), loss_of)


@training
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


@training
def compiled() -> Iterator[float]:
    plain = mlp(16, 16, 1)
    model = DistributedDataParallel(plain)
    fast: Any = torch.compile(model, backend="aot_eager")
    yield from steps(fast, torch.optim.SGD(model.parameters(), 0.01), loader(32, 16), regression)


@training
def averaged_by_hand_in_the_order_of_a_set() -> Iterator[float]:
    model, optimizers = mlp(16, 8, 1), []
    optimizers.append(torch.optim.SGD(model.parameters(), 0.02))
    names = {name for name, _ in model.named_parameters()}
    for batch in loader(48, 16):
        loss = regression(model, batch)
        loss.backward()
        for name in sorted(names):
            gradient = model.get_parameter(name).grad
            distributed.all_reduce(gradient)
        optimizers[0].step()
        optimizers[0].zero_grad()
        yield loss.item()


def main() -> None:
    distributed.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
    losses = {}
    for number, function in enumerate(TRAININGS):
        torch.manual_seed(number)
        losses[function.__name__] = list(function())
    distributed.destroy_process_group()
    Path(os.environ["PROBE"], f"losses-{os.environ['RANK']}.json").write_text(json.dumps(losses))
