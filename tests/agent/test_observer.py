"""What ranks note from inside, and what is said of it under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import taking_part
from ddplaunch.values.variable_names import PLAN
from ddplaunch.watch.observed import look
from ddplaunch.watch.phases import read_phases
from tests.agent.guarded import ROOT
from tests.agent.plugin_runs import DEADLINE_S
from tests.hosts.launching import ANYWHERE, clean_environment, ddplaunch

#: ctypes by itself: some versions of libffi keep a file open.
PROBE = """
import ctypes, json, os, sys
names = sorted(name for name in os.environ if name.startswith("DDPLAUNCH"))
print(json.dumps([os.environ.get("PYTHONPATH"), sys.path, getattr(sys, "theirs", False), names, os.dup(0)]), flush=True)
import torch
"""


@pytest.mark.parametrize("path", [False, True], ids=["", "a sitecustomize of one's own"])
def test_a_script_sees_nothing_of_it_also_where_torch_is_broken(tmp_path: Path, path: bool) -> None:
    """PYTHONPATH, sys.path, and another sitecustomize are as they would be; what the rank starts has no part in it.

    The error of a torch that cannot be imported is the script's own, with no line of ours in its traceback.
    """
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = True\n")
    (tmp_path / "script.py").write_text(PROBE)
    broken = tmp_path / "torch"
    (broken / "optim").mkdir(parents=True)
    (broken / "__init__.py").write_text("import torch.optim.optimizer\nraise ImportError('libcudart.so.12')\n")
    (broken / "optim" / "__init__.py").touch()
    (broken / "optim" / "optimizer.py").write_text("register_optimizer_step_post_hook = 7\n")
    environ = clean_environment(RANK="0", **({"PYTHONPATH": str(tmp_path)} if path else {}))
    if not path:
        environ.pop("PYTHONPATH", None)
    seen, note = [], tmp_path / "note.json"
    ours = taking_part(environ, DDPLAUNCH_STACKS="1", DDPLAUNCH_OBSERVE=note, DDPLAUNCH_PHASES=tmp_path / "phases")
    for more in ({}, ours):
        command = [sys.executable, "-u", "script.py"]
        done = subprocess.run(command, cwd=tmp_path, env={**environ, **more}, capture_output=True, text=True)
        seen.append((done.returncode, done.stdout, done.stderr))
    assert seen[0] == seen[1] and seen[0][0] == 1 and "libcudart" in seen[0][2]
    assert json.loads(seen[0][1])[2:4] == [path, []] and not note.exists()


# Two ranks

TRAIN = r"""
import argparse, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.01)
args = parser.parse_args()
world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])

class Samples(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.02 if rank == 1 else 0.001)
        return super().__getitem__(index)

def train(fault, rank=rank, store="env://"):
    if fault != "apart":
        dist.init_process_group("gloo", store, world_size=world, rank=rank)
    torch.manual_seed(0)
    data = Samples(torch.randn(400, 4)) if fault == "ranks" else TensorDataset(torch.randn(80, 4))
    model = torch.nn.Linear(4, 1)
    if fault not in ("apart", "unwrapped", "loss"):
        model = DistributedDataParallel(model)
    torch.manual_seed(rank if fault == "head" else 0)
    head = torch.nn.Linear(1, 1)  # outside of DistributedDataParallel
    trained = [*model.parameters(), *(head.parameters() if fault == "head" else [])]
    optimizer = torch.optim.SGD(trained, lr=args.lr)
    for group in optimizer.param_groups:
        group["lr"] *= {"ranks": rank + 1}.get(fault, 1)
    if fault in ("often", "first"):
        warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 200))
    sampler = DistributedSampler(data, world, rank) if fault != "plain" else None
    loader = DataLoader(data, args.batch_size, sampler=sampler)
    if fault == "loaded" and rank == 1:
        model.module.load_state_dict({"weight": torch.ones(1, 4), "bias": torch.ones(1)})
    for (batch,) in loader:
        optimizer.zero_grad()
        loss = (head(model(batch)) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        for _ in range({"often": world, "first": rank == 0}.get(fault, 0)):
            warmup.step()  # as often as accelerate's
        if fault == "loss":
            dist.all_reduce(loss.detach())
        if rank == 0:
            print(loss.item().hex())
    if fault != "apart":
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)

"""
#: Both ranks of each fault are forked, so that torch is imported once.
FORKED = """
import torch._dynamo  # as DistributedDataParallel does, for two seconds
from ddplaunch.agent.rank_site import ddplaunch_marks, ddplaunch_observer
for fault in os.environ["FAULTS"].split(","):
    for rank in range(2):
        if os.fork() == 0:
            try:
                os.environ["RANK"] = str(rank)
                note = f"node-0/attempt-{fault}/rank-{rank}.observed.json"
                ddplaunch_observer.begin(note, ddplaunch_marks.after_import)
                train(fault, rank, f"file://{os.getcwd()}/store-{fault}")
            finally:
                os._exit(1)
    assert [os.wait()[1], os.wait()[1]] == [0, 0], fault
