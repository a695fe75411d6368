"""Checks in ranks' notes how they share the work: the process group, the node's GPUs, the data.

Each function yields its findings from the ``notes`` of a node with this number of ``ranks``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddplaunch.values.finding import Finding, warning
from ddplaunch.values.words import count

Note = Mapping[str, Any]
Plan = Mapping[str, Any]
_EQUAL = 1e-4  # of the sum of magnitudes: ranks with different GPUs may round differently
#: Optimizers whose steps end before the ranks' parameters are equal again, or leave them different on purpose.
UNEQUAL_AFTER_STEP = frozenset(["ZeroRedundancyOptimizer", "PostLocalSGDOptimizer", "OSS"])
#: Samplers that give a rank all samples; the last one is accelerate's, which transformers' Trainer uses as well.
_OF_ALL = ("torch.RandomSampler", "torch.SequentialSampler", "SeedableRandomSampler")
_STEPS = 4  # that every rank must have noted: fewer may all be accumulation steps


def apart(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if the ranks have no process group, so that each trains alone."""
    world = notes[0]["world_size"]
    if world < 2 or len(notes) < ranks or any(note["process_group"] or note["others"] or note["ddp"] for note in notes):
        return
    yield warning(
        "no-process-group",
        f"{world} ranks train, and none has joined a process group: these are {world} separate trainings",
        why="without `torch.distributed.init_process_group` gradients are never averaged: each rank trains a model of "
        "its own, on its own batches, for as many steps as one process would",
        fix="`torch.distributed.init_process_group()` and `DistributedDataParallel(model)` in the script, or its own "
        "switch for both; `ddplaunch run 1` for one training",
    )


