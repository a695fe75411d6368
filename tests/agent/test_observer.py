"""What ranks note from inside: real torch, in forks of one process that has it, and under torchrun, cold and warm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.agent.rank_site import taking_part
from ddplaunch.watch.observed import differences
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch

#: Forks itself for each family, as a warm start does, so that torch is imported once.
FAMILIES = r"""
import copy, io, json, os, pickle, sys, warnings
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.nn.parallel import distributed as parallel
from ddplaunch.agent.rank_site import ddplaunch_marks, ddplaunch_observer

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
samples = TensorDataset(torch.randn(64, 4))

def loss(batch):
    return model(batch).square().mean()

def distributed(model):
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    return parallel.DistributedDataParallel(model)

def step(batch, optimizer=sgd):
    optimizer.zero_grad()
    loss(batch).backward()
    optimizer.step()

def plain():
    for (batch,) in DataLoader(samples, 4, shuffle=True):
        step(batch)

def workers():
    for (batch,) in DataLoader(samples, 4, num_workers=1):
        step(batch)

def accumulation():
    for number, (batch,) in enumerate(DataLoader(samples, 4)):
        loss(batch).backward()
        if number % 3 == 2:
            sgd.step()
            sgd.zero_grad()

def fetches_ahead():
    batches = iter(DataLoader(samples, 16))
    ahead, number = next(batches), 0
    while ahead is not None:
        (batch,), ahead, number = ahead, next(batches, None), number + 1
        loss(batch).backward()
        if number % 2 == 0:
            sgd.step()
            sgd.zero_grad()

def own_batches():
    for _ in range(6):
        for _ in range(5):
            loss(torch.randn(3, 4)).backward()
        sgd.step()
        sgd.zero_grad()

def a_distributed_model_that_was_compiled():
    ddp = distributed(model)
    fast = torch.compile(ddp, backend="eager")
    for _ in range(5):
        fast(torch.randn(6, 4)).square().mean().backward()
        sgd.step()
        sgd.zero_grad()

def iterable():
    class Samples(IterableDataset):
        def __iter__(self):
            yield from torch.randn(12, 6, 4)
    for batch in DataLoader(Samples(), batch_size=None):
        step(batch)

def two_optimizers():
    first, second = (torch.optim.Adam(model[part].parameters(), lr=rate) for part, rate in ((0, 1e-3), (2, 2e-3)))
    for (batch,) in DataLoader(samples, 4):
        step(batch, first)
        step(batch, second)

def scheduler():
    cycle = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=0.5, total_steps=20)
    for (batch,) in DataLoader(samples, 4):
        step(batch)
        cycle.step()

def manual():
    for number, (batch,) in enumerate(DataLoader(samples, 4)):
        sgd.param_groups[0]["lr"] = 0.001 * (number + 1)
        step(batch)

def closure():
    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=2)
    def again():
        lbfgs.zero_grad()
        value = loss(samples.tensors[0])
        value.backward()
        return value
    for _ in range(5):
        lbfgs.step(again)

def scaler_skips():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for number, (batch,) in enumerate(DataLoader(samples, 4)):
        sgd.zero_grad()
        value = loss(batch) * (float("inf") if number in (1, 3) else 1.0)
        scaler.scale(value).backward()
        scaler.step(sgd)
        scaler.update()

def compiled():
    compiled_step = torch.compile(sgd.step, backend="eager")
    for (batch,) in DataLoader(samples, 4):
        sgd.zero_grad()
        loss(batch).backward()
        compiled_step()

def copied():
    for (batch,) in DataLoader(samples, 4):
        step(batch)
        torch.save(model, io.BytesIO())
        copy.deepcopy(model)
        pickle.dumps(sgd)

def restored():
    saved = copy.deepcopy(sgd.state_dict())
    sgd.param_groups[0]["lr"] = 0.5
    sgd.load_state_dict(saved)
    plain()

def loaded_with_what_it_had():
    sgd.load_state_dict(sgd.state_dict())  # as accelerate does where it moves the state to the device
    schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1 / (step + 1))
    for (batch,) in DataLoader(samples, 4):
        step(batch)
        schedule.step()

def one_step():
    step(samples.tensors[0])

def broken():
    sgd.param_groups[0]["lr"] = object()
    for group in sgd.param_groups:
        group["lr"] = type("Rate", (float,), {"__float__": lambda self: 1 / 0})(0.1)
    for (batch,) in DataLoader(samples, 4):
        step(batch)

