"""Saves the batches of all ranks and rank 0's first parameters, and gives them to one process, batches joined."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 30  # of all batches of a rank


class KeptBatches:
    """Saves batches, and rank 0's first parameters, to ``folder``; with ``replayed`` it returns what ranks saved there.

    ``seed`` is given to torch's random generators when training begins, None for no change.
    """

    def __init__(self, folder: Path, rank: int, *, replayed: bool, seed: int | None) -> None:
        """Write nothing yet."""
        import torch

        self._folder, self._rank, self._replayed, self._seed = folder, rank, replayed, seed
        self._save, self._left = torch.save, _MOST_BYTES

    def begin(self, tensors: list[Any]) -> None:
        """Save rank 0's parameters and buffers as training begins; in a replay, load them."""
        import torch

        path = self._folder / "begin.pt"
        with torch.no_grad():
            if self._replayed:
                for tensor, saved in zip(tensors, torch.load(path), strict=True):
                    tensor.copy_(saved)
            elif self._rank == 0:
                self._save([tensor.detach().cpu().clone() for tensor in tensors], path)
        if self._seed is not None:
            torch.manual_seed(self._seed)

    def next(self, loader: int, number: int, batch: int, fetched: Callable[[], Any]) -> Any:
        """Return a batch, in a replay that of all ranks joined. Raises StopIteration, and in a replay ValueError."""
        import torch

        name = f"{loader}-{number}-{batch}.pt"
        if not self._replayed:
            value = fetched()
            path = self._folder / f"rank-{self._rank}-{name}"
            if self._left > 0:
                self._save(value, path)
                self._left -= path.stat().st_size
            return value
        paths = sorted(self._folder.glob(f"rank-*-{name}"), key=lambda path: int(path.name.split("-")[1]))
        if not paths:
            raise StopIteration
        return _joined([torch.load(path, weights_only=False) for path in paths])


def _joined(parts: list[Any]) -> Any:
    """Return one batch made of a batch of each rank. Raises ValueError if these cannot be joined."""
    import torch

    first = parts[0]
    if isinstance(first, torch.Tensor):
        if first.dim() and len({part.shape[1:] for part in parts}) == 1:
            return torch.cat(parts)
        if not first.dim() and all(bool(part == first) for part in parts):
            return first
    elif hasattr(first, "keys"):
        joined = {key: _joined([part[key] for part in parts]) for key in first.keys()}  # noqa: SIM118 - not only dicts
        return type(first)(joined)
    elif isinstance(first, list | tuple) and first and hasattr(first[0], "__len__") and not isinstance(first[0], str):
        return type(first)(_joined(list(values)) for values in zip(*parts, strict=True))
    elif isinstance(first, list | tuple):
        return type(first)(value for part in parts for value in part)
    elif all(part == first for part in parts):
        return first
    raise ValueError(f"batches of {len(parts)} ranks cannot be joined: {type(first).__name__}")
