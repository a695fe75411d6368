"""Checks of batch sizes and learning rates that run but do not train as meant; refuses to calculate them."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, warning
from ddplaunch.launch.plan import Launch

LARGE_FACTOR = 8.0  # the smallest step beyond one GPU's worth in Goyal et al. is a node of eight


def dataset_smaller_than_batch(launch: Launch) -> Iterator[Finding]:
    """The dataset is smaller than one effective batch.

    With `drop_last=True` an epoch then has no step at all, and a training "finishes" without having trained; without
    it the sampler repeats samples to fill up the ranks. Remedy: a smaller batch, less accumulation or fewer processes.
    """
    numbers = launch.numbers
    if numbers.dataset_size is None or numbers.global_batch_size is None:
        return
    samples, batch = numbers.dataset_size.value, numbers.global_batch_size.value
    if samples >= batch:
        return
    world = launch.topology.world_size
    fits = samples // world
    yield warning(
        "dataset-smaller-than-batch",
        f"the dataset has {samples} samples, one effective batch {batch}",
        why="with `drop_last=True` an epoch has no step; otherwise samples are repeated to fill up the ranks",
        fix=f"`--batch-size {fits} --accum 1` makes one step of {fits * world} samples on {world} ranks"
        if fits
        else f"run at most {samples} processes with `--batch-size 1`",
        where=str(numbers.dataset_size.source),
    )


def lr_factor_large(launch: Launch) -> Iterator[Finding]:
    """The learning rate is scaled linearly by 8 or more, without a warmup.

    Linear scaling holds in Goyal et al. 2017 (arXiv:1706.02677) for SGD with a gradual warmup over five epochs; without
    it the first steps diverge or end in a worse minimum. Remedy: `--base-warmup`, a cap by `--lr-max-factor`, or
    `--lr-scaling sqrt`, the usual rule of thumb for Adam-like optimizers.
    """
    numbers = launch.numbers
    if numbers.lr_factor is None or numbers.lr_factor.value < LARGE_FACTOR or numbers.base_warmup is not None:
        return
    if numbers.lr is None or numbers.lr_scaling is None or numbers.lr_scaling.value != "linear":
        return
    factor = numbers.lr_factor.value
    yield warning(
        "lr-factor-large",
        f"the learning rate is {factor:g} times the base one, {numbers.lr.value:g}, with no warmup",
        why="linear scaling was shown for SGD with a warmup over the first epochs (Goyal et al. 2017); without one "
        "the first steps may diverge",
        fix="name the warmup steps of the base run with `--base-warmup`, cap the factor with `--lr-max-factor 4`, or "
        "pass `--lr-scaling sqrt` for Adam-like optimizers",
        where=str(numbers.lr_factor.source),
    )


CHECKS: tuple[Check, ...] = tuple(declare("numbers", check) for check in (dataset_smaller_than_batch, lr_factor_large))
