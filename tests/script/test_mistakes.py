"""The rules for mistakes, each on a source where it fires and on ones where it has to stay silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplaunch.script.read import read_script
from ddplaunch.script.script_report import Mistake

HEAD = """\
import os, torch, torchvision
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
"""
#: A training with several ranks in which nothing is wrong; parts of it are replaced.
GOOD = {
    "init": 'dist.init_process_group("nccl")',
    "seed": "torch.manual_seed(1 + dist.get_rank())",
    "device": 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
    "model": "model = torchvision.models.resnet18().cuda()",
    "wrap": "model = DDP(model, device_ids=[local_rank])",
    "sampler": "sampler = torch.utils.data.distributed.DistributedSampler(data)",
    "loader": "loader = DataLoader(data, batch_size=8, sampler=sampler)",
    "epoch": "sampler.set_epoch(epoch)",
    "step": "train(model, loader)",
    "save": 'if rank == 0:\n        torch.save(model.module.state_dict(), "last.pt")',
    "end": "dist.destroy_process_group()",
}
BODY = """
def evaluate(model, loader):
    for x, y in loader:
        model(x)

def joined(model):
    if not dist.is_initialized():
        return
    meet()

def meet():
    if dist.get_world_size() > 1:
        dist.barrier()

def train(model, loader):
    for x, y in loader:
        model(x).sum().backward()

def keep(state, path):
    torch.save(state, path)

def main():
    {init}
    {seed}
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    {device}
    {model}
    {wrap}
    data = torchvision.datasets.FakeData(transform=torchvision.transforms.RandomHorizontalFlip())
    {sampler}
    {loader}
    for epoch in range(10):
        {epoch}
        {step}
    {save}
    {end}

if __name__ == "__main__":
    main()
"""


def read(tmp_path: Path, source: str) -> tuple[Mistake, ...]:
    path = tmp_path / "train.py"
    path.write_text(source)
    report = read_script(path, tmp_path)
    assert report.syntax_error is None
    return report.mistakes


def training(**parts: str) -> str:
    assert parts.keys() <= GOOD.keys()
    body = BODY.replace(', int(os.environ["LOCAL_RANK"])', ", 0") if parts.get("device") == "pass" else BODY
    if parts.get("device") == "pass":
        body = body.replace("rank, local_rank = dist.get_rank(), 0", "rank = dist.get_rank()")
    return HEAD + body.format(**{**GOOD, **parts})


def codes(found: tuple[Mistake, ...]) -> list[str]:
    return [each.code for each in found]


def test_nothing_is_wrong(tmp_path: Path) -> None:
    assert read(tmp_path, training()) == ()


FIRES = [
    ("rendezvous-in-script", {"init": 'os.environ["MASTER_PORT"] = "12355"\n    dist.init_process_group("nccl")'}),
    ("rendezvous-in-script", {"init": 'dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456")'}),
]


@pytest.mark.parametrize(("code", "parts"), FIRES, ids=[f"{code}-{n}" for n, (code, _) in enumerate(FIRES)])
def test_fires_alone(tmp_path: Path, code: str, parts: dict[str, str]) -> None:
    found = read(tmp_path, training(**parts))
    assert [each.code for each in found] == [code], found
    assert found[0].corrected and found[0].at.line > 5


SILENT = {
    "a port only where there is none": {
        "init": 'os.environ.setdefault("MASTER_PORT", "12355")\n    dist.init_process_group("nccl")'
    },
    "a port for a run without launcher": {
        "init": 'if "RANK" not in os.environ:\n        os.environ["MASTER_PORT"] = "12355"\n'
        '    dist.init_process_group("nccl")'
    },
    "an address for a run without launcher": {
        "init": 'try:\n        dist.init_process_group("nccl")\n    except KeyError:\n'
        '        dist.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)'
    },
}


@pytest.mark.parametrize("name", SILENT)
def test_stays_silent(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, training(**SILENT[name]))
    assert found == ()


def test_an_address_with_size_and_rank_is_one_mistake(tmp_path: Path) -> None:
    init = 'dist.init_process_group("nccl", init_method="tcp://localhost:9999", world_size=1, rank=0)'
    (found,) = read(tmp_path, training(init=init))
    assert (found.code, found.corrected) == ("rendezvous-in-script", "dist.init_process_group('nccl')")