folder, observed = sys.argv[1], sys.argv[2] == "observed"
warnings.simplefilter("ignore")
for family in (plain, workers, accumulation, fetches_ahead, own_batches,
               a_distributed_model_that_was_compiled, iterable, two_optimizers, scheduler, manual, closure,
               scaler_skips, compiled, copied, restored, loaded_with_what_it_had, one_step, broken):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if observed:
                path = f"{folder}/{family.__name__}.json"
                ddplaunch_observer.begin(path, ddplaunch_marks.after_import)
            family()
            weights = [value.hex() for part in model.parameters() for value in part.flatten().tolist()]
            frames = dict(sys.modules["torch._dynamo.utils"].counters["frames"])  # what was compiled
            print(json.dumps([family.__name__, weights, torch.rand(1).item(), frames]), flush=True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, family.__name__
"""


def run_families(folder: Path, text: str) -> list[dict[str, Any]]:
    """Run FAMILIES, or what was made of it, observed and alone; return what each family printed at its end."""
    (folder / "families.py").write_text(text)
    printed = []
    for how in ("observed", "alone"):
        environ = clean_environment(RANK="0", WORLD_SIZE="1", PYTHONPATH=str(Path(__file__).parents[2]))
        command = [sys.executable, "families.py", str(folder), how]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        printed.append({line[0]: line[1:] for line in map(json.loads, done.stdout.splitlines())})
    return printed


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The notes by family, what each printed at its end when it was observed, and when it was not."""
    folder = tmp_path_factory.mktemp("families")
    observed, alone = run_families(folder, FAMILIES)
    notes = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    return notes, observed, alone


#: By family: batch size, batches of each step, backward passes, rates, steady, steps.
NOTED = {
    "plain": (4, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "workers": (4, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "accumulation": (4, [3, 3, 3, 3], [], [[0.01]], True, 4),
    "own_batches": (None, [], [5, 5, 5], [[0.01]], True, 4),
    "a_distributed_model_that_was_compiled": (None, [], [1, 1, 1], [[0.01]], True, 4),
    "iterable": (None, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "two_optimizers": (4, [1, 1, 1, 1], [], [[1e-3], [2e-3]], True, 4),
    "scheduler": (4, [1, 1, 1, 1], [], [[0.02]], False, 4),
    "manual": (4, [1, 1, 1, 1], [], [[0.001]], False, 4),
    "closure": (None, [], None, [[1.0]], True, 4),
    "scaler_skips": (4, [1, 2, 2, 1], [], [[0.01]], True, 4),
    "copied": (4, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "restored": (4, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "one_step": (None, [], [], [[0.01]], True, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", NOTED)
def test_what_is_noted(families: Any, family: str) -> None:
    size, batches, passes, rates, steady, steps = NOTED[family]
    note = families[0][family]
    loader = note["loaders"][0] if note["loaders"] else None
    assert (loader["batch_size"] if loader else None) == size
    assert [given for _, given in loader["batches"]] == batches if loader else batches == []
    assert note["passes"] == passes and note["steps"] == steps
    assert [[round(rate, 12) for rate in one["lr"]] for one in note["optimizers"]] == rates
    assert note["optimizers"][0]["steady"] is steady
    assert (
        (note["process_group"] is not None) == note["ddp"] == ("distributed" in family)
        and note["world_size"] == 1
        and note["over"] is (steps == 4)
    )


@pytest.mark.slow
def test_what_a_scheduler_was_told(families: Any) -> None:
    (optimizer,) = families[0]["scheduler"]["optimizers"]
    assert (optimizer["initial_lr"], optimizer["max_lr"], optimizer["rises"]) == ([0.02], [0.5], True)
    assert families[0]["plain"]["optimizers"][0]["rises"] is False
    restored = {family: note["optimizers"][0]["restored"] for family, note in families[0].items()}
    assert [family for family, was in restored.items() if was] == ["restored"]
    (loader,) = families[0]["plain"]["loaders"]
    assert (loader["sampler"], loader["samples"], loader["replicas"]) == ("torch.RandomSampler", 64, None)
    assert families[0]["iterable"]["loaders"][0]["samples"] is None


@pytest.mark.slow
def test_what_follows_from_the_shapes_of_real_scripts(families: Any) -> None:
    """timm's loader fetches ahead, to the end of an epoch; accelerate loads an optimizer with what it had."""

    def told(family: str, **plan: Any) -> list[str]:
        return [finding.what for finding in differences([families[0][family]], 1, {"world_size": 1, **plan})]

    assert families[0]["fetches_ahead"]["loaders"][0]["batches"] == [[1, 3], [2, 1]]
    assert told("fetches_ahead", batch_size=16, accum=2, lr=0.01) == []
    assert told("fetches_ahead", batch_size=16, accum=1, lr=0.01) == []
    assert told("accumulation", batch_size=4, accum=1) == [
        "the optimizer steps after 3 batches, the plan says after 1 (accumulation)"
    ]
    assert told("loaded_with_what_it_had", lr=0.001) == ["the optimizer runs at lr 0.01, the plan says 0.001"]
    assert told("restored", lr=0.001)[0].endswith("(the rate of the checkpoint)")


@pytest.mark.slow
def test_weights_and_random_numbers_are_the_same_to_the_last_bit(families: Any) -> None:
    _, observed, alone = families
    assert observed.keys() == alone.keys() and len(observed) == 18
    for family, (weights, drawn, compiled) in observed.items():
        if family != "workers":  # their seed is drawn by chance
            assert (weights, drawn) == tuple(alone[family][:2]), family
        if family == "a_distributed_model_that_was_compiled":
            assert compiled == alone[family][2] != {}


@pytest.mark.slow
def test_no_note_is_left_by_a_compiled_step_or_a_rate_that_raises(families: Any) -> None:
    assert not {"compiled", "broken"} & families[0].keys()


def test_a_rank_without_torch_or_with_a_broken_one(tmp_path: Path) -> None:
    """The error of a torch that cannot be imported is the script's own, with no line of ours in its traceback."""
    script = tmp_path / "script.py"
    script.write_text("import os, sys\nprint(sorted(n for n in os.environ if 'DDPLAUNCH' in n))\nimport torch\n")
    broken = tmp_path / "torch"
    broken.mkdir()
    (broken / "__init__.py").write_text("import torch.optim.optimizer\nraise ImportError('libcudart.so.12')\n")
    (broken / "optim").mkdir()
    (broken / "optim" / "__init__.py").touch()
    (broken / "optim" / "optimizer.py").write_text("register_optimizer_step_post_hook = 7\n")
    environ = clean_environment(RANK="0", PYTHONPATH=str(tmp_path))
    seen = []
    for more in ({}, taking_part(environ, note=str(tmp_path / "note.json"))):
        done = subprocess.run(
            [sys.executable, str(script)], env={**environ, **more}, capture_output=True, text=True, check=False
        )
        seen.append((done.returncode, done.stdout, done.stderr))
    assert seen[0] == seen[1] and seen[0][0] == 1 and "libcudart" in seen[0][2]
    assert seen[0][1] == "[]\n" and not (tmp_path / "note.json").exists()


# Under torchrun

TRAIN = r"""
import argparse, os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--fault", default="")
args = parser.parse_args()
fault = args.fault
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
if fault != "apart":
    dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(80, 4))
model = torch.nn.Linear(4, 1)
if fault not in ("apart", "unwrapped"):
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
for group in optimizer.param_groups:
    group["lr"] *= {"scaled": world, "ranks": rank + 1}.get(fault, 1)
sizes = {"divided": 2}
loader = DataLoader(
    data,
    args.batch_size // sizes.get(fault, 1),
    sampler=DistributedSampler(data, world, rank) if fault != "plain" else None,
)
if fault == "loaded" and rank == 1:
    model.module.load_state_dict({"weight": torch.ones(1, 4), "bias": torch.ones(1)})
for (batch,) in loader:
    optimizer.zero_grad()
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print(loss.item().hex())
if fault != "apart":
    dist.barrier()
sys.stdout.flush()
os._exit(0)
"""
FAULTS = {
    "": [],
    "scaled": ["the optimizer runs at lr 0.04, the plan says 0.02 (× 2, the world size)"],
    "divided": ["each rank takes 4 samples at a time, the plan says 8 (/ 2, the world size)"],
    "plain": ["each of 2 ranks trains on all 80 samples: its DataLoader has a SequentialSampler"],
    "unwrapped": ["nothing was sent between 2 ranks in their first 4 steps"],
    "loaded": ["the model of rank 1 is not that of rank 0: after 3 steps the parameters differ"],
    "apart": ["2 ranks train, and none has joined a process group: these are 2 separate trainings"],
    "ranks": [
        "the optimizer runs at lr 0.04, the plan says 0.02 (× 2, the world size)",
        "ranks run at different learning rates: 0.02 on rank 0, 0.04 on rank 1",
    ],
}


def train(folder: Path, fault: str, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Launch the training on two ranks; return how it ended, and its record."""
    (folder / "train.py").write_text(TRAIN)
    run_id = f"observed-{fault}-{os.getpid()}"  # `ps` lists those of other checkouts too
    numbers = ("--batch-size", "8", "--base-lr", "0.01")
    words = ("run", "2", *ANYWHERE, "--run-id", run_id, *numbers, *options, "--", "train.py")
    environ = clean_environment(NO_COLOR="1", COLUMNS="200")
    words = (*ddplaunch(*words), *(["--fault", fault] if fault else []))
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done, folder / ".ddplaunch" / "runs" / run_id


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "start"), [*((fault, "cold") for fault in FAULTS), ("ranks", "warm")])
def test_a_launch_says_where_it_does_not_train_as_planned(tmp_path: Path, fault: str, start: str) -> None:
    done, record = train(tmp_path, fault, "--start", start)
    outcome = json.loads((record / "outcome.json").read_text())
    assert [each["what"] for each in outcome["findings"]] == FAULTS[fault], done.stderr
    for what in FAULTS[fault]:
        assert done.stderr.count(what) == 1
    assert done.stderr.replace("warning[distributed-switch-off]", "").count("warning[") == len(FAULTS[fault])
    assert "cold start" not in done.stderr
    listed = subprocess.run(
        ddplaunch("ps", "--all", "--json"), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True
    )
    runs = [each for each in json.loads(listed.stdout)["runs"] if each["run_id"] == record.name]
    assert [each["what"] for each in runs[0]["findings"]] == FAULTS[fault]


@pytest.mark.slow
def test_a_rank_that_is_not_observed_computes_the_same(tmp_path: Path) -> None:
    observed, record = train(tmp_path, "scaled")
    assert len(list(record.glob("node-0/attempt-0/*.observed.json"))) == 2
    (tmp_path / "alone").mkdir()
    alone, record = train(tmp_path / "alone", "scaled", "--no-observe")
    assert list(record.glob("node-0/**/*observed.json")) == []
    assert "warning[" not in alone.stderr and json.loads((record / "outcome.json").read_text())["findings"] == []
    assert observed.stdout == alone.stdout and len(observed.stdout.split()) == 5


@pytest.mark.slow
def test_what_is_meant_so_is_not_told(tmp_path: Path) -> None:
    done, record = train(tmp_path, "scaled", "--ignore", "numbers-differ")
    assert len(list(record.glob("node-0/attempt-0/*.observed.json"))) == 2
    assert "numbers-differ" not in done.stderr and json.loads((record / "outcome.json").read_text())["findings"] == []


@pytest.mark.slow
def test_a_long_run_is_told_while_it_trains(tmp_path: Path) -> None:
    """It is said, and `ps` has it, before the ranks end: they wait until it is there."""
    (tmp_path / "train.py").write_text(
        TRAIN.replace(
            'if fault != "apart":\n    dist.barrier()',
            "import time\nuntil = time.monotonic() + 240\n"
            "while not os.path.exists('go') and time.monotonic() < until: time.sleep(0.05)",
        )
    )
    run_id = f"long-{os.getpid()}"
    words = ("run", "2", "--device", "cpu", "--run-id", run_id, "--batch-size", "8", "--", "train.py")
    environ = clean_environment(NO_COLOR="1", COLUMNS="200")
    command = [*ddplaunch(*words), "--fault", "divided"]
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        said = ""
        while "(/ 2, the world size)" not in said:
            line = run.stderr.readline()
            assert line, said
            said += line
        assert (tmp_path / ".ddplaunch/runs" / run_id / "node-0/observed.json").exists()
        listed = subprocess.run(
            ddplaunch("ps", "--json"), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True
        )
        runs = [each for each in json.loads(listed.stdout)["runs"] if each["run_id"] == run_id]
        assert [each["code"] for each in runs[0]["findings"]] == ["numbers-differ"]
        (tmp_path / "go").touch()
        said += run.stderr.read()
    assert run.returncode == 0 and said.count("(/ 2, the world size)") == 1
