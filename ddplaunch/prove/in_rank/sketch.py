"""Reduces tensors to a few numbers that show whether tensors are equal, scaled or summed."""

from __future__ import annotations

import random
import sys
import time
import zlib
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

_BUCKETS = 64
_PERIOD = 4093  # prime, so that it hardly ever divides a dimension of a tensor
_SIGNS = random.Random(0).choices((-1.0, 1.0), k=_PERIOD)


def sketch(tensor: Any) -> list[float]:
    """Return 64 signed sums over ``tensor``, or its values times 1 or -1 if these are at most 64.

    The result is linear: a mean of sketches is the sketch of the mean. Sums are taken in float64.
    https://en.wikipedia.org/wiki/Count_sketch
    """
    pad = torch.nn.functional.pad
    with torch.no_grad():
        values = tensor.to_dense().detach().reshape(-1)
        length = min(_PERIOD, values.numel()) or 1
        rows = pad(values, (0, -values.numel() % length)).view(-1, length)
        sums = rows.sum(0, dtype=torch.float64).cpu() * torch.tensor(_SIGNS[:length], dtype=torch.float64)
        buckets = min(_BUCKETS, length)
        return list(pad(sums, (0, -length % buckets)).view(-1, buckets).sum(0).tolist())


def fingerprints(values: Any) -> list[int]:
    """Return a checksum of each sample in the first tensor of ``values``; none if no tensor has a batch dimension."""
    batches = (value for value in tree_leaves(values) if hasattr(value, "detach") and value.dim() and value.numel())
    return [checksum(row.cpu()) for row in next(batches, ())]


def checksum(sample: Any) -> int:
    """Return a checksum of a sample, which may be nested."""
    result = 0
    for leaf in tree_leaves(sample):
        if hasattr(leaf, "detach"):
            leaf = leaf.detach().double().numpy()  # numpy has no bfloat16
        result = zlib.crc32(leaf.tobytes() if hasattr(leaf, "tobytes") else repr(leaf).encode(), result)
    return result


def probed(dataset: Any, indices: list[Any], *, live: bool) -> dict[str, Any]:
    """Return what samples of ``dataset`` contain; nothing if it has no indices. Takes a second of CPU time at most.

    ``contents`` maps indices to checksums; before each sample all random generators get the same seed, so that ranks
    get the same contents for a sample that they augment. It is left out if the sample is random even so. With ``live``,
    ``drawn`` has two checksums of the first sample as random generators are now: the same on two ranks if these
    augment alike.
    """
    owners: list[Any] = [
        (torch.get_rng_state, torch.set_rng_state, torch.manual_seed),
        (random.getstate, random.setstate, random.seed),
    ]
    if numpy := sys.modules.get("numpy.random"):
        owners += [(numpy.get_state, numpy.set_state, numpy.seed)]

    def content(index: Any) -> int:
        for _, _, seeded in owners:
            seeded(0)
        return checksum(dataset[index])

    found: dict[str, Any] = {}
    states = [(restored, read()) for read, restored, _ in owners]
    with suppress(Exception):  # whatever the dataset of a script raises, training goes on
        if live:
            found["drawn"] = [checksum(dataset[0]), checksum(dataset[0])]
        if content(0) == content(0):
            end_s = time.process_time() + 1
            found["contents"] = {}
            for index in [*range(min(8, len(dataset))), *indices[:2_000]]:
                if time.process_time() < end_s:
                    found["contents"][str(index)] = content(index)
    for restored, state in states:
        restored(state)
    return found
