"""What ranks note and measure of many kinds of training: real torch, in forks of one process that has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ddplaunch.watch.observed import differences
from ddplaunch.watch.phases import RankFile, parsed
from tests.agent.plugin_runs import DEADLINE_S
from tests.hosts.launching import clean_environment

pytestmark = pytest.mark.slow

#: Forks itself for each family, as a warm start does, so that torch is imported once.
FAMILIES = r"""
import copy, io, itertools, json, os, pickle, sys, warnings
import torch
import torch._dynamo  # as the first optimizer does, for two seconds
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torch.nn.parallel import distributed as parallel
from ddplaunch.agent.rank_site import ddplaunch_marks, ddplaunch_observer, ddplaunch_phases

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

def epochs(tells, look_between=False):
    sampler = DistributedSampler(samples, 2, 0)
    loader = DataLoader(samples, 4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        if tells:
            sampler.set_epoch(epoch)
        for (batch,) in loader:
            step(batch)
        for (batch,) in loader if look_between else ():
            loss(batch)

def epochs_in_one_order():
    epochs(tells=False)

def epochs_that_are_told():
    epochs(tells=True, look_between=True)

def one_step():
    step(samples.tensors[0])

def broken():
    sgd.param_groups[0]["lr"] = object()
    for group in sgd.param_groups:
        group["lr"] = type("Rate", (float,), {"__float__": lambda self: 1 / 0})(0.1)
    for (batch,) in DataLoader(samples, 4):
        step(batch)

def by_hand():
    import ddplaunch
    for (batch,) in DataLoader(samples, 4):
        loss(batch).backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.01 * each.grad
                each.grad = None
        ddplaunch.step(samples=7)

def kept_method():
    fetch = iter(DataLoader(samples, 4)).__next__
    for _ in range(6):
        step(fetch()[0])

def reduced_in_the_backward_pass():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda one: torch.distributed.all_reduce(one.grad))
    for (batch,) in DataLoader(samples, 4):
        step(batch)

class Shared(torch.utils.data.BatchSampler):  # every second batch, as accelerate gives each of two ranks its own
    def __iter__(self):
        return iter(list(super().__iter__())[::2])

    def __len__(self):
        return super().__len__() // 2

def shared_batches():
    for (batch,) in DataLoader(samples, batch_sampler=Shared(torch.utils.data.RandomSampler(samples), 4, False)):
        step(batch)

def other_names():
    class Other:  # has another name in a torch to come, for ddplaunch
        def __get__(self, iterator, _):
            if "rank_site" in sys._getframe(1).f_code.co_filename:
                raise AttributeError("no `_num_yielded`")
            return iterator.__dict__["given"]
        def __set__(self, iterator, value):
            iterator.__dict__["given"] = value
    torch.utils.data.dataloader._BaseDataLoaderIter._num_yielded = Other()
    plain()

folder = sys.argv[1]
warnings.simplefilter("ignore")
families = (plain, workers, accumulation, fetches_ahead, own_batches,
               a_distributed_model_that_was_compiled, iterable, two_optimizers, scheduler, closure,
               scaler_skips, compiled, restored, loaded_with_what_it_had, one_step, broken,
               epochs_in_one_order, epochs_that_are_told,
               by_hand, kept_method, reduced_in_the_backward_pass, shared_batches, other_names)
for watched, family in itertools.product((True, False), families):
    if family is compiled and not watched:
        continue  # of what is measured there is nothing to be compared, and the compiler takes seconds
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if watched:
                ddplaunch_phases.begin(f"{folder}/{family.__name__}.phases.jsonl", ddplaunch_marks.after_import)
                ddplaunch_observer.begin(f"{folder}/{family.__name__}.json", ddplaunch_marks.after_import)
            family()
            weights = [value.hex() for part in model.parameters() for value in part.flatten().tolist()]
            frames = dict(sys.modules["torch._dynamo.utils"].counters["frames"])  # what was compiled
            print(json.dumps([watched, family.__name__, weights, torch.rand(1).item(), frames]), flush=True)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, family.__name__