def unaveraged(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if ranks have a process group but exchanged nothing in their first steps.

    Only if they divide the data, or each takes all of it: otherwise they may be meant to train separately.
    """
    world = notes[0]["world_size"]
    loaders = [loader for note in notes for loader in note["loaders"]]
    divide = {(loader["sampler"], loader["replicas"]) for loader in loaders} == {("torch.DistributedSampler", world)}
    if world < 2 or len(notes) < ranks or not (divide or all(map(_gives_all, loaders))):
        return
    if any(note["ddp"] or note["others"] or note.get("exchanged") != 0 or note["steps"] < _STEPS for note in notes):
        return
    if all(note["loaders"] and note["process_group"] for note in notes):
        yield warning(
            "gradients-not-averaged",
            f"nothing was sent between {count(world, 'rank')} in their first {notes[0]['steps']} steps",
            why=f"each trains a model of its own on {'its part' if divide else 'all'} of the samples: without averages "
            "their losses drift apart",
            fix="`model = DistributedDataParallel(model)` before the first step; nothing, if the script averages more "
            "seldom than that; accelerate and Trainer need `--env ACCELERATE_USE_CPU=true` on the CPU",
        )


def replicas(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if parameters differ after the same steps, in DistributedDataParallel or outside of it.

    Without any, only if a sampler divides the samples by all ranks, and they exchange something: else `unaveraged`.
    """
    steps = {
        (note["steps"], *(str(one[key]) for one in note["optimizers"] for key in ("kind", "lr"))) for note in notes
    }
    if len(notes) < max(2, ranks) or len(steps) != 1 or not UNEQUAL_AFTER_STEP.isdisjoint(*steps):
        return  # different rates make them differ, and are reported themselves
    divided = {loader["replicas"] for note in notes for loader in note["loaders"]} == {notes[0]["world_size"]}
    if any(note["others"] or not (note["ddp"] or (divided and note["exchanged"])) for note in notes):
        return
    if shown := _unlike_first(notes, "sums"):
        yield warning(
            "replicas-differ",
            f"the model of {shown} is not that of rank {notes[0]['rank']}: after 3 steps the parameters differ",
            why="DistributedDataParallel copies rank 0's parameters when it wraps the model, and averages gradients "
            "of its own calls from then on: what a rank loads or multiplies by itself later stays on it, and so does "
            "what it trains by calling `.module`, or a part of the model, directly",
            fix="call what was wrapped, `model(…)`; change parameters on all ranks alike, or on rank 0 before "
            "`DistributedDataParallel(model)`",
        )
    elif shown := _unlike_first(notes, "sums_outside"):
        yield warning(
            "replicas-differ",
            f"the optimizer trains parameters outside of DistributedDataParallel, and those of {shown} are not those "
            f"of rank {notes[0]['rank']} after 3 steps",
            why="only what DistributedDataParallel wraps begins alike and gets averaged gradients: the rest is a model "
            "of its own on each rank, of which a checkpoint has one",
            fix="one `DistributedDataParallel(…)` around all that trains, which is what the script calls; nothing, if "
            "each rank holds a part of its own there, or the script averages more seldom",
        )


def rates_apart(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if ranks begin with the same learning rate, and a schedule changes it on some of them only."""
    rates = [*zip(*(note["optimizers"][0]["rates"] for note in notes), strict=False)]
    if len({*rates[0]}) == 1 < len({*rates[-1]}):
        yield warning(
            "numbers-differ",
            f"in step {len(rates)} the learning rate is {min(rates[-1])} on some ranks, {max(rates[-1])} on others",
            why="not all ranks step the same schedule alike: by the same gradients their models drift apart",
            fix="`scheduler.step()` on all ranks, not under a condition on the rank; one length for all of them, and "
            "one metric where it takes a metric",
        )


def _unlike_first(notes: Sequence[Note], key: str) -> str:
    """Return the ranks whose sums of parameters differ from the first note's; "" if none do or not all are known."""
    if any(not note.get(key) or not all(map(math.isfinite, note[key])) for note in notes):
        return ""
    first, size = notes[0][key]
    odd_ranks = [note["rank"] for note in notes if abs(note[key][0] - first) > _EQUAL * (size + 1e-12)]
    if len(odd_ranks) < 2:
        return "".join(f"rank {rank}" for rank in odd_ranks)
    return f"{len(odd_ranks)} ranks, of which rank {odd_ranks[0]},"


def group(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if the process group does not contain all ranks."""
    sizes = {note["process_group"]["size"] for note in notes if note["process_group"]}
    world = notes[0]["world_size"]
    if len(sizes) == 1 and (size := sizes.pop()) != world:
        yield warning(
            "numbers-differ",
            f"the process group has {count(size, 'rank')}, the plan says {world}",
            why="ranks outside of it train on their own, and samplers divide the data by its size",
            fix="`init_process_group()` without `world_size` and `rank`: torchrun has set WORLD_SIZE and RANK",
        )


def on_cpu(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if all parameters are on the CPU in a launch on GPUs."""
    devices = {device for note in notes for one in note["optimizers"] for device in one["devices"]}
    if devices == {"cpu"} and len(notes) == ranks and plan["device"]["value"] == "cuda":
        yield warning(
            "gpus-not-used",
            f"the parameters of {count(ranks, 'rank')} are on the CPU, though the launch took GPUs",
            why="the script moves its model to no GPU, or torch can use none: no CUDA in it, or too old a driver",
            fix='`model.to("cuda")`; `ddplaunch doctor` says what torch can use; `--device cpu` if the CPU is meant',
        )


def same_gpu(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if all ranks of a node have their parameters on one GPU, though they see several."""
    gpus_seen = {
        (*note["optimizers"][0].get("devices", ()), note.get("visible"), note.get("gpus", 0)) for note in notes
    }
    if len(notes) < max(2, ranks) or len(gpus_seen) != 1:
        return
    *devices, _, number = gpus_seen.pop()
    if len(devices) != 1 or not devices[0].startswith("cuda") or number < 2:  # fewer than 2: they have only one GPU
        return
    yield warning(
        "gpu-of-all-ranks",
        f"all {len(notes)} ranks of this node train on {devices[0]}, of {number} GPUs that each of them sees",
        why="they share its memory and its time, and the others stand idle",
        fix='`torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` in the script, before anything is moved to a GPU',
    )


def undivided(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if every rank gets all samples, or all ranks get the same part."""
    joined = [note for note in notes if note["ddp"] and note["process_group"]]
    world = notes[0]["world_size"]
    if world < 2 or len(joined) < max(2, ranks) or not all(note["loaders"] for note in joined):
        return
    loaders = [loader for note in joined for loader in note["loaders"]]
    samples = {loader["samples"] for loader in loaders}
    sampler = loaders[0]["sampler"].removeprefix("torch.")
    same_part = {(each["replicas"], each["replica"]) for each in loaders}
    if {loader["batch_size"] for loader in loaders} == {world * (plan.get("batch_size") or 0)}:
        return  # may be the batch of all ranks, from which each takes its part: reported as a batch
    if all(map(_gives_all, loaders)) and len(samples) == 1 and None not in samples:
        what = f"each of {world} ranks trains on all {samples.pop()} samples: its DataLoader has a {sampler}"
        fix = "`DataLoader(dataset, sampler=DistributedSampler(dataset))` and `sampler.set_epoch(epoch)`; nothing, if "
        fix += "the dataset of each rank is a part of its own"
    elif len(same_part) == 1 and loaders[0]["replicas"] == world and len(loaders) >= len(joined):
        what = f"all {world} ranks take the same part of the samples: part {loaders[0]['replica']} of {world}"
        fix = "`DistributedSampler(dataset)` without `rank`: it takes the rank's own"
    else:
        return
    yield warning(
        "data-not-divided",
        what,
        why="ranks that see the same samples do the same work side by side: an epoch takes as long as on one process",
        fix=fix,
    )


def same_order(notes: Sequence[Note], ranks: int, plan: Plan) -> Iterator[Finding]:
    """Yield a finding if `set_epoch` of a DistributedSampler was not called."""
    if passes := max(note.get("passes_in_order", 0) for note in notes):
        yield warning(
            "sampler-epoch-not-set",
            f"the samples came in one order in {passes} passes: nothing told the DistributedSampler of the epoch",
            why="it shuffles by its seed and its epoch, which is 0 until `set_epoch` changes it",
            fix="`sampler.set_epoch(epoch)` first in the loop over epochs",
        )


def _gives_all(loader: Note) -> bool:
    undivided_sampler = loader["sampler"] == "torch.DistributedSampler" and loader["replicas"] == 1
    whole = loader["batch_sampler"] == "torch.BatchSampler" and loader["dataset"] != "torch.Subset"
    return bool((loader["sampler"] in _OF_ALL or undivided_sampler) and whole)
