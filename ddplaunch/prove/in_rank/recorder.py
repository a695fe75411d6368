"""Records, inside a rank, the gradients, samples, rates and files of its first steps, and then ends the script.

It writes one JSON object a line to ``rank-N.jsonl``. It exchanges nothing with other ranks, so it cannot make them
wait: tensors are written as sketches, and compared by the launcher. Epochs end after a few steps, so that evaluation,
saving and a second epoch are reached. Dropout is off, because its masks would differ from those of one process.

Gradients are seen at four points: the rank's own as autograd hands them to each parameter, before any hook of
DistributedDataParallel; ``.grad`` after each backward pass, before clipping, and when the optimizer takes it.
"""

from __future__ import annotations

import dis
import json
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

from ddplaunch.prove.in_rank.batches import KeptBatches
from ddplaunch.prove.in_rank.sketch import fingerprints, sketch

#: The environment variable that asks for a recording; its value is JSON, see ``begin``.
VARIABLE = "DDPLAUNCH_PROVE"
_EVALUATED = 4  # batches after which a pass without training is ended
_MOST_INDICES = 100_000
_PATIENCE_S = 20.0
_LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
)
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout")
_REDUCING = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather",
    "gather_object",
    "reduce",
)


class _Parameter:
    """A parameter of an optimizer: the rank's own gradients, and sketches of ``.grad`` since the last step."""

    def __init__(self, tensor: Any, number: int) -> None:
        self.tensor, self.number = tensor, number
        self.own: list[tuple[int, list[float]]] = []  # of each backward pass since the gradient was cleared
        self.seen: dict[str, list[float]] = {}

    def note(self, when: str) -> None:
        """Take a sketch of the gradient."""
        if self.tensor.grad is not None:
            self.seen[when] = sketch(self.tensor.grad)

    def summed(self, passes: range) -> list[float] | None:
        """Return the sum of the rank's own gradients from these backward passes."""
        parts = [own for number, own in self.own if number in passes]
        return [sum(values) for values in zip(*parts, strict=True)] if parts else None


