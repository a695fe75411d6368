"""Reduces tensors to a few numbers that show whether tensors are equal, scaled or summed."""

from __future__ import annotations

import random
from typing import Any

_BUCKETS = 64
_PERIOD = 4093  # prime, so that it hardly ever divides a dimension of a tensor
_signs: list[float] = []


def sketch(tensor: Any) -> list[float]:
    """Return 64 signed sums over ``tensor``, or its values times 1 or -1 if these are at most 64.

    The result is linear: a mean of sketches is the sketch of the mean. Sums are taken in float64.
    https://en.wikipedia.org/wiki/Count_sketch
    """
    import torch

    if not _signs:
        _signs.extend(random.Random(0).choices((-1.0, 1.0), k=_PERIOD))
    with torch.no_grad():
        values = (tensor.to_dense() if tensor.layout is not torch.strided else tensor).detach().reshape(-1)
        length = min(_PERIOD, values.numel())
        rows = torch.nn.functional.pad(values, (0, -values.numel() % length if length else 0)).view(-1, length or 1)
        sums = rows.sum(0, dtype=torch.float64).cpu() * torch.tensor(_signs[:length], dtype=torch.float64)
        buckets = min(_BUCKETS, length)
        padded = torch.nn.functional.pad(sums, (0, -length % buckets if buckets else 0))
        result: list[float] = padded.view(-1, buckets or 1).sum(0).tolist()
    return result


def fingerprints(values: Any) -> list[float]:
    """Return a number for each sample of the first tensor in ``values``; none if no tensor has a batch dimension."""
    import torch

    for tensor in leaves(values):
        if tensor.dim() and tensor.numel() and tensor.layout is torch.strided:
            rows = tensor.detach().reshape(len(tensor), -1).double().cpu()
            weights = torch.cos(torch.arange(1, rows.shape[1] + 1, dtype=torch.float64))
            return [float(f"{number:.9g}") for number in (rows * weights).sum(1).tolist()]
    return []


def leaves(values: Any) -> list[Any]:
    """Return the tensors in nested containers."""
    import torch

    if isinstance(values, torch.Tensor):
        return [values]
    parts = values.values() if hasattr(values, "values") else values if isinstance(values, list | tuple) else ()
    return [leaf for part in parts for leaf in leaves(part)]
