"""What follows from the notes of ranks: which differences are told, and which are not certain enough to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.records.directory import note_path
from ddplaunch.watch.observed import Observed, differences, look, losses

PLAN = {"world_size": 2, "nproc": 2, "batch_size": 8, "accum": 1, "global_batch_size": 16, "lr": 0.02, "lr_factor": 2.0}
LOADER: dict[str, Any] = {"sampler": "torch.DistributedSampler", "batch_sampler": "torch.BatchSampler"}
LOADER |= {"batch_size": 8, "dataset": "Words", "samples": 100, "replicas": 2, "replica": 0}
LOADER["batches"] = [[1, 1], [2, 1], [3, 1], [4, 1]]
OPTIMIZER: dict[str, Any] = {"kind": "SGD", "steps": 4, "steady": True, "restored": False}
OPTIMIZER |= {"lr": [0.02], "rates": [0.02] * 4, "initial_lr": [None], "max_lr": [None]}


def note(rank: int, loader: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """What a rank of a healthy training of two notes, with ``changes``; ``optimizer`` changes its first optimizer."""
    optimizer = {**OPTIMIZER, **changes.pop("optimizer", {})}
    loaders = [{**LOADER, "replica": rank, **(loader or {})}]
    known = {"schema": 1, "rank": rank, "world_size": 2, "over": True, "steps": 4, "others": [], "passes": []}
    known |= {"process_group": {"size": 2, "backend": "gloo"}, "ddp": True, "loaders": loaders}
    return {**known, "optimizers": [optimizer, *changes.pop("more", [])], **changes}


def both(loader: dict[str, Any] | None = None, **changes: Any) -> list[dict[str, Any]]:
    return [note(rank, loader, **changes) for rank in range(2)]


def told(notes: list[dict[str, Any]], **plan: Any) -> list[str]:
    found = differences(notes, 2, {**PLAN, **plan})
    assert all(finding.why and finding.fix for finding in found)
    return [f"{finding.code}: {finding.what}" + "".join(f" [{each}]" for each in finding.where) for finding in found]


def warming(*rates: float, loader: dict[str, Any] | None = None, **changes: Any) -> list[dict[str, Any]]:
    return both(loader, optimizer={"rates": list(rates), "lr": list(rates[:1]), "steady": False, **changes})


WARMUP = {"warmup_steps": 100, "missing": {}, "passed": {}}


def rates(*values: float | None, **changes: Any) -> dict[str, Any]:
    nothing = [None] * len(values)
    return {"optimizer": {"lr": list(values), "initial_lr": nothing, "max_lr": nothing, **changes}}


UNSENT: dict[str, Any] = {"ddp": False, "exchanged": 0}
ALL_PLAIN = {"sampler": "torch.RandomSampler", "replicas": None, "replica": None}

AGAIN = " (× 2, the world size)"
HALF = " (/ 2, the world size)"
#: Changes of both ranks, the rate at which the optimizer runs instead of 0.02, and what is seen in it.
RATES: tuple[tuple[dict[str, Any], str, str], ...] = (
    (rates(0.04), "0.04", AGAIN),
    (rates(0.01), "0.01", HALF),
    (rates(0.02 * 2**0.5), "0.0282843", " (× √2, the root of the world size)"),
    (rates(0.3), "0.3", ""),
    (rates(0.0, initial_lr=[0.005], steady=False), "0.005", ""),  # a scheduler knows
    (rates(0.0016, initial_lr=[0.0016], max_lr=[0.04], steady=False), "0.04", AGAIN),  # a cycle's peak
    (rates(0.01, restored=True), "0.01", " (the rate of the checkpoint)"),
)
#: Changes of the DataLoader, of the plan, and what is seen in the batch that each rank loads instead of 8 samples.
BATCHES: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
    ({"batch_size": 4}, {}, HALF),
    ({"batch_size": 16}, {}, AGAIN),
    ({**ALL_PLAIN, "batch_size": 16}, {}, AGAIN),  # that of all ranks, of which each may take its part
    ({"batch_size": 4}, {"world_size": 8, "nproc": 2}, " (/ 2, the processes per node)"),
    ({"batch_size": 32}, {"world_size": 8, "nproc": 4}, " (× 4, the processes per node)"),
    ({"batch_size": 16}, {"world_size": 4, "nproc": 4}, ""),  # no root of a batch
    ({"batch_size": 12}, {}, ""),
)
AHEAD, OF_FOUR = [[1, 2], [2, 1], [3, 1], [4, 1]], [[1, 4], [2, 4], [3, 4], [4, 4]]
#: Notes, the accumulation of the plan, and after what the optimizer steps.
STEPS: tuple[tuple[list[dict[str, Any]], int, str], ...] = (
    (both(), 4, "every batch"),
    (both({"batches": AHEAD}), 3, "every batch"),  # it fetches one batch ahead
    (both({"batches": [[1, 5], [2, 5], [3, 5]]}), 1, "5 batches"),
    (both(loaders=[], passes=[20, 20, 20]), 1, "20 backward passes"),
    (both(loaders=[], passes=[8, 8, 8]), 16, "8 backward passes"),
)
SENT_NOTHING = "gradients-not-averaged: nothing was sent between 2 ranks in their first 4 steps"
TOLD: tuple[tuple[list[dict[str, Any]], dict[str, Any], str], ...] = (
    *((both(**more), {}, f"numbers-differ: the optimizer runs at lr {lr}, the plan says 0.02{why}")
      for more, lr, why in RATES),
    *((both(loader), plan, f"numbers-differ: each rank loads {loader['batch_size']} samples at a time, "
       f"the plan says 8{why}") for loader, plan, why in BATCHES),
    *((notes, {"accum": accum}, f"numbers-differ: the optimizer steps after {what}, the plan says after {accum} "
       "(accumulation)") for notes, accum, what in STEPS),
    ([note(0), note(1, {"batch_size": 12})], {"nproc": None},
     "numbers-differ: each rank loads 12 samples at a time, the plan says 8 [rank 1]"),
    (both(process_group={"size": 1, "backend": "gloo"}), {},
     "numbers-differ: the process group has 1 rank, the plan says 2"),
    (both(ALL_PLAIN), {},
     "data-not-divided: each of 2 ranks trains on all 100 samples: its DataLoader has a RandomSampler"),
    (both(loaders=[LOADER]), {}, "data-not-divided: all 2 ranks take the same part of the samples: part 0 of 2"),
    (both(process_group=None, ddp=False), {},
     "no-process-group: 2 ranks train, and none has joined a process group: these are 2 separate trainings"),
    ([note(0, sums=[1.5, 20.0]), note(1, sums=[1.6, 20.0])], {},
     "replicas-differ: the model of rank 1 is not that of rank 0: after 3 steps the parameters differ"),
    ([note(0, sums=[1.5, 20.0], sums_outside=[0.3, 1.0]), note(1, sums=[1.5, 20.0], sums_outside=[0.4, 1.0])], {},
     "replicas-differ: the optimizer trains parameters outside of DistributedDataParallel, and those of rank 1 are "
     "not those of rank 0 after 3 steps"),
    ([note(rank, ddp=False, exchanged=3, sums_outside=[0.3 + rank, 1.0]) for rank in range(2)], {},
     "replicas-differ: the optimizer trains parameters outside of DistributedDataParallel, and those of rank 1 are "
     "not those of rank 0 after 3 steps"),
    ([note(0, optimizer={"rates": [0.02, 0.02, 0.019]}), note(1)], {},
     "numbers-differ: in step 3 the learning rate is 0.019 on some ranks, 0.02 on others"),
    (both(), WARMUP, "numbers-differ: the learning rate is 0.02 from the first step, the plan says 100 warmup steps"),
    (warming(0.0, 0.0004, 0.0008, 0.0012, initial_lr=[0.02]), {**WARMUP, "lr": None},  # stepped by all ranks
     "numbers-differ: the learning rate rises as in a warmup of 50 steps, the plan says 100 (/ 2, the world size)"),
    (warming(0.0008, 0.0016, 0.0024, 0.0032, loader={"batches": OF_FOUR}), {**WARMUP, "accum": 4},  # after each batch
     "numbers-differ: the learning rate rises as in a warmup of 25 steps, the plan says 100 (/ 4, the accumulation)"),
    (both(**UNSENT), {}, SENT_NOTHING),
    (both(ALL_PLAIN, **UNSENT), {}, SENT_NOTHING),
    # a Trainer on the CPU, without ACCELERATE_USE_CPU
    (both({**ALL_PLAIN, "sampler": "SeedableRandomSampler"}, **UNSENT), {}, SENT_NOTHING),
)  # fmt: skip


@pytest.mark.parametrize(("notes", "plan", "expected"), TOLD, ids=[text for *_, text in TOLD])
def test_what_is_told(notes: list[dict[str, Any]], plan: dict[str, Any], expected: str) -> None:
    assert told(notes, **plan) == [expected]


SILENT: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "rounded otherwise": (both(**rates(0.020000001)), {}),
    "a manual warmup": (both(**rates(0.004, steady=False)), {}),
    "a warmup by epochs": (both(**rates(0.004)), {}),
    "a schedule that went on from a checkpoint": (both(**rates(0.003, restored=True)), {}),
    "a schedule that gives the rate itself": (both(**rates(1e-7, initial_lr=[1.0], steady=False)), {}),
    "warmup of a scheduler": (both(**rates(0.0, initial_lr=[0.02], steady=False)), {}),
    "a warmup from zero": (warming(0.0, 0.0002, 0.0004, 0.0006, initial_lr=[0.02]), WARMUP),
    "a warmup of another shape": (warming(0.0, 0.0001, 0.0004, 0.0009, initial_lr=[0.02]), WARMUP),
    "a warmup by another number": (warming(0.0003, 0.0006, 0.0009, 0.0012, initial_lr=[0.02]), WARMUP),
    "a warmup that the plan says is not passed": (both(), {**WARMUP, "missing": {"warmup_steps": {}}}),
    "a warmup that is over": (both(), {**WARMUP, "warmup_steps": 3}),
    "a warmup of a run that goes on": (both(optimizer={"restored": True}), WARMUP),
    "one group of several": (both(**rates(0.002, 0.02)), {}),
    "another optimizer has it": (both(**rates(0.4), more=[OPTIMIZER]), {}),
    "a rate on the GPU": (both(**rates(None)), {}),
    "one step": (both(**rates(0.3, steps=1)), {}),
    "no plan": (both({"batch_size": 3}, **rates(0.3)), dict.fromkeys(PLAN)),
    "two DataLoaders": (both(loaders=[{**LOADER, "replica": None}, {**LOADER, "batch_size": 56}]), {}),
    "batches of unknown size": (both({"batch_size": None}), {}),
    "cut into parts, two a step": (both({"batch_size": 16, "batches": [[1, 2], [2, 2], [3, 2]]}), {"accum": 4}),
    "two losses": (both(loaders=[], passes=[2, 2, 2]), {}),
    "accumulates": (both({"batches": [[1, 4], [2, 4], [3, 4]]}), {"accum": 4}),
    "fetches ahead, over an epoch": (both({"batches": [[1, 3], [2, 1], [3, 3], [4, 1]]}), {"accum": 2}),
    "fetches ahead, a short epoch": (both({"batches": [[1, 4], [2, 1], [3, 1]]}, steps=3), {"accum": 2}),
    "what was left of an epoch": (both({"batches": [[1, 2], [2, 1]]}, steps=2), {"accum": 2}),
    "a skipped step": (both({"batches": [[1, 1], [2, 2], [3, 1]]}), {}),
    "several optimizers, no DataLoader": (both(loaders=[], passes=[9, 9], more=[OPTIMIZER]), {}),
    "a part of its own": (both({**ALL_PLAIN, "dataset": "torch.Subset"}), {}),
    "an iterable dataset": (both({**ALL_PLAIN, "samples": None}), {}),
    "a sampler of its own": (both({**ALL_PLAIN, "sampler": "ByLength"}), {}),
    "tensor parallel": (both({**ALL_PLAIN}, ddp=False), {}),
    "gradients that the script averages": (both(ddp=False, exchanged=3), {}),
    "a backend that does not count": (both(ddp=False, exchanged=None), {}),
    "parts of a model, of fewer replicas": (
        [note(n, {"replicas": 1}, ddp=False, exchanged=3, sums_outside=[float(n), 1.0]) for n in range(2)],
        {},
    ),
    "a rate of its own from the first step": ([note(n, **rates(0.1 + n)) for n in range(2)], {"lr": None}),
    "one step without": (both(**UNSENT, steps=1), {}),
    "one rank sends": ([note(0, **UNSENT), note(1, ddp=False, exchanged=1)], {}),
    "parts of their own, and nothing sent": (both({**ALL_PLAIN, "dataset": "torch.Subset"}, **UNSENT), {}),
    "the same model, rounded otherwise": ([note(0, sums=[1.5, 20.0]), note(1, sums=[1.501, 20.0])], {}),
    "one rank's sums": ([note(0, sums=[1.5, 20.0]), note(1, sums=None)], {}),
    "not finite": ([note(0, sums=[1.5, 20.0]), note(1, sums=[float("inf"), 20.0])], {}),
    "a sharded optimizer": (
        [note(rank, sums=[float(rank), 9.0], optimizer={"kind": "ZeroRedundancyOptimizer"}) for rank in range(2)],
        {},
    ),
    "another step": ([note(0, sums=[1.5, 20.0]), note(1, sums=[2.5, 20.0], steps=2)], {}),
    "horovod": (both(process_group=None, ddp=False, others=["horovod"]), {}),
    "one of two has a group": ([note(0, **UNSENT), note(1, **UNSENT, process_group=None)], {}),
    "models of another library": ([note(n, sums=[float(n), 20.0], others=["deepspeed"]) for n in range(2)], {}),
    "a note of another version": (both(optimizers=None, loaders=[{}], passes="?"), {}),
    "unequal parts": ([note(0, {**ALL_PLAIN, "samples": 50}), note(1, {**ALL_PLAIN, "samples": 51})], {}),
}


@pytest.mark.parametrize("case", SILENT)
def test_what_is_not_certain_is_not_told(case: str) -> None:
    notes, plan = SILENT[case]
    assert told(notes, **plan) == []


@pytest.mark.parametrize("rising", [{"rises": True}, {"steps": 1}])
def test_a_cycle_that_begins_at_its_least_rate_is_not_told(rising: dict[str, Any]) -> None:
    cycle = {"initial_lr": [0.002], "lr": [0.002]}
    assert told(both(optimizer={**cycle, "rises": False})) != []
    assert told(both(optimizer={**cycle, **rising})) == []
    assert told(both(optimizer={**cycle, **rising, "max_lr": [0.01]})) != []


Look = Callable[..., Observed]


@pytest.fixture
def looked(tmp_path: Path) -> Look:
    """``looked(notes, plan, **record)`` is what is seen of these notes, beside a ``run.json`` if there is a record."""
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)

    def see(notes: list[dict[str, Any]], plan: dict[str, Any] | None = None, /, **record: Any) -> Observed:
        if record:
            (tmp_path / "run.json").write_text(json.dumps({"schema": 1, **record}))
        for one in notes:
            note_path(attempt, one["rank"]).write_text(json.dumps(one))
        return look(str(attempt), [0, 1], {} if plan is None else {"DDPLAUNCH_PLAN": json.dumps(plan)})

    return see


def test_a_number_that_was_not_passed_is_told_with_the_reason(looked: Look) -> None:
    missing = [
        {"number": "lr", "reason": "conf.yaml:3 says lr 0.04", "fix": "change `lr` in conf.yaml"},
        {"number": "batch_size", "reason": "no option for it was recognized", "fix": "read it"},
        {"number": "accum", "reason": "`--accum-option none`", "fix": ""},
    ]
    seen = looked(both({"batch_size": 4}, **rates(0.04)), {**PLAN, "accum": 2}, plan={"missing": missing})
    assert [each.why for each in seen.findings] == [f"it was not passed: {each['reason']}" for each in missing]
    assert [each.fix for each in seen.findings] == [
        "change `lr` in conf.yaml; if its own is meant, `--lr 0.04` says so to the plan",
        "read it; if its own is meant, `--batch-size 4` says so to the plan",
        "if its own is meant, `--accum 1` says so to the plan",
    ]


def test_a_rate_that_follows_from_a_wrong_batch_is_put_right_with_it(looked: Look) -> None:
    """Two fixes that are each right alone would together divide the rate twice."""
    rule = {"number": "lr", "arguments": ["--lr", "0.2"], "note": "train.py:157 multiplies it by 0.1"}
    for size, passed, fix in (
        (16, [], "take the factor out of the script"),
        (16, [rule], "put the batch right: the script makes the rate from it"),
        (8, [rule], "`--lr-option=--lr:base`"),
    ):
        rate, *_ = looked(both({"batch_size": size}, **rates(0.04)), PLAN, plan={"passed": passed}).findings
        assert rate.where == ("train.py:157",) * bool(passed) and rate.fix.startswith(fix)


def test_the_fix_names_the_option_that_was_filled_in(looked: Look, tmp_path: Path) -> None:
    """The record says which option a number went into; a folder without one, or with half a note, is no error."""
    passed = [
        {"number": "batch_size", "arguments": ["-b", "8"]},
        {"number": "lr", "arguments": ["--rate=0.02"]},
        {"number": "accum", "arguments": []},
    ]
    assert looked([], PLAN).findings == ()
    notes = both({"batch_size": 4}, **rates(0.04))
    rate, batch = looked(notes, PLAN).findings
    assert "`--lr 0.01`, of which it makes 0.02" in rate.fix and batch.fix == "give the script what it divides, 16"
    seen = looked(notes, PLAN, plan={"passed": passed})
    assert seen.over and "`--lr-option=--rate:base`" in seen.findings[0].fix
    assert "`--batch-option=-b:total`" in seen.findings[1].fix
    attempt, environ = tmp_path / "node-0" / "attempt-0", {"DDPLAUNCH_PLAN": json.dumps(PLAN)}
    assert look(str(attempt), [0, 1], environ, ("numbers-differ",)).findings == ()
    assert look(str(attempt), [0, 1], {"DDPLAUNCH_PLAN": "?"}).findings == ()
    note_path(attempt, 1).write_text('{"rank"')
    assert not looked([], PLAN).over


def test_a_finding_names_the_line_that_was_read_for_the_number(looked: Look) -> None:
    """The line that divides or scales it, else that of the option; with what was understood, where it did not hold."""
    at = {"file": "train.py", "line": 4}
    divides = "of all processes on a node: train.py:180 divides it by the processes per node"
    passed = [
        {"number": "node_batch_size", "arguments": ["-b", "16"], "at": at, "note": divides},
        {"number": "lr", "arguments": ["--lr=0.01"], "at": {"file": "train.py", "line": 5}, "note": ""},
        {"number": "accum", "arguments": ["--accum", "2"], "at": {"file": "train.py", "line": None}},
    ]
    seen = looked(both({"batch_size": 16}, **rates(0.04)), {**PLAN, "accum": 4}, plan={"passed": passed})
    rate, batch, accumulation = seen.findings
    assert (rate.where, batch.where, accumulation.where) == (("train.py:5",), ("train.py:180",), ())
    assert "`-b 16` was passed (of all processes on a node: train.py:180 divides it" in batch.why
    assert batch.fix == "`--batch-option=-b:rank`, as the script takes it for the batch of one rank"
    (smaller,) = looked(both({"batch_size": 4}), PLAN, plan={"passed": passed}).findings
    assert smaller.fix == "give the script what it divides, 16"


def on_gpus(*devices: str, visible: tuple[str | None, ...] = (None, None), gpus: int = 8) -> list[dict[str, Any]]:
    places = zip(range(2), devices, visible, strict=True)
    return [note(rank, optimizer={"devices": [gpu]}, visible=seen, gpus=gpus) for rank, gpu, seen in places]


def test_all_ranks_on_one_gpu() -> None:
    assert told(on_gpus("cuda:0", "cuda:0")) == [
        "gpu-of-all-ranks: all 2 ranks of this node train on cuda:0, of 8 GPUs that each of them sees"
    ]
    assert told(on_gpus("cuda:0", "cuda:1")) == []
    assert told(on_gpus("cuda:0", "cuda:0", visible=("0", "1"))) == []  # each sees another one
    assert told(on_gpus("cuda:0", "cuda:0", gpus=1)) == []  # there is no other
    assert told(on_gpus("cpu", "cpu", gpus=0)) == []
    assert told(on_gpus("cuda:0", "cuda:0")[:1]) == []  # the other rank has not noted anything yet


def test_parameters_on_the_cpu_of_a_launch_on_gpus(looked: Look) -> None:
    def codes(notes: list[dict[str, Any]], device: Any) -> list[str]:
        """By the plan, and by the record of a launch whose environment has none."""
        found = [finding.code for finding in differences(notes, 2, {**PLAN, "device": device})]
        assert len(notes) == 1 or [each.code for each in looked(notes, plan={"device": device}).findings] == found
        return found

    assert codes(on_gpus("cpu", "cpu"), {"value": "cuda"}) == ["gpus-not-used"]
    assert codes(on_gpus("cpu", "cpu"), {"value": "cpu"}) == []
    assert codes(on_gpus("cpu", "cpu"), "cuda") == codes(on_gpus("cpu", "cpu"), None) == []
    assert codes(on_gpus("cpu", "cuda:1"), {"value": "cuda"}) == []
    assert codes(on_gpus("cpu", "cpu")[:1], {"value": "cuda"}) == []  # the other rank has not noted anything yet


def test_what_the_source_showed_before_the_run_is_not_said_again(looked: Look) -> None:
    assert [each.code for each in looked(both(ALL_PLAIN)).findings] == ["data-not-divided"]
    assert looked(both(ALL_PLAIN), findings=[{"code": "data-not-divided"}]).findings == ()


def test_losses_that_are_not_finite_at_the_end_are_a_warning_of_rank_0_alone(tmp_path: Path) -> None:
    finite, bad = "step 1 loss 0.5\n", "step 2 loss nan\nstep 3 loss nan\n"
    for out, err, warned in (
        (finite, "", False),
        (finite + bad, "", True),
        ("", finite + bad, True),
        (bad + finite, "", False),
    ):
        (tmp_path / "rank-0.out").write_text(out)
        (tmp_path / "rank-0.err").write_text(err)
        (tmp_path / "rank-1.out").write_text(bad)
        assert [found.code for found in losses(str(tmp_path))] == ["not-a-number"] * warned
    (tmp_path / "rank-0.out").write_text(bad)
    for since, first in (((7, 6), "rank 1"), ((None, 9), "rank 1"), ((6, 6), ""), ((None, None), ""), ((2,), "")):
        for rank, step in enumerate(since):
            (tmp_path / f"rank-{rank}.phases.jsonl").write_text(f'{{"not_finite_since": {json.dumps(step)}}}\n')
        if len(since) == 1:
            (tmp_path / "rank-1.phases.jsonl").unlink()
        (found,) = losses(str(tmp_path))
        assert found.why.startswith(f"{first} had the first gradients" if first else "nothing in the script"), since