class _Optimizer:
    """An optimizer. ``since`` is the first backward pass for its next step, ``discarded`` are lines of cleared ones."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.steps = self.since = 0
        self.discarded: list[str] = []

    def parameters(self) -> list[Any]:
        """Return the tensors that it trains."""
        return [one for group in self.optimizer.param_groups for one in group["params"] if one.requires_grad]


class Recorder:
    """One rank's recording."""

    def __init__(self, folder: Path, rank: int, world: int, most_steps: int, batches: KeptBatches) -> None:
        """Write to ``folder`` until ``most_steps`` steps of the first optimizer are made."""
        self._folder, self._rank, self._world, self._most_steps = folder, rank, world, most_steps
        self._batches = batches
        self._file = (folder / f"rank-{rank}.jsonl").open("w")
        self._here = f"{Path.cwd()}{os.sep}"
        self._owner = os.getpid()
        self._optimizers: list[_Optimizer] = []
        self._parameters: dict[int, _Parameter] = {}
        self._names: dict[int, str] = {}
        self._passes: list[str] = []  # the line of each backward pass
        self._forwards, self._fresh, self._begun = 0, True, False
        self._inputs: list[list[float]] = []
        self._loss: list[float] = []
        self._ratios: list[float | None] = []
        self._scalers: list[Any] = []
        self._loaders = 0
        self._written: set[str] = set()
        self._open: dict[int, dict[str, Any]] = {}  # passes over DataLoaders that are not over

    def write(self, event: str, **fields: Any) -> None:
        """Write one line."""
        if os.getpid() == self._owner:
            self._file.write(json.dumps({"event": event, **fields}) + "\n")
            self._file.flush()

    def line(self) -> str:
        """Return the line of the script, or of its own packages, that is being executed; "" if there is none."""
        frame: Any = sys._getframe(1)
        while frame is not None and not self._is_own(frame):
            frame = frame.f_back
        return f"{frame.f_code.co_filename.removeprefix(self._here)}:{frame.f_lineno}" if frame else ""

    def _is_own(self, frame: Any) -> bool:
        name = frame.f_code.co_filename  # not absolute for the script itself
        return (name.startswith(self._here) or name[0] not in "/<") and "site-packages" not in name

    # Backward passes and steps

    def added(self, optimizer: Any) -> None:
        """Note a new optimizer."""
        if all(known.optimizer is not optimizer for known in self._optimizers):
            self._optimizers.append(_Optimizer(optimizer))

    def before_backward(self, roots: Any) -> None:
        """Hook new parameters, note which gradients were cleared, and by what the script multiplied the loss."""
        for known in self._optimizers:
            for tensor in known.parameters():
                if id(tensor) not in self._parameters:
                    self._hook(tensor)
        cleared = [one for one in self._parameters.values() if one.own and not _filled(one.tensor.grad)]
        for known in self._optimizers:
            mine = {id(tensor) for tensor in known.parameters()}
            lost = {n for one in cleared if id(one.tensor) in mine for n, _ in one.own if n >= known.since}
            known.discarded += [self._passes[number] for number in sorted(lost)]
        for one in cleared:
            one.own.clear()
        root = roots if not isinstance(roots, list | tuple) else roots[0] if len(roots) == 1 else None
        value = float(root.detach()) if root is not None and root.numel() == 1 else 0.0
        scale = self._scale()
        self._ratios.append(value / scale / self._loss[0] if len(self._loss) == 1 and self._loss[0] else None)
        self._loss, self._fresh = [], True
        self._passes.append(self.line())

    def _hook(self, tensor: Any) -> None:
        one = self._parameters[id(tensor)] = _Parameter(tensor, len(self._parameters))
        if type(tensor.detach()).__name__ != "Tensor":
            return  # a DTensor: a part of a parameter

        def came(gradient: Any) -> None:
            one.own.append((len(self._passes) - 1, sketch(gradient)))

        tensor.register_hook(came)

    def after(self, when: str) -> None:
        """Take sketches of the gradients: after a "backward" pass, or before they are clipped."""
        for one in self._parameters.values():
            if one.own and one.own[-1][0] == len(self._passes) - 1:
                one.note(when)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Take sketches of what the optimizer takes."""
        mine = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        for key, one in self._parameters.items():
            if key in mine:
                one.note("step")

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Write everything about this step; end the script after the last one."""
        self.added(optimizer)
        number = [known.optimizer for known in self._optimizers].index(optimizer)
        known = self._optimizers[number]
        closure = any(map(callable, args[1:])) or kwargs.get("closure") is not None
        since = known.since
        held = [self._parameters[id(one)].own for one in known.parameters() if id(one) in self._parameters]
        passes = sorted({index for own in held for index, _ in own if index >= since})
        self.write(
            "step",
            optimizer=number,
            kind=type(optimizer).__name__,
            line=self.line(),
            rates=[float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            closure=closure,
            scale=self._scale(),
            passes=[self._passes[index] for index in passes],
            forwards=self._forwards,
            inputs=self._inputs,
            ratios=[self._ratios[index] for index in passes],
            discarded=[] if closure else known.discarded,
            parameters=[self._parameter(tensor, since, closure) for tensor in known.parameters()],
        )
        known.steps, known.since, known.discarded = known.steps + 1, len(self._passes), []
        self._forwards, self._inputs = 0, []
        if self._steps() >= self._most_steps:
            self._end()

    def _parameter(self, tensor: Any, since: int, closure: bool) -> dict[str, Any]:
        one = self._parameters.get(id(tensor)) or _Parameter(tensor, -1)
        seen, one.seen = {name: value for name, value in one.seen.items() if not (closure and name == "step")}, {}
        sums = {
            "own": one.summed(range(since, len(self._passes))),
            "stale": one.summed(range(since)),
        }
        whole = type(tensor.detach()).__name__ == "Tensor"
        return {
            "name": self._names.get(id(tensor)) or f"parameter {one.number} {tuple(tensor.shape)}",
            "whole": whole,
            "value": sketch(tensor) if whole else None,
            **seen,
            **sums,
        }

    def _scale(self) -> float:
        scales = [float(one.get_scale()) for one in self._scalers if one.is_enabled()]
        return scales[0] if scales else 1.0

    def _end(self) -> None:
        """End the script once all ranks are here: others may still need this one in a collective. Wait 20 s at most."""
        for one in list(self._open.values()):
            self._over(one, whole=False)
        self.write("end")
        (self._folder / f"rank-{self._rank}.over").touch()
        end_s = time.monotonic() + _PATIENCE_S
        while len(list(self._folder.glob("*.over"))) < self._world and time.monotonic() < end_s:
            time.sleep(0.02)
        sys.stdout.flush()
        os._exit(0)

    # Models

    def forward(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note the inputs of the first call after each backward pass, and how the model is as training begins."""
        import torch

        if not (self._fresh and module.training and torch.is_grad_enabled() and self._optimizers):
            return
        self._fresh, self._loss = False, []
        if not self._begun:
            self._begun = True
            self._names = {id(one): name.removeprefix("module.") for name, one in module.named_parameters()}
            kinds = {type(part).__name__ for part in module.modules()}
            self.write(
                "begin",
                batch_norm=any(kind.startswith("BatchNorm") for kind in kinds),
                autocast=any(map(torch.is_autocast_enabled, ("cpu", "cuda"))),
            )
            trained = [tensor for known in self._optimizers for tensor in known.parameters()]
            self._batches.begin([*trained, *module.buffers()])
        self._forwards += 1
        self._inputs.append(fingerprints([*args, *kwargs.values()]))

    # Samples

    def iterates(self, iterator: Any, loader: Any) -> None:
        """Begin a pass over a DataLoader."""
        if not hasattr(loader, "_ddplaunch_number"):
            loader._ddplaunch_number, self._loaders, loader._ddplaunch_passes = self._loaders, self._loaders + 1, 0
        loader._ddplaunch_passes += 1
        sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
        self._open[id(iterator)] = one = {
            "iterator": iterator,
            "loader": loader._ddplaunch_number,
            "number": loader._ddplaunch_passes,
            "line": self.line(),
            "sampler": type(sampler).__name__,
            "shuffle": bool(getattr(sampler, "shuffle", type(sampler).__name__ == "RandomSampler")),
            "indices": [],
            "given": 0,
            "began": (len(self._passes), self._steps()),
            "drawn": [],
        }
        with suppress(TypeError):  # there are datasets without a length
            one["samples"] = len(iterator._dataset)

    def indexed(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        """Return the indices that a DataLoader loads next, and note them."""
        index = original(iterator)
        if (one := self._open.get(id(iterator))) is not None:
            one["indices"].append(list(index) if isinstance(index, list | tuple) else [index])
        return index

    def fetch(self, iterator: Any, fetched: Callable[[], Any]) -> Any:
        """Return the next batch, or end the pass early by StopIteration."""
        one = self._open.get(id(iterator))
        if one is None:
            return fetched()
        passes, steps = one["began"]
        trains = len(self._passes) > passes
        enough = self._steps() - steps >= (self._most_steps + 1) // 2 if trains else one["given"] >= _EVALUATED
        if enough and self._may_end():
            self._over(one, whole=True)
            raise StopIteration
        before = _random_states()
        try:
            batch = self._batches.next(one["loader"], one["number"], one["given"], fetched)
        except StopIteration:
            self._over(one, whole=True)
            raise
        changed = [old for old, new in zip(before, _random_states(), strict=True) if old != new]
        one["drawn"].append(changed[:1] if one["given"] else [])  # the first batch also begins the sampler
        one["given"] += 1
        return batch

    def _steps(self) -> int:
        """Return how many steps the first optimizer has made."""
        return self._optimizers[0].steps if self._optimizers else 0

    def _may_end(self) -> bool:
        """Return whether the script expects the end of a DataLoader here: not at a `next()` of its own."""
        frame: Any = sys._getframe(3)
        # loops of frameworks handle it
        return not self._is_own(frame) or dis.opname[frame.f_code.co_code[frame.f_lasti]] == "FOR_ITER"

    def _over(self, one: dict[str, Any], whole: bool) -> None:
        """Write a pass over a DataLoader that has ended; if ``whole``, with the indices that its sampler has left."""
        iterator = one.pop("iterator")
        self._open.pop(id(iterator), None)
        seen = [index for batch in one["indices"][: one["given"]] for index in batch]
        rest = [index for batch in one["indices"][one["given"] :] for index in batch]
        if whole:
            with suppress(Exception):  # a sampler of the script's own may not be asked twice
                for batch in islice(iterator._sampler_iter, _MOST_INDICES):
                    rest += batch if isinstance(batch, list | tuple) else [batch]
        fields = {**one, "indices": seen, "rest": rest, "trains": len(self._passes) > one["began"][0]}
        plain = all(isinstance(index, int) for index in (*seen, *rest)) and len(rest) < _MOST_INDICES
        self.write("pass", **(fields if plain else {**fields, "indices": [], "rest": []}), complete=whole and plain)

    # What else ranks do

    def called(self, name: str) -> None:
        """Note a call of a collective that can combine results of ranks."""
        self.write("call", name=name)

    def opened(self, path: Any, mode: Any) -> None:
        """Note a file that is opened to be written."""
        if not isinstance(path, str) or not set(str(mode)) & set("wxa") or path.startswith(("/dev/", "/proc/")):
            return
        name = os.path.abspath(path)  # noqa: PTH100 - as open() sees it
        if name not in self._written and not name.startswith(str(self._folder)) and (line := self.line()):
            self._written.add(name)
            self.write("file", path=name.removeprefix(self._here), line=line)

    # Hooks

    def install(self) -> None:
        """Replace functions of torch by ones that report to this recorder, or that leave dropout out."""
        import torch
        import torch.distributed as dist
        from torch.utils.data import dataloader

        optim: Any = sys.modules["torch.optim.optimizer"]  # torch.optim does not keep the name
        optim.register_optimizer_step_pre_hook(self.before_step)
        optim.register_optimizer_step_post_hook(self.after_step)
        _around(torch.nn.Module, "__call__", before=lambda module, *args, **more: self.forward(module, args, more))
        _around(optim.Optimizer, "add_param_group", after=lambda one, *_, **__: self.added(one))
        _around(
            torch.autograd,
            "backward",
            before=lambda roots, *_, **__: self.before_backward(roots),
            after=lambda *_, **__: self.after("backward"),
        )
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for place in (torch.nn.utils, torch.nn.utils.clip_grad):
                _around(place, name, before=lambda *_, **__: self.after("clip"))
        for place in (dist, dist.distributed_c10d):
            for name in _REDUCING:
                _around(place, name, before=lambda *_, name=name, **__: self.called(name))
        for name in _LOSSES:
            _replace(torch.nn.functional, name, self._noting_loss)
        for name in _DROPOUTS:
            _replace(torch.nn.functional, name, lambda _: lambda input, *_, **__: input)
        _replace(torch.nn.functional, "scaled_dot_product_attention", _without_dropout)
        _around(torch.amp.GradScaler, "__init__", after=lambda scaler, *_, **__: self._scalers.append(scaler))
        base = dataloader._BaseDataLoaderIter
        _around(base, "__init__", after=lambda iterator, loader: self.iterates(iterator, loader))
        _replace(base, "_next_index", lambda original: lambda iterator: self.indexed(iterator, original))
        _replace(
            base,
            "__next__",
            lambda original: lambda iterator: self.fetch(iterator, lambda: original(iterator)),
        )
        _around(torch, "save", before=lambda _, path, *__, **___: self.opened(str(path), "w"))
        sys.addaudithook(lambda event, args: self.opened(*args[:2]) if event == "open" else None)

    def _noting_loss(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **more: Any) -> Any:
            loss = original(*args, **more)
            if getattr(loss, "requires_grad", False):
                mean = more.get("reduction", "mean") == "mean" and loss.numel() == 1
                self._loss.append(float(loss.detach()) if mean else 0.0)
            return loss

        return noting


def _filled(gradient: Any) -> bool:
    return gradient is not None and bool(gradient.detach().any())


def _random_states() -> list[int]:
    """Return a checksum of the state of each random generator that a dataset may use."""
    import torch

    states = [bytes(torch.random.get_rng_state().tolist()), repr(random.getstate()).encode()]
    if (numpy := sys.modules.get("numpy.random")) is not None:
        states.append(repr(numpy.get_state()[1:3]).encode())
    return [zlib.crc32(state) for state in states]


def _without_dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    def attention(*args: Any, **more: Any) -> Any:
        if len(args) > 4:  # query, key, value, mask, dropout, …
            return original(*args[:4], 0.0, *args[5:], **more)
        return original(*args, **{**more, "dropout_p": 0.0})

    return attention


def _replace(owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Replace ``owner.name``, if there is one, by ``change(original)``."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, wraps(original)(change(original)))


def _around(
    owner: Any, name: str, *, before: Callable[..., Any] | None = None, after: Callable[..., Any] | None = None
) -> None:
    """Have ``before`` and ``after`` called with the arguments of each call of ``owner.name``."""

    def change(original: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if before is not None:
                before(*args, **more)
            result = original(*args, **more)
            if after is not None:
                after(*args, **more)
            return result

        return call

    _replace(owner, name, change)


def begin(environ: MutableMapping[str, str] = os.environ) -> None:
    """Start recording this process if ``VARIABLE`` asks for it.

    Its JSON has the ``folder`` of the proof, the ``name`` of this trial, that of the trial whose ``batches`` are used,
    the number of ``steps``, and a ``seed`` or null.
    """
    if VARIABLE not in environ or "TORCHELASTIC_RUN_ID" not in environ:  # torchrun itself lacks the latter
        return
    wanted = json.loads(environ.pop(VARIABLE))
    folder, rank = Path(wanted["folder"]), int(environ["RANK"])
    own, seed = folder / wanted["name"], wanted.get("seed")
    batches = KeptBatches(folder / wanted["batches"], rank, replayed=wanted["name"] != wanted["batches"], seed=seed)
    Recorder(own, rank, int(environ["WORLD_SIZE"]), wanted["steps"], batches).install()
