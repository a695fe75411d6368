"""Saves the batches of all ranks and rank 0's first parameters, and gives them to one process, batches joined."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map


class KeptBatches:
    """Saves batches, and rank 0's first parameters, to ``folder``; if ``replayed``, one process gets what is there."""

    def __init__(self, folder: Path, rank: int, *, replayed: bool) -> None:
        """Write nothing yet."""
        self._folder, self._rank, self.replayed = folder, rank, replayed

    def align(self, tensors: list[Any]) -> None:
        """Save rank 0's parameters and buffers as training begins; in a replay, load them."""
        path = self._folder / "begin.pt"
        with torch.no_grad():
            if self.replayed:
                torch._foreach_copy_(tensors, torch.load(path))
            elif self._rank == 0:
                torch.save([tensor.detach().cpu().clone() for tensor in tensors], path)

    def keep(self, name: str, batch: Any, indices: list[Any]) -> None:
        """Save a batch; ``indices`` has one list, of its samples, or none."""
        torch.save((batch, *indices), self._folder / f"rank-{self._rank:06}-{name}")

    def joined(self, name: str, collated: Any) -> Any:
        """Return the batches of all ranks as one; those of several lengths by ``collated``, from their indices.

        Raises StopIteration if there are none, and errors of any kind if they cannot be joined.
        """
        paths = sorted(self._folder.glob(f"rank-*-{name}"))
        if not paths:
            raise StopIteration
        batches, *indices = zip(*(torch.load(path, weights_only=False) for path in paths), strict=True)

        sizes = {len(one) for one in chain(*indices)}
        try:
            return tree_map(partial(_joined, sizes), *batches)
        except (ValueError, RuntimeError):
            if not indices:
                raise
            return collated([*chain(*indices[0])])


def _joined(sizes: Any, one: Any, *others: Any) -> Any:
    """Return one value made of that of each rank, of tensors only if they have a sample in each row.

    Raises ValueError, or RuntimeError for tensors of other lengths, or of one sample.
    """
    if isinstance(one, torch.Tensor) and one.dim() and (not sizes or len(one) in sizes):
        return torch.cat([one, *others])
    if any(other != one for other in others):
        raise ValueError(f"values of ranks cannot be joined: {type(one).__name__}")
    return one
