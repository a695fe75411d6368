"""Right training scripts and planted mistakes for ``benchmarks.proving``: a few scripts, and changes to them.

The cases, and what each changes in which script, are in ``proving_cases.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

_HEAD = """
import os, random, sys, contextlib, math
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, TensorDataset, Subset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
g = torch.Generator().manual_seed(1)
X = torch.randn(240, 12, generator=g)
Y = (X[:, :4].sum(1) > 0).long() + (X[:, 4] > 0.5).long()
"""

SCRIPTS = {
    "ddp": _HEAD
    + """
train, test = TensorDataset(X[:200], Y[:200]), TensorDataset(X[200:], Y[200:])
sampler = DistributedSampler(train, shuffle=True)
loader = DataLoader(train, batch_size=8, sampler=sampler)
test_loader = DataLoader(test, batch_size=8, sampler=DistributedSampler(test, shuffle=False))
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
for epoch in range(4):
    sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    scheduler.step()
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for x, y in test_loader:
            right += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    dist.all_reduce(right)
    if rank == 0:
        print("accuracy", (right[0] / right[1]).item())
        torch.save(net.state_dict(), "model.pt")
    dist.barrier()
dist.destroy_process_group()
""",
    "accum": _HEAD
    + """
ACCUM = 3
train = TensorDataset(X, Y)
sampler = DistributedSampler(train, shuffle=True, drop_last=True)
loader = DataLoader(train, batch_size=4, sampler=sampler, drop_last=True)
net = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 3))
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
optimizer.zero_grad()
for epoch in range(3):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % ACCUM == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.cross_entropy(model(x), y)
            (loss / ACCUM).backward()
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad()
dist.destroy_process_group()
""",
    "own": _HEAD
    + """
train = TensorDataset(X, Y)
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=8, sampler=sampler)
model = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 3))
for p in model.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        average(model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
dist.destroy_process_group()
""",
    "gpt": _HEAD
    + """
ACCUM, BLOCK, BATCH, VOCAB = 3, 16, 4, 30
tokens = torch.randint(0, VOCAB, (4000,), generator=g)
torch.manual_seed(1337 + rank)

def get_batch():
    at = torch.randint(len(tokens) - BLOCK - 1, (BATCH,))
    return torch.stack([tokens[i : i + BLOCK] for i in at]), torch.stack([tokens[i + 1 : i + 1 + BLOCK] for i in at])

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, 24), nn.Embedding(BLOCK, 24)
        self.attn = nn.Linear(24, 72, bias=False)
        self.proj, self.ln, self.drop = nn.Linear(24, 24), nn.LayerNorm(24), nn.Dropout(0.1)
        self.head = nn.Linear(24, VOCAB, bias=False)
        self.wte.weight = self.head.weight

    def forward(self, idx, targets=None):
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.shape[1])))
        q, k, v = self.attn(self.ln(x)).chunk(3, -1)
        drop = 0.1 if self.training else 0
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, dropout_p=drop, is_causal=True))
        logits = self.head(x)
        loss = F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))
        return logits, loss

net = GPT()
decay = [p for p in net.parameters() if p.dim() > 1]
rest = [p for p in net.parameters() if p.dim() < 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
model = DDP(net)
scaler = torch.amp.GradScaler("cpu", enabled=False)
x, y = get_batch()
for step in range(30):
    lr = 1e-3 * min(1, (step + 1) / 10)
    for group in optimizer.param_groups:
        group["lr"] = lr
    for micro in range(ACCUM):
        model.require_backward_grad_sync = micro == ACCUM - 1
        logits, loss = model(x, y)
        loss = loss / ACCUM
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
dist.destroy_process_group()
""",
    "gan": _HEAD
    + """
train = TensorDataset(X)
sampler = DistributedSampler(train, drop_last=True)
loader = DataLoader(train, batch_size=8, sampler=sampler, drop_last=True)
G = DDP(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 12)))
D = DDP(nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)), broadcast_buffers=False)
opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
opt_d = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.9))
bce = nn.BCEWithLogitsLoss()
torch.manual_seed(100 + rank)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for (real,) in loader:
        fake = G(torch.randn(len(real), 4))
        opt_d.zero_grad()
        both = D(torch.cat([real, fake.detach()]))
        goal = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
        bce(both, goal).backward()
        opt_d.step()
        opt_g.zero_grad()
        bce(D(fake), torch.ones(len(real), 1)).backward()
        opt_g.step()
