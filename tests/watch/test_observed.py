"""What follows from the notes of ranks: which differences are told, and which are not certain enough to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddplaunch.records.directory import note_path
from ddplaunch.watch.observed import differences, look, losses

PLAN = {"world_size": 2, "nproc": 2, "batch_size": 8, "accum": 1, "global_batch_size": 16, "lr": 0.02, "lr_factor": 2.0}
LOADER = {
    "batch_size": 8,
    "sampler": "torch.DistributedSampler",
    "batch_sampler": "torch.BatchSampler",
    "replicas": 2,
    "replica": 0,
    "dataset": "Words",
    "samples": 100,
    "batches": [[1, 1], [2, 1], [3, 1], [4, 1]],
}
OPTIMIZER = {
    "kind": "SGD",
    "steps": 4,
    "lr": [0.02],
    "rates": [0.02] * 4,
    "initial_lr": [None],
    "max_lr": [None],
    "steady": True,
    "restored": False,
}


def note(rank: int, loader: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """What a rank of a healthy training of two notes, with ``changes``; ``optimizer`` changes its first optimizer."""
    optimizer = {**OPTIMIZER, **changes.pop("optimizer", {})}
    return {
        "schema": 1,
        "rank": rank,
        "world_size": 2,
        "over": True,
        "steps": 4,
        "process_group": {"size": 2, "backend": "gloo"},
        "others": [],
        "ddp": True,
        "optimizers": [optimizer, *changes.pop("more", [])],
        "loaders": [{**LOADER, "replica": rank, **(loader or {})}],
        "passes": [],
        **changes,
    }


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


ALL_PLAIN = {"sampler": "torch.RandomSampler", "replicas": None, "replica": None}

TOLD: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "scaled again": (
        both(**rates(0.04)),
        {},
        "numbers-differ: the optimizer runs at lr 0.04, the plan says 0.02 (× 2, the world size)",
    ),
    "not scaled": (
        both(**rates(0.01)),
        {},
        "numbers-differ: the optimizer runs at lr 0.01, the plan says 0.02 (/ 2, the world size)",
    ),
    "the root": (
        both(**rates(0.02 * 2**0.5)),
        {},
        "numbers-differ: the optimizer runs at lr 0.0282843, the plan says 0.02 (× √2, the root of the world size)",
    ),
    "another rate, too high": (
        both(**rates(0.3)),
        {},
        "numbers-differ: the optimizer runs at lr 0.3, the plan says 0.02",
    ),
    "a scheduler knows": (
        both(**rates(0.0, initial_lr=[0.005], steady=False)),
        {},
        "numbers-differ: the optimizer runs at lr 0.005, the plan says 0.02",
    ),
    "a cycle's peak": (
        both(**rates(0.0016, initial_lr=[0.0016], max_lr=[0.04], steady=False)),
        {},
        "numbers-differ: the optimizer runs at lr 0.04, the plan says 0.02 (× 2, the world size)",
    ),
    "from a checkpoint": (
        both(**rates(0.01, restored=True)),
        {},
        "numbers-differ: the optimizer runs at lr 0.01, the plan says 0.02 (the rate of the checkpoint)",
    ),
    "one rank alone": (
        [note(0), note(1, {"batch_size": 12})],
        {},
        "numbers-differ: each rank loads 12 samples at a time, the plan says 8 [rank 1]",
    ),
    "ranks differ": (
        [note(0, **rates(0.1)), note(1, **rates(0.2))],
        {"lr": None},
        "numbers-differ: ranks run at different learning rates: 0.1 on rank 0, 0.2 on rank 1",
    ),
    "batch divided twice": (
        both({"batch_size": 4}),
        {},
        "numbers-differ: each rank loads 4 samples at a time, the plan says 8 (/ 2, the world size)",
    ),
    "batch multiplied": (
        both({"batch_size": 16}),
        {},
        "numbers-differ: each rank loads 16 samples at a time, the plan says 8 (× 2, the world size)",
    ),
    "the batch of all ranks, of which each may take its part": (
        both({**ALL_PLAIN, "batch_size": 16}),
        {},
        "numbers-differ: each rank loads 16 samples at a time, the plan says 8 (× 2, the world size)",
    ),
    "batch divided on each node": (
        both({"batch_size": 4}),
        {"world_size": 8, "nproc": 2},
        "numbers-differ: each rank loads 4 samples at a time, the plan says 8 (/ 2, the processes per node)",
    ),
    "batch of a node": (
        both({"batch_size": 32}),
        {"world_size": 8, "nproc": 4},
        "numbers-differ: each rank loads 32 samples at a time, the plan says 8 (× 4, the processes per node)",
    ),
    "no root of a batch": (
        both({"batch_size": 16}),
        {"world_size": 4, "nproc": 4},
        "numbers-differ: each rank loads 16 samples at a time, the plan says 8",
    ),
    "another batch": (
        both({"batch_size": 12}),
        {},
        "numbers-differ: each rank loads 12 samples at a time, the plan says 8",
    ),
    "never accumulates": (
        both(),
        {"accum": 4},
        "numbers-differ: the optimizer steps after every batch, the plan says after 4 (accumulation)",
    ),
    "never accumulates, and fetches ahead": (
        both({"batches": [[1, 2], [2, 1], [3, 1], [4, 1]]}),
        {"accum": 3},
        "numbers-differ: the optimizer steps after every batch, the plan says after 3 (accumulation)",
    ),
    "accumulates by itself": (
        both({"batches": [[1, 5], [2, 5], [3, 5]]}),
        {},
        "numbers-differ: the optimizer steps after 5 batches, the plan says after 1 (accumulation)",
    ),
    "accumulates without a DataLoader": (
        both(loaders=[], passes=[20, 20, 20]),
        {},
        "numbers-differ: the optimizer steps after 20 backward passes, the plan says after 1 (accumulation)",
    ),
    "accumulation divided by the ranks": (
        both(loaders=[], passes=[8, 8, 8]),
        {"accum": 16},
        "numbers-differ: the optimizer steps after 8 backward passes, the plan says after 16 "
        "(accumulation / 2, the world size)",
    ),
    "a group of one": (
        both(process_group={"size": 1, "backend": "gloo"}),
        {},
        "numbers-differ: the process group has 1 rank, the plan says 2",
    ),
    "a plain sampler": (
        both(ALL_PLAIN),
        {},
        "data-not-divided: each of 2 ranks trains on all 100 samples: its DataLoader has a RandomSampler",
    ),
    "the same part": (
        both(loaders=[LOADER]),
        {},
        "data-not-divided: all 2 ranks take the same part of the samples: part 0 of 2",
    ),
    "no group": (
        both(process_group=None, ddp=False),
        {},
        "no-process-group: 2 ranks train, and none has joined a process group: these are 2 separate trainings",
    ),
    "another model": (
        [note(0, sums=[1.5, 20.0]), note(1, sums=[1.6, 20.0])],
        {},
        "replicas-differ: the model of rank 1 is not that of rank 0: after 3 steps the parameters differ",
    ),
    "another head": (
        [note(0, sums=[1.5, 20.0], sums_outside=[0.3, 1.0]), note(1, sums=[1.5, 20.0], sums_outside=[0.4, 1.0])],
        {},
        "replicas-differ: the optimizer trains parameters outside of DistributedDataParallel, and those of rank 1 are "
        "not those of rank 0 after 3 steps",
    ),
    "no warmup": (
        both(),
        WARMUP,
        "numbers-differ: the learning rate is 0.02 from the first step, the plan says 100 warmup steps",
    ),
    "a schedule that is stepped by all ranks": (
        warming(0.0, 0.0004, 0.0008, 0.0012, initial_lr=[0.02]),
        {**WARMUP, "lr": None},
        "numbers-differ: the learning rate rises as in a warmup of 50 steps, the plan says 100 (/ 2, the world size)",
    ),
    "a schedule that is stepped after each batch": (
        warming(0.0008, 0.0016, 0.0024, 0.0032, loader={"batches": [[1, 4], [2, 4], [3, 4], [4, 4]]}),
        {**WARMUP, "accum": 4},
        "numbers-differ: the learning rate rises as in a warmup of 25 steps, the plan says 100 (/ 4, the accumulation)",
    ),
    "a process group that nothing uses": (
        both(ddp=False, exchanged=0),
        {},
        "gradients-not-averaged: nothing was sent between 2 ranks in their first 4 steps",
    ),
    "a process group that nothing uses, and all samples for each": (
        both(ALL_PLAIN, ddp=False, exchanged=0),
        {},
        "gradients-not-averaged: nothing was sent between 2 ranks in their first 4 steps",
    ),
    "nothing is averaged: a Trainer on the CPU, without ACCELERATE_USE_CPU": (
        both({**ALL_PLAIN, "sampler": "SeedableRandomSampler"}, ddp=False, exchanged=0),
        {},
        "gradients-not-averaged: nothing was sent between 2 ranks in their first 4 steps",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_is_told(case: str) -> None:
    notes, plan, expected = TOLD[case]
    assert told(notes, **plan) == [expected]


SILENT: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "as planned": (both(), {}),
    "rounded otherwise": (both(**rates(0.020000001)), {}),
    "a manual warmup": (both(**rates(0.004, steady=False)), {}),
    "a warmup by epochs": (both(**rates(0.004)), {}),
    "a schedule that went on from a checkpoint": (both(**rates(0.003, restored=True)), {}),
    "a schedule that gives the rate itself": (both(**rates(1e-7, initial_lr=[1.0], steady=False)), {}),
    "warmup of a scheduler": (both(**rates(0.0, initial_lr=[0.02], steady=False)), {}),
    "a warmup as planned": (warming(0.0002, 0.0004, 0.0006, 0.0008), WARMUP),
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
    "cut into parts": (both({"batch_size": 32}), {"accum": 4}),
    "two losses": (both(loaders=[], passes=[2, 2, 2]), {}),
    "accumulates": (both({"batches": [[1, 4], [2, 4], [3, 4]]}), {"accum": 4}),
    "fetches ahead, to the end of an epoch": (both({"batches": [[1, 3], [2, 1]]}, steps=2), {"accum": 2}),
    "fetches ahead, over an epoch": (both({"batches": [[1, 3], [2, 1], [3, 3], [4, 1]]}), {"accum": 2}),
    "fetches ahead, a short epoch": (both({"batches": [[1, 4], [2, 1], [3, 1]]}, steps=3), {"accum": 2}),
    "what was left of an epoch": (both({"batches": [[1, 2], [2, 1]]}, steps=2), {"accum": 2}),
    "what was left, and the next epoch": (both({"batches": [[1, 4], [2, 1], [3, 4], [4, 1]]}), {"accum": 4}),
    "a skipped step": (both({"batches": [[1, 1], [2, 2], [3, 1]]}), {}),
    "several optimizers, no DataLoader": (both(loaders=[], passes=[9, 9], more=[OPTIMIZER]), {}),
    "a part of its own": (both({**ALL_PLAIN, "dataset": "torch.Subset"}), {}),
    "an iterable dataset": (both({**ALL_PLAIN, "samples": None}), {}),
    "a sampler of its own": (both({**ALL_PLAIN, "sampler": "ByLength"}), {}),
    "tensor parallel": (both({**ALL_PLAIN}, ddp=False), {}),
    "gradients that the script averages": (both(ddp=False, exchanged=3), {}),
    "a backend that does not count": (both(ddp=False, exchanged=None), {}),
    "one step without": (both(ddp=False, exchanged=0, steps=1), {}),
    "one rank sends": ([note(0, ddp=False, exchanged=0), note(1, ddp=False, exchanged=1)], {}),
    "parts of their own, and nothing sent": (
        both({**ALL_PLAIN, "dataset": "torch.Subset"}, ddp=False, exchanged=0),
        {},
    ),
    "the same model, rounded otherwise": ([note(0, sums=[1.5, 20.0]), note(1, sums=[1.501, 20.0])], {}),
    "one rank's sums": ([note(0, sums=[1.5, 20.0]), note(1, sums=None)], {}),
    "not a number": ([note(0, sums=[1.5, 20.0]), note(1, sums=[float("nan"), 20.0])], {}),
    "a sharded optimizer": (
        [note(rank, sums=[float(rank), 9.0], optimizer={"kind": "ZeroRedundancyOptimizer"}) for rank in range(2)],
        {},
    ),
    "another step": ([note(0, sums=[1.5, 20.0]), note(1, sums=[2.5, 20.0], steps=2)], {}),
    "horovod": (both(process_group=None, ddp=False, others=["horovod"]), {}),
    "one of two has a group": ([note(0), note(1, process_group=None, ddp=False)], {}),
    "a note of another version": (both(optimizers=None, loaders=[{}], passes="?"), {}),
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


def test_a_number_that_was_not_passed_is_told_with_the_reason(tmp_path: Path) -> None:
    missing = [
        {"number": "lr", "reason": "conf.yaml:3 says lr 0.04", "fix": "change `lr` in conf.yaml"},
        {"number": "batch_size", "reason": "no option for it was found", "fix": "read it"},
        {"number": "accum", "reason": "`--accum-option none`", "fix": ""},
    ]
    environ = {"DDPLAUNCH_PLAN": json.dumps({**PLAN, "accum": 2})}
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "plan": {"missing": missing}}))
    for one in both({"batch_size": 4}, **rates(0.04)):
        note_path(attempt, one["rank"]).write_text(json.dumps(one))
    found = [(each.what, each.why, each.fix) for each in look(str(attempt), [0, 1], environ).findings]
    assert found == [
        (
            "the optimizer runs at lr 0.04, the plan says 0.02",
            "it was not passed: conf.yaml:3 says lr 0.04",
            "change `lr` in conf.yaml; if its own is meant, `--lr 0.04` says so to the plan",
        ),
        (
            "each rank loads 4 samples at a time, the plan says 8",
            "it was not passed: no option for it was found",
            "read it; if its own is meant, `--batch-size 4` says so to the plan",
        ),
        (
            "the optimizer steps after every batch, the plan says after 2 (accumulation)",
            "it was not passed: `--accum-option none`",
            "if its own is meant, `--accum 1` says so to the plan",
        ),
    ]


def test_a_rate_that_follows_from_a_wrong_batch_is_put_right_with_it(tmp_path: Path) -> None:
    """Two fixes that are each right alone would together divide the rate twice."""
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    note_of_rule = {"number": "lr", "arguments": ["--lr", "0.2"], "note": "train.py:157 multiplies it by 0.1"}
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "plan": {"passed": [note_of_rule]}}))
    fixes = []
    for size in (16, 8):
        for one in both({"batch_size": size}, **rates(0.04)):
            note_path(attempt, one["rank"]).write_text(json.dumps(one))
        rate, *_ = look(str(attempt), [0, 1], {"DDPLAUNCH_PLAN": json.dumps(PLAN)}).findings
        assert rate.where == ("train.py:157",)
        fixes.append(rate.fix)
    assert fixes[0] == "put the batch right: the script makes the rate from it"
    assert fixes[1].startswith("`--lr-option=--lr:base`")


def test_samples_of_unequal_parts_are_divided() -> None:
    notes = [note(0, {**ALL_PLAIN, "samples": 50}), note(1, {**ALL_PLAIN, "samples": 51})]
    assert told(notes) == []


def test_the_fix_names_the_option_that_was_filled_in(tmp_path: Path) -> None:
    """The record says which option a number went into; a folder without one, or with half a note, is no error."""
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    passed = [
        {"number": "batch_size", "arguments": ["-b", "8"]},
        {"number": "lr", "arguments": ["--rate=0.02"]},
        {"number": "accum", "arguments": []},
    ]
    environ = {"DDPLAUNCH_PLAN": json.dumps(PLAN)}
    assert look(str(attempt), [0, 1], environ).findings == ()
    for one in both({"batch_size": 4}, **rates(0.04)):
        note_path(attempt, one["rank"]).write_text(json.dumps(one))
    without = [finding.fix for finding in look(str(attempt), [0, 1], environ).findings]
    assert "`--lr 0.01`, of which it makes 0.02" in without[0] and without[1] == "give the script what it divides, 16"
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "plan": {"passed": passed}}))
    seen = look(str(attempt), [0, 1], environ)
    assert look(str(attempt), [0, 1], environ, ("numbers-differ",)).findings == ()
    assert seen.over and "`--lr-option=--rate:base`" in seen.findings[0].fix
    assert "`--batch-option=-b:total`" in seen.findings[1].fix
    note_path(attempt, 1).write_text('{"rank"')
    assert not look(str(attempt), [0, 1], environ).over
    assert look(str(attempt), [0, 1], {"DDPLAUNCH_PLAN": "?"}).findings == ()


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


def test_parameters_on_the_cpu_of_a_launch_on_gpus() -> None:
    def codes(notes: list[dict[str, Any]], device: str) -> list[str]:
        return [finding.code for finding in differences(notes, 2, {**PLAN, "device": {"value": device}})]

    assert codes(on_gpus("cpu", "cpu"), "cuda") == ["gpus-not-used"]
    assert codes(on_gpus("cpu", "cpu"), "cpu") == []
    assert codes(on_gpus("cpu", "cuda:1"), "cuda") == []
    assert codes(on_gpus("cpu", "cpu")[:1], "cuda") == []  # the other rank has not noted anything yet


def test_the_device_of_the_launch_is_read_from_its_record(tmp_path: Path) -> None:
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    for one in on_gpus("cpu", "cpu"):
        note_path(attempt, one["rank"]).write_text(json.dumps(one))
    for device, expected in (({"value": "cuda"}, ["gpus-not-used"]), ({"value": "cpu"}, []), ("cuda", []), (None, [])):
        (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "plan": {"device": device}}))
        assert [each.code for each in look(str(attempt), [0, 1], {}).findings] == expected


def test_what_the_source_showed_before_the_run_is_not_said_again(tmp_path: Path) -> None:
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    for one in both(ALL_PLAIN):
        note_path(attempt, one["rank"]).write_text(json.dumps(one))
    assert [each.code for each in look(str(attempt), [0, 1], {}).findings] == ["data-not-divided"]
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "findings": [{"code": "data-not-divided"}]}))
    assert look(str(attempt), [0, 1], {}).findings == ()


def test_a_finding_names_the_line_that_was_read_for_the_number(tmp_path: Path) -> None:
    """The line that divides or scales it, else that of the option; with what was understood, where it did not hold."""
    attempt = tmp_path / "node-0" / "attempt-0"
    attempt.mkdir(parents=True)
    passed = [
        {
            "number": "node_batch_size",
            "arguments": ["-b", "16"],
            "at": {"file": "train.py", "line": 4},
            "note": "of all processes on a node: train.py:180 divides it by the processes per node",
        },
        {"number": "lr", "arguments": ["--lr=0.01"], "at": {"file": "train.py", "line": 5}, "note": ""},
        {"number": "accum", "arguments": ["--accum", "2"], "at": {"file": "train.py", "line": None}},
    ]
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "plan": {"passed": passed}}))
    for one in both({"batch_size": 16}, **rates(0.04)):
        note_path(attempt, one["rank"]).write_text(json.dumps(one))
    environ = {"DDPLAUNCH_PLAN": json.dumps({**PLAN, "accum": 4})}
    rate, batch, accumulation = look(str(attempt), [0, 1], environ).findings
    assert (rate.where, batch.where, accumulation.where) == (("train.py:5",), ("train.py:180",), ())
    assert "`-b 16` was passed (of all processes on a node: train.py:180 divides it" in batch.why
    assert batch.fix == "`--batch-option=-b:rank`, as the script takes it for the batch of one rank"


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