"""


class Families(NamedTuple):
    """By family: its note, its phases, and what it printed at its end when it was watched, and when it was not."""

    notes: dict[str, Any]
    phases: dict[str, RankFile]
    watched: dict[str, Any]
    alone: dict[str, Any]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Families:
    folder = tmp_path_factory.mktemp("families")
    (folder / "families.py").write_text(FAMILIES)
    environ = clean_environment(RANK="0", WORLD_SIZE="1", PYTHONPATH=str(Path(__file__).parents[2]))
    command = [sys.executable, "families.py", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=4 * DEADLINE_S)
    assert done.returncode == 0, done.stderr
    lines = list(map(json.loads, done.stdout.splitlines()))
    printed = [{line[1]: line[2:] for line in lines if line[0] is watched} for watched in (True, False)]
    notes = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    phases = {path.name.split(".")[0]: parsed(path.read_bytes().splitlines()) for path in folder.glob("*.phases.jsonl")}
    return Families(notes, phases, *printed)


#: By family: batch size, batches of each step, backward passes, rates, steady, steps.
NOTED = {
    "workers": (4, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "accumulation": (4, [3, 3, 3, 3], [], [[0.01]], True, 4),
    "own_batches": (None, [], [5, 5, 5], [[0.01]], True, 4),
    "a_distributed_model_that_was_compiled": (None, [], [1, 1, 1], [[0.01]], True, 4),
    "iterable": (None, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "two_optimizers": (4, [1, 1, 1, 1], [], [[1e-3], [2e-3]], True, 4),
    "scheduler": (4, [1, 1, 1, 1], [], [[0.02]], False, 4),
    "closure": (None, [], None, [[1.0]], True, 4),
    "scaler_skips": (4, [1, 2, 2, 1], [], [[0.01]], True, 4),
    "restored": (4, [1, 1, 1, 1], [], [[0.01]], True, 4),
    "one_step": (None, [], [], [[0.01]], True, 1),
}


def test_what_is_noted(families: Families) -> None:
    for family, (size, batches, passes, rates, steady, steps) in NOTED.items():
        note = families.notes[family]
        loader = note["loaders"][0] if note["loaders"] else {"batch_size": None, "batches": []}
        assert (loader["batch_size"], [given for _, given in loader["batches"]]) == (size, batches), family
        assert (note["passes"], note["steps"], note["over"]) == (passes, steps, steps == 4), family
        assert [[round(rate, 12) for rate in one["lr"]] for one in note["optimizers"]] == rates, family
        assert note["optimizers"][0]["steady"] is steady, family
        assert (note["process_group"] is not None) == note["ddp"] == ("distributed" in family), family
        assert note["world_size"] == 1, family


def test_what_a_scheduler_was_told(families: Families) -> None:
    (optimizer,) = families.notes["scheduler"]["optimizers"]
    assert (optimizer["initial_lr"], optimizer["max_lr"], optimizer["rises"]) == ([0.02], [0.5], True)
    assert families.notes["plain"]["optimizers"][0]["rises"] is False
    restored = {family: note["optimizers"][0]["restored"] for family, note in families.notes.items()}
    assert [family for family, was in restored.items() if was] == ["restored"]
    (loader,) = families.notes["plain"]["loaders"]
    assert (loader["sampler"], loader["samples"], loader["replicas"]) == ("torch.RandomSampler", 64, None)
    assert families.notes["iterable"]["loaders"][0]["samples"] is None


def test_what_follows_from_the_shapes_of_real_scripts(families: Families) -> None:
    """timm's loader fetches ahead, to the end of an epoch; accelerate loads an optimizer with what it had."""

    def told(family: str, **plan: Any) -> list[str]:
        return [finding.what for finding in differences([families.notes[family]], 1, {"world_size": 1, **plan})]

    assert families.notes["fetches_ahead"]["loaders"][0]["batches"] == [[1, 3], [2, 1]]
    assert told("fetches_ahead", batch_size=16, accum=2, lr=0.01) == []
    assert told("fetches_ahead", batch_size=16, accum=1, lr=0.01) == []
    assert told("accumulation", batch_size=4, accum=1) == [
        "the optimizer steps after 3 batches, the plan says after 1 (accumulation)"
    ]
    assert told("loaded_with_what_it_had", lr=0.001) == ["the optimizer runs at lr 0.01, the plan says 0.001"]
    assert told("restored", lr=0.001)[0].endswith("(the rate of the checkpoint)")


