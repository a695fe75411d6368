"""Whether `fit` finds the largest batch that trains: ``python -m benchmarks.fits``.

Three models of two ranks each with so much memory and no more: `fit`, without headroom and with its own, against a
bisection whose every step is a launch that must train to its end. What `fit` answers is launched three times more: near
the limit the same batch trains in one launch and not in another. Prints and writes benchmarks/results/fits.json and
fits.md. What stays free is a part of all memory, the fixed part among it, so that less than that part of the batch is
left of the largest; how much is told beside it. With ``--check``, an answer with headroom that does not train each
time, or one that is under 0.9 of what its headroom leaves of the largest, is exit status 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.publishing import parser, publish
from benchmarks.timing import machine
from tests.cli.test_fit import BEGINNING
from tests.hosts.launching import clean_environment, ddplaunch

DEADLINE_S, MIB, STEPS, AGAIN = 900, 600, 12, 3
MEMORY, HEADROOMS = f"{MIB}MiB", {"0": 0.0, "own": 0.1}
#: Trains one of the models below.
TRAINING = f"""
{BEGINNING}
from torch.nn.parallel import DistributedDataParallel
MODEL
optimizer = torch.optim.SGD(model.parameters(), args.lr)
data = torch.utils.data.TensorDataset(torch.randn(1000, *shape))
sampler = torch.utils.data.distributed.DistributedSampler(data)
step = 0
while step < 400:
    for (batch,) in torch.utils.data.DataLoader(data, args.batch_size, sampler=sampler, drop_last=True):
        step += 1
        (model(batch).square().mean() / args.grad_accum).backward()
        if step % args.grad_accum == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
MODELS = {
    "linear": """
class Wide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(16, 1 << 18, bias=False)
    def forward(self, x):
        return torch.relu(self.line(x)) * 2
model, shape = DistributedDataParallel(Wide()), (16,)
""",
    "transformer": """
layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
model, shape = DistributedDataParallel(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)), (64, 64)
""",
    "conv": """
model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 16, 3))
model, shape = DistributedDataParallel(model), (3, 64, 64)
""",
}


def launched(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``ddplaunch COMMAND`` on two ranks with the memory, to its end."""
    return subprocess.run(
        ddplaunch(command, "2", "--device", "cpu", "--memory", MEMORY, *words, "--", "train.py"),
        cwd=folder,
        env=clean_environment(NO_COLOR="1", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def fitted(folder: Path, *options: str) -> dict[str, Any]:
    """Return what `fit` found: its largest batch, the number of its trials, and how long it took (s)."""
    began = time.monotonic()
    done = launched(folder, "fit", "--steps", str(STEPS), "--json", *options)
    took_s = time.monotonic() - began
    if done.returncode:
        return {"batch": 0, "trials": 0, "took_s": took_s, "said": done.stderr}
    found = json.loads(done.stdout)
    fixed_bytes = None if found["model"] is None else found["model"]["fixed_bytes"]
    return {
        "batch": found["best"]["batch"],
        "trials": len(found["trials"]),
        "took_s": took_s,
        "fixed_bytes": fixed_bytes,
    }


def trains(folder: Path, batch: int) -> bool:
    """Say whether two ranks train this batch to their end in the memory."""
    return launched(folder, "run", "--batch-size", str(batch), "--no-observe").returncode == 0


def bisected(folder: Path) -> dict[str, Any]:
    """Return the largest batch that trains, found by doubling and halving, the launches and how long it took (s)."""
    began, fits, launches = time.monotonic(), 0, 0
    over = 1
    while trains(folder, over):
        fits, over, launches = over, 2 * over, launches + 1
    launches += 1
    while over - fits > 1:
        middle, launches = (fits + over) // 2, launches + 1
        fits, over = (middle, over) if trains(folder, middle) else (fits, middle)
    return {"batch": fits, "launches": launches, "took_s": time.monotonic() - began}


def measured(model: str) -> dict[str, Any]:
    """Return the answers on one model, and how often the batches that `fit` found train by themselves."""
    ends = TRAINING.replace("step < 400", f"step < {STEPS}").replace(
        "step += 1", f"step += 1\n        if step > {STEPS}: break"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("train.py").write_text(TRAINING.replace("MODEL", model))
        answers = {"0": fitted(folder, "--headroom", "0"), "own": fitted(folder)}
        folder.joinpath("train.py").write_text(ends.replace("MODEL", model))
        for each in answers.values():
            each["trained"] = sum(trains(folder, each["batch"]) for _ in range(AGAIN))
        return {"fit": answers, "bisection": bisected(folder)}


def left(answer: dict[str, Any], headroom: float) -> float:
    """Return which part of the largest batch the headroom leaves, by the fixed part of the memory that `fit` found."""
    samples = (MIB << 20) - (answer.get("fixed_bytes") or 0)
    return (samples - headroom * (MIB << 20)) / samples


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the answers on each model side by side."""
    lines = [f"{', '.join(machine().values())}; two ranks, {MEMORY} each", ""]
    names = ("model", "found by", "batch", "trials", "time", "of the largest", "the headroom leaves", "trained")
    lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for model, each in found.items():
        most = each["bisection"]
        rows = [("bisection", most, "launches", "", "")]
        for headroom, words in (("0", "`fit`, no headroom"), ("own", "`fit`, 10 % headroom")):
            one = each["fit"][headroom]
            share = f"{left(one, HEADROOMS[headroom]):.2f}"
            rows.append((words, one, "trials", share, f"{one['trained']} of {AGAIN}"))
        for words, answer, tried, share, trained in rows:
            part = answer["batch"] / max(1, most["batch"])
            took = f"{answer['took_s']:.0f} s"
            cells = (model, words, answer["batch"], answer[tried], took, f"{part:.2f}", share, trained)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Measure and write."""
    asked = parser(__doc__).parse_args()
    found = {}
    for name, model in MODELS.items():
        found[name] = measured(model)
        publish("fits", table(found), found, write=not asked.no_write)
    good = (
        each["fit"]["own"]["trained"] == AGAIN
        and all(
            answer["batch"] >= 0.9 * left(answer, HEADROOMS[name]) * each["bisection"]["batch"]
            for name, answer in each["fit"].items()
        )
        for each in found.values()
    )
    return int(asked.check and not all(good))


if __name__ == "__main__":
    sys.exit(main())