dist.destroy_process_group()
""",
    "tokens": _HEAD
    + """
class Sentences(Dataset):
    def __init__(self):
        lengths = torch.randint(3, 20, (160,), generator=g).tolist()
        self.rows = [torch.randint(1, 30, (length,), generator=g) for length in lengths]
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return self.rows[i]

def padded(rows):
    pad = nn.utils.rnn.pad_sequence
    return pad([row[:-1] for row in rows], True, 0), pad([row[1:] for row in rows], True, -100)

train = Sentences()
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=4, sampler=sampler, collate_fn=padded)
model = DDP(nn.Sequential(nn.Embedding(30, 24), nn.Linear(24, 30)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).view(-1, 30), y.view(-1), ignore_index=-100)
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
""",
    "accelerate": """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed
accelerator = Accelerator(gradient_accumulation_steps=3)
set_seed(0)
g = torch.Generator().manual_seed(1)
X = torch.randn(240, 12, generator=g)
Y = (X[:, :4].sum(1) > 0).long()
loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
test_loader = DataLoader(TensorDataset(X[:60], Y[:60]), batch_size=4)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 60)
model, optimizer, loader, test_loader, scheduler = accelerator.prepare(model, optimizer, loader, test_loader, scheduler)
for epoch in range(3):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    hits = []
    for x, y in test_loader:
        with torch.no_grad():
            hits.append(accelerator.gather_for_metrics((model(x).argmax(-1) == y).float()))
    accelerator.print("accuracy", torch.cat(hits).mean().item())
accelerator.end_training()
""",
    "trainer": """
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

class Data(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(240, 12, generator=g)
        self.y = (self.x[:, :4].sum(1) > 0).long()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return {"x": self.x[i], "labels": self.y[i]}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

arguments = TrainingArguments("out", per_device_train_batch_size=4, gradient_accumulation_steps=3, num_train_epochs=3,
                              learning_rate=1e-3, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True)
Trainer(Model(), arguments, train_dataset=Data()).train()
""",
    "lightning": """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import lightning as L

class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)
    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", F.cross_entropy(self.net(x), y), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)

L.seed_everything(0, verbose=False)
g = torch.Generator().manual_seed(1)
X = torch.randn(240, 12, generator=g)
Y = (X[:, :4].sum(1) > 0).long()
trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=2, strategy="ddp", logger=False,
                    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                    num_sanity_val_steps=0, accumulate_grad_batches=3, gradient_clip_val=1.0)
trainer.fit(Lit(), DataLoader(TensorDataset(X, Y), 4, shuffle=True), DataLoader(TensorDataset(X[:60], Y[:60]), 4))
""",
    "fabric": """
import torch, torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from lightning.fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
fabric.seed_everything(0, verbose=False)
g = torch.Generator().manual_seed(1)
X = torch.randn(240, 12, generator=g)
Y = (X[:, :4].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(X, Y), 4, shuffle=True))
for epoch in range(3):
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        last = (i + 1) % 3 == 0
        with fabric.no_backward_sync(model, enabled=not last):
            fabric.backward(F.cross_entropy(model(x), y) / 3)
        if last:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
}


class Case(NamedTuple):
    """A script to judge: ``codes`` are those of which `prove` has to give one; none for a right script."""

    name: str
    text: str
    codes: frozenset[str]
    ranks: int = 2


def _case(name: str, script: str, changes: Sequence[tuple[str, str]] = (), codes: str = "", ranks: int = 2) -> Case:
    """Return a case of the file. Raises ValueError for a change of a text that the script does not have."""
    text = SCRIPTS[script]
    for old, new in changes:
        if old not in text:
            raise ValueError(f"{name}: {old!r} is not in {script}")
        text = text.replace(old, new)
    return Case(name, text, frozenset(codes.split()), ranks)


_FILE = Path(__file__).with_name("proving_cases.yaml")
CASES = [_case(name, **case) for name, case in yaml.safe_load(_FILE.read_text(encoding="utf-8")).items()]
