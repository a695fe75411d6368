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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# Printable ASCII and the newline; every other character becomes the last code.
ALPHABET = "\n" + "".join(chr(code) for code in range(32, 127))
UNKNOWN = len(ALPHABET)
VOCABULARY = len(ALPHABET) + 1
CONTEXT = 64
MAX_FILES = 40
MAX_CHARACTERS = 1_000_000
Pair = tuple[Tensor, Tensor]


def read_text() -> str:
    """Return up to a million characters of the standard library's sources, the same at every call."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(folder.glob("*.py"))[:MAX_FILES]
    if not files:
        raise SystemExit(f"train_char.py: no Python sources in {folder}")
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:MAX_CHARACTERS]


class Blocks(Dataset[Pair]):
    """The text cut into pieces of CONTEXT characters; the target of each character is the one that follows it."""

    def __init__(self, text: str) -> None:
        """Encode ``text`` once; every rank holds all of it, and the sampler decides which blocks it reads."""
        codes = {character: code for code, character in enumerate(ALPHABET)}
        self.codes = torch.tensor([codes.get(character, UNKNOWN) for character in text])

    def __len__(self) -> int:
        """Return the number of whole blocks."""
        return (len(self.codes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Pair:
        """Return one block and the same block shifted by one character."""
        start = index * CONTEXT
        return self.codes[start : start + CONTEXT], self.codes[start + 1 : start + 1 + CONTEXT]


class Layer(nn.Module):
    """One pre-norm transformer layer: causal self-attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, length, width = x.shape
        split = self.query_key_value(self.norm_1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.perceptron(self.norm_2(x))  # type: ignore[no-any-return]


class CharacterModel(nn.Module):
    """Predict the next character at every position."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        """The defaults make about a hundred thousand parameters: two CPU cores train it in seconds."""
        super().__init__()
        self.character = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CONTEXT, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, codes: Tensor) -> Tensor:
        """Map character codes (batch, time) to logits (batch, time, vocabulary)."""
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.head(self.norm(self.layers(self.character(codes) + self.position(places))))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of all; a plain `python train_char.py` is rank 0 of 1."""

    rank: int
    world_size: int
    device: torch.device

    def mean(self, value: Tensor) -> float:
        """Return the mean of ``value`` over all ranks; every rank has to call it."""
        value = value.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(value)
        return value.item() / self.world_size

    def say(self, line: str) -> None:
        """Print on rank 0 only, without buffering, for those who follow the log."""
        if self.rank == 0:
            print(line, flush=True)


@contextmanager
def process_group(device_name: str) -> Iterator[Ranks]:
    """Join the process group that torchrun describes in the environment, and leave it at the end."""
    if device_name == "auto":
        device_name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(device_name)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        yield Ranks(rank=0, world_size=1, device=device)
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(rank=dist.get_rank(), world_size=dist.get_world_size(), device=device)
    finally:
        dist.destroy_process_group()


def learning_rate_factor(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return the share of ``--lr`` at optimizer step ``step``: a linear warmup, then half a cosine down to a tenth."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, progress)))


def save(model: nn.Module, path: Path) -> None:
    """Write the weights to ``path`` atomically: a half-written checkpoint is worse than none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(model.state_dict(), unfinished)
    unfinished.replace(path)


def micro_batches(loader: DataLoader[Pair], sampler: DistributedSampler[Pair]) -> Iterator[Pair]:
    """Yield this rank's share of the text for ever; each epoch shuffles and splits it anew."""
    for round_number in itertools.count():
        sampler.set_epoch(round_number)
        yield from loader


def optimizer_step(model: nn.Module, batches: Iterator[Pair], accum: int, ranks: Ranks) -> Tensor:
    """Add up the gradients of ``accum`` micro-batches and return their mean loss on this rank."""
    loss = torch.zeros((), device=ranks.device)
    for part in range(accum):
        codes, targets = (tensor.to(ranks.device) for tensor in next(batches))
        # The ranks exchange gradients once per step, in its last micro-batch.
        quiet = model.no_sync if isinstance(model, DistributedDataParallel) and part < accum - 1 else nullcontext
        with quiet():
            share = F.cross_entropy(model(codes).flatten(0, 1), targets.flatten()) / accum
            share.backward()  # type: ignore[no-untyped-call]
        loss += share.detach()
    return loss


def train(arguments: argparse.Namespace, ranks: Ranks) -> None:
    """Train, and print the loss on rank 0; all ranks take the same number of steps."""
    torch.manual_seed(arguments.seed)
    blocks = Blocks(read_text())
    sampler: DistributedSampler[Pair] = DistributedSampler(
        blocks, ranks.world_size, ranks.rank, seed=arguments.seed, drop_last=True
    )
    loader = DataLoader(blocks, arguments.batch_size, sampler=sampler, drop_last=True)
    if not len(loader):
        raise SystemExit(f"train_char.py: --batch-size {arguments.batch_size} is more than a rank's share of the text")
    steps_per_epoch = arguments.steps_per_epoch or max(1, len(loader) // arguments.accum)
    total_steps = arguments.epochs * steps_per_epoch
    network = CharacterModel().to(ranks.device)
    model: nn.Module = DistributedDataParallel(network) if dist.is_initialized() else network
    optimizer = torch.optim.AdamW(network.parameters(), lr=arguments.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, arguments.warmup_steps, total_steps)
    )
    characters_per_step = arguments.batch_size * arguments.accum * ranks.world_size * CONTEXT
    ranks.say(
        f"{ranks.world_size} x {ranks.device.type}, {sum(p.numel() for p in network.parameters()):,} parameters, "
        f"{len(blocks) * CONTEXT:,} characters of Python, {characters_per_step:,} per step, lr {arguments.lr:g}"
    )
    batches = micro_batches(loader, sampler)
    first = last = float("nan")
    started = time.perf_counter()
    for step in range(1, total_steps + 1):
        loss = optimizer_step(model, batches, arguments.accum, ranks)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step == 1 or step % arguments.log_every == 0 or step == total_steps:
            last = ranks.mean(loss)
            first = last if step == 1 else first
            speed = step * characters_per_step / (time.perf_counter() - started)
            epoch = (step - 1) // steps_per_epoch + 1
            ranks.say(f"epoch {epoch}  step {step:4d}/{total_steps}  loss {last:.3f}  {speed:9,.0f} characters/s")
    ranks.say(f"loss {first:.3f} -> {last:.3f} in {total_steps} steps, {time.perf_counter() - started:.1f} s")
    if arguments.save and ranks.rank == 0:
        save(network, arguments.save)
        ranks.say(f"saved {arguments.save}")


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
    parser.add_argument("--save", type=Path, help="write the trained weights here (rank 0)")
    return parser.parse_args()


def main() -> None:
    """Run one training from the command line."""
    arguments = parse_arguments()
    with process_group(arguments.device) as ranks:
        train(arguments, ranks)


if __name__ == "__main__":
    main()
