"""Train a small character-level transformer on Python's standard library with DDP and nothing but torch.

It is an ordinary torchrun script that does not know ddplaunch. All of these run it:

    python train_char.py
    torchrun --nproc_per_node 2 train_char.py --batch-size 32
    ddplaunch run 2 --batch-size 32 --base-lr 1e-3 -- train_char.py
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sysconfig
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY = 128  # ASCII, with ? for every other character
CONTEXT = 64
MAX_FILES = 40
MAX_CHARACTERS = 1_000_000


def read_blocks() -> TensorDataset:
    """Return up to a million characters of the standard library's sources, the same at every call, cut into blocks.

    A block has one character more than CONTEXT: the target of each character is the one that follows it.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:MAX_FILES]
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:MAX_CHARACTERS]
    return TensorDataset(torch.tensor(list(text.encode("ascii", "replace"))).unfold(0, CONTEXT + 1, CONTEXT))


class CharacterModel(nn.Module):
    """Predict the next character at every position."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        """The defaults make about a hundred thousand parameters: two CPU cores train it in seconds."""
        super().__init__()
        self.character = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, codes: Tensor) -> Tensor:
        """Map character codes (batch, time) to logits (batch, time, vocabulary)."""
        length = codes.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=codes.device)
        inputs = self.character(codes) + self.position(torch.arange(length, device=codes.device))
        return self.head(self.layers(inputs, mask, is_causal=True))  # type: ignore[no-any-return]


def learning_rate_factor(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return the share of ``--lr`` at optimizer step ``step``: a linear warmup, then half a cosine down to a tenth."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


def micro_batches(loader: DataLoader[tuple[Tensor, ...]], sampler: DistributedSampler[object]) -> Iterator[Tensor]:
    """Yield this rank's share of the text for ever; each epoch shuffles and splits it anew."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for (blocks,) in loader:
            yield blocks


def optimizer_step(
    model: DistributedDataParallel, batches: Iterator[Tensor], accum: int, device: torch.device
) -> Tensor:
    """Add up the gradients of ``accum`` micro-batches and return their mean loss on this rank."""
    loss = torch.zeros((), device=device)
    for part in range(accum):
        blocks = next(batches).to(device)
        # The ranks exchange gradients once per step, in its last micro-batch.
        with nullcontext() if part == accum - 1 else model.no_sync():
            logits = model(blocks[:, :-1])
            share = F.cross_entropy(logits.flatten(0, 1), blocks[:, 1:].flatten()) / accum
            share.backward()  # type: ignore[no-untyped-call]
        loss += share.detach()
    return loss


def train(arguments: argparse.Namespace, device: torch.device) -> None:
    """Train, and print the loss on rank 0; all ranks take the same number of steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)
    blocks = read_blocks()
    sampler: DistributedSampler[object] = DistributedSampler(blocks, seed=arguments.seed, drop_last=True)
    loader = DataLoader(blocks, arguments.batch_size, sampler=sampler, drop_last=True)
    if not len(loader):
        raise SystemExit(f"train_char.py: --batch-size {arguments.batch_size} is more than a rank's share of the text")
    steps_per_epoch = arguments.steps_per_epoch or max(1, len(loader) // arguments.accum)
    total_steps = arguments.epochs * steps_per_epoch
    model = DistributedDataParallel(CharacterModel().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, arguments.warmup_steps, total_steps)
    )
    characters_per_step = arguments.batch_size * arguments.accum * world_size * CONTEXT
    if rank == 0:
        print(
            f"{world_size} x {device.type}, {characters_per_step:,} characters per step, lr {arguments.lr:g}",
            flush=True,
        )
    batches = micro_batches(loader, sampler)
    started = time.perf_counter()
    for step in range(1, total_steps + 1):
        loss = optimizer_step(model, batches, arguments.accum, device)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step == 1 or step % arguments.log_every == 0 or step == total_steps:
            dist.all_reduce(loss)
            speed = step * characters_per_step / (time.perf_counter() - started)
            epoch, mean = (step - 1) // steps_per_epoch + 1, loss.item() / world_size
            if rank == 0:
                progress = f"epoch {epoch}  step {step:4d}/{total_steps}  loss {mean:.3f}"
                print(f"{progress}  {speed:9,.0f} characters/s", flush=True)
    if arguments.save and rank == 0:
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), arguments.save)
        print(f"saved {arguments.save}", flush=True)


def parse_arguments() -> argparse.Namespace:
    """Read the command line; the defaults finish in seconds on two CPU cores."""
    parser = argparse.ArgumentParser(description="Train a small character-level transformer with DDP.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps-per-epoch", type=int, default=80, help="optimizer steps; 0 for the whole text")
    parser.add_argument("--batch-size", type=int, default=32, help="blocks per rank and micro-batch")
    parser.add_argument("--accum", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--warmup-steps", type=int, default=10, help="optimizer steps of linear warmup")
    parser.add_argument("--log-every", type=int, default=20, help="optimizer steps between two lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--save", type=Path, help="write the trained weights to this file (rank 0)")
    return parser.parse_args()


def main() -> None:
    """Run one training from the command line; a plain `python train_char.py` is rank 0 of 1."""
    arguments = parse_arguments()
    name = arguments.device if arguments.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name)
    if name == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if name == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    try:
        train(arguments, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