"""
FAULTS = {
    "none": [],
    "plain": ["each of 2 ranks trains on all 80 samples: its DataLoader has a SequentialSampler"],
    "unwrapped": ["nothing was sent between 2 ranks in their first 4 steps"],
    "loaded": ["the model of rank 1 is not that of rank 0: after 3 steps the parameters differ"],
    "head": [
        "the optimizer trains parameters outside of DistributedDataParallel, and those of rank 1 are not those of rank "
        "0 after 3 steps"
    ],
    "loss": [
        "the optimizer trains parameters outside of DistributedDataParallel, and those of rank 1 are not those of rank "
        "0 after 3 steps"
    ],
    "first": ["in step 4 the learning rate is 0.0001 on some ranks, 0.0004 on others"],
    "often": ["the learning rate rises as in a warmup of 100 steps, the plan says 200 (/ 2, the world size)"],
    "apart": ["2 ranks train, and none has joined a process group: these are 2 separate trainings"],
}


@pytest.mark.slow
def test_what_ranks_note_shows_where_they_do_not_train_as_planned(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + FORKED)
    for fault in FAULTS:
        (tmp_path / "node-0" / f"attempt-{fault}").mkdir(parents=True)
    environ = clean_environment(WORLD_SIZE="2", RANK="0", FAULTS=",".join(FAULTS), PYTHONPATH=str(ROOT))
    command = [sys.executable, "-W", "ignore", "train.py", "--lr", "0.02"]
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=DEADLINE_S)
    for fault, told in FAULTS.items():
        plan = {"world_size": 2, "batch_size": 8, "lr": 0.02, **({"warmup_steps": 200} if fault == "often" else {})}
        seen = look(f"{tmp_path}/node-0/attempt-{fault}", range(2), {PLAN: json.dumps(plan)})
        assert ([finding.what for finding in seen.findings], seen.over) == (told, True), fault
    often = {PLAN: json.dumps({"world_size": 2, "lr": 0.02, "warmup_steps": 200})}
    ignored = look(f"{tmp_path}/node-0/attempt-often", range(2), often, {"numbers-differ"})
    assert not ignored.findings, "it is meant so"


# Under torchrun


@pytest.mark.slow
def test_a_launch_says_where_it_does_not_train_as_planned_while_it_trains_and_then_where_its_time_went(
    tmp_path: Path,
) -> None:
    """The first is said, and `ps` has it, before the ranks end: they wait until it is there."""
    flush = "    sys.stdout.flush()\n"
    waits = "    while not os.path.exists('go'): __import__('time').sleep(0.05)\n"
    (tmp_path / "train.py").write_text(TRAIN.replace(flush, waits + flush) + "train('ranks')\n")
    run_id = f"observed-{os.getpid()}"  # `ps` lists those of other checkouts too
    words = ("run", "2", *ANYWHERE, "--run-id", run_id, "--batch-size", "8", "--base-lr", "0.01", "--phases")
    environ = clean_environment(NO_COLOR="1", COLUMNS="200")
    command, pipe = ddplaunch(*words, "--", "train.py"), subprocess.PIPE
    run = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=pipe, stderr=pipe, text=True)
    told = "the optimizer runs at lr 0.04, the plan says 0.02 (× 2, the world size)"
    try:
        assert run.stderr is not None
        said = ""
        while told not in said:
            line = run.stderr.readline()
            assert line, said
            said += line
        command = ddplaunch("ps", "--json")
        listed = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True)
        (findings,) = [one["findings"] for one in json.loads(listed.stdout)["runs"] if one["run_id"] == run_id]
        assert [one["what"] for one in findings] == [told]
    finally:
        (tmp_path / "go").touch()
        printed, more = run.communicate(timeout=DEADLINE_S)
    said = " ".join((said + more).split())
    record = tmp_path / ".ddplaunch" / "runs" / run_id
    assert run.returncode == 0 and said.count("warning[") == 2 and printed.count("0x") == 25, said
    outcome = json.loads((record / "outcome.json").read_text())
    assert [one["what"] for one in outcome["findings"]] == [told] and said.count(told) == 1
    assert "phases: " in said and "waiting for data" in said and "unknown" not in said
    assert "warning[rank-late]: the others waited for rank 1: it works" in said
    assert "waiting for data takes longer on it" in said
    files = read_phases(record / "node-0" / "attempt-0", [0, 1])
    assert len(files) == 2 and files[0].facts["gradient_bytes"] == 20 and files[1].facts["loader"]["batch_size"] == 8
    late, other = (sum(line.data_s or 0 for line in files[rank].lines) for rank in (1, 0))
    assert late > 2 * other
    assert sum(line.comm_s or 0 for line in files[0].lines) > 2 * sum(line.comm_s or 0 for line in files[1].lines)


#: The batch of one rank has no number in its third step; the weights of all have none after it, for many steps.
BAD_BATCH = """
import time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 40):
    batch = torch.ones(2, 4)
    if step == 3 and dist.get_rank() == 1:
        batch[0, 0] = float("nan")
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item(), flush=True), time.sleep(0.2)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_the_rank_with_the_first_gradient_that_is_no_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BAD_BATCH)
    command = ddplaunch("run", "2", *ANYWHERE, "--phases", "--", "train.py")
    environ, pipe, both = clean_environment(NO_COLOR="1"), subprocess.PIPE, subprocess.STDOUT
    done = subprocess.run(command, cwd=tmp_path, env=environ, stdout=pipe, stderr=both, text=True)
    before, *said = " ".join(done.stdout.split()).split("warning[not-a-number]: the loss is not a number from ")
    assert done.returncode == 0 and len(said) == 1 and said[0].count("loss nan") > 2, before
    assert "rank-0.out:4 why: rank 1 had the first gradients that are no numbers, in step 3; nothing" in said[0]