def test_epochs_in_one_order_are_told_after_three(families: Families) -> None:
    def told(family: str) -> list[str]:
        return [finding.code for finding in differences([families.notes[family]], 1, {"world_size": 1})]

    assert (told("epochs_in_one_order"), told("epochs_that_are_told")) == (["sampler-epoch-not-set"], [])


#: By family: steps on disk (the last one waits for the next, and they end by `os._exit`), samples of one, fetches, and
#: whether a forward pass can be told.
MEASURED = {
    "plain": (15, 4, True, True),
    "workers": (15, 4, True, True),
    "accumulation": (4, 12, True, True),
    "own_batches": (5, None, False, False),
    "iterable": (11, None, True, True),
    "two_optimizers": (15, 4, True, True),
    "closure": (4, None, False, False),
    "scaler_skips": (13, 4, True, True),
    "by_hand": (15, 7, True, True),
    "kept_method": (5, None, False, False),
    "shared_batches": (7, 4, True, True),
}


def test_what_is_measured(families: Families) -> None:
    for family, (steps, samples, fetches, forward) in MEASURED.items():
        facts, lines = families.phases[family]
        assert facts["device"] == "cpu" and facts["world_size"] == 1 and facts["threads"] >= 1
        assert [line.step for line in lines] == list(range(1, steps + 1)) and facts["steps"] == steps + 1, family
        assert lines[0].wall_s is None, "nobody saw the first one begin"
        for line in lines[1:]:
            assert line.wall_s is not None and line.backward_s is not None and line.backward_s > 0
            assert (line.data_s is not None, line.forward_s is not None) == (fetches, forward), (family, line)
            assert line.comm_s == 0, "a rank that is alone waits for no other"
            known = [line.data_s, line.forward_s, line.backward_s, line.comm_s, line.optimizer_s]
            assert sum(each or 0 for each in known) <= line.wall_s, family
            assert line.peak_bytes is not None and line.peak_bytes > 1 << 20
        counted = {line.samples for line in lines[1:]}
        assert samples in counted and counted <= {samples, 2 * (samples or 0) or None}, "GradScaler skipped a step"


def test_weights_and_random_numbers_are_the_same_to_the_last_bit(families: Families) -> None:
    assert families.watched.keys() - {"compiled"} == families.alone.keys() >= NOTED.keys() | MEASURED.keys()
    for family, (*as_ever, compiled_alone) in families.alone.items():
        weights, drawn, compiled = families.watched[family]
        if family not in ("workers", "epochs_in_one_order", "epochs_that_are_told"):  # a seed of workers is chance
            assert [weights, drawn] == as_ever, family
        assert compiled.get("total", 0) <= compiled_alone.get("total", 0), (
            "torch.compile has compiled something of ours"
        )
    assert families.watched["a_distributed_model_that_was_compiled"][2] != {}


def test_no_note_is_left_by_a_compiled_step_or_a_rate_that_raises(families: Families) -> None:
    assert not {"compiled", "broken"} & families.notes.keys()
    assert "compiled" not in families.phases, "a compiled step calls no hook"
    assert families.phases["other_names"].facts["broken"] == "AttributeError: no `_num_yielded`"


def test_the_loader_is_told(families: Families) -> None:
    files = families.phases
    assert files["plain"].facts["loader"] == {"workers": 0, "batch_size": 4, "samples": 64}
    assert files["workers"].facts["loader"] == {"workers": 1, "batch_size": 4, "samples": 64}
    assert files["iterable"].facts["loader"] == {"workers": 0, "batch_size": None, "samples": None}
    assert files["shared_batches"].facts["loader"]["samples"] == 32, "what this rank has of them"


def test_what_hooks_of_a_backward_pass_wait_for_is_communication(families: Families) -> None:
    """That is how FSDP gathers parameters and reduces gradients."""
    for line in families.phases["reduced_in_the_backward_pass"].lines[1:]:
        assert line.wall_s and line.comm_s and line.backward_s and line.comm_s + line.backward_s < line.wall_s
