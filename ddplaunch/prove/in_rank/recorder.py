"""Records, inside a rank, the gradients, samples, rates and files of its first steps, and then ends the script.

It writes one JSON object a line to ``rank-00000N.proof``. It exchanges nothing with other ranks, so it cannot make them
wait: tensors are written as sketches, and compared by the launcher. Epochs end after a few steps, so that evaluation,
saving and a second epoch are reached. Dropout is off, because its masks would differ from those of one process.

Gradients are seen at four points: the rank's own as autograd hands them to each parameter, before any hook of
DistributedDataParallel; ``.grad`` after each backward pass, before clipping, and when the optimizer takes it.

In a run (``watches``) it records gradients and rates alone, changes nothing, and lets the script go on.
"""

from __future__ import annotations

import dis
import gc
import json
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial, wraps
from itertools import chain, product, takewhile
from pathlib import Path
from traceback import walk_stack
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader

from ddplaunch.prove.in_rank import RANKS
from ddplaunch.prove.in_rank.batches import KeptBatches
from ddplaunch.prove.in_rank.sketch import fingerprints, probed, sketch

Hook = Any  # callable


class _Parameter:
    """A parameter of an optimizer, and sketches since the last step: the rank's own gradients, and ``.grad``."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.whole = tensor, type(tensor.detach()).__name__ == "Tensor"  # else it is a DTensor
        self.own: list[Any] = []  # of each backward pass since the gradient was cleared
        self.lost: list[int] = []  # backward passes whose gradients were cleared
        self.seen: dict[str, Any] = {}

    def look(self) -> None:
        """Notice a gradient that was cleared."""
        if not _filled(self.tensor.grad):
            self.lost += [number for number, _ in self.own]
            self.own.clear()
            self.seen.pop("clip", None)

    def note(self, when: str) -> None:
        """Take a sketch of the gradient."""
        if self.tensor.grad is not None:
            self.seen[when] = sketch(self.tensor.grad)

    def summed(self, passes: range) -> list[float]:
        """Return the sum of the rank's own gradients from these backward passes; empty if there are none."""
        return [sum(values) for values in zip(*(own for number, own in self.own if number in passes), strict=True)]


def _safe(hook: Hook) -> Hook:
    """Return a hook that stops no run, is not compiled, and asks nothing of a GPU that captures a graph."""

    @wraps(hook)
    def call(self: Any, *args: Any) -> None:
        if (
            self._made >= self._most_steps
            or len(self._passes) > 2_000  # without a step of the first optimizer
            or torch.compiler.is_compiling()
            or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]
        ):
            return
        try:
            hook(self, *args)
        except Exception:
            if not self._watches:
                raise
            self._most_steps = 0  # nothing that follows is complete
            self._end()

    return call


class Recorder:
    """One rank's recording."""

    def __init__(self, folder: Path, rank: int, world: int, most_steps: int, *, watches: bool) -> None:
        """Write to ``folder`` until ``most_steps`` steps of the first optimizer are made."""
        self._watches = watches
        self._hooks: list[Any] = []  # of parameters
        self._folder, self._world, self._most_steps, self._owner = folder, world, most_steps, os.getpid()
        self._batches = KeptBatches(folder.parent / RANKS, rank, replayed=folder.name != RANKS)
        private = partial(os.open, mode=0o600)
        self._file = open(folder / f"rank-{rank:06}.proof", "w", buffering=1, opener=private)  # noqa: SIM115
        self._here = f"{Path.cwd()}{os.sep}"
        self._made: float = 0  # steps of the first optimizer
        self._since: dict[Any, int] = {}  # the first backward pass for the next step of each optimizer
        self._parameters: dict[Any, _Parameter] = {}
        self._named: dict[Any, str] = {}  # the parameters of modules that were called
        self._called: dict[int, Any] = {}  # modules
        self._passes: list[Any] = []  # of each its line, its loss, and what computed that
        self._evaluations = 0  # calls of modules without gradients
        self._fresh, self._weighed, self._probed = True, False, False
        self._inputs: list[Any] = []
        self._noise: list[Any] = []
        self._drawn = 0  # how many of these the last backward pass could depend on
        self._plateaus: list[Any] = []  # schedules that follow a metric
        self._loaders: Counter[Any] = Counter()  # passes over each DataLoader
        self._open: dict[Any, Any] = {}  # passes over DataLoaders that are not over

    def write(self, event: str, **fields: Any) -> None:
        """Write one line."""
        if os.getpid() == self._owner:
            self._file.write(json.dumps({"event": event, **fields}) + "\n")

    def line(self) -> str:
        """Return the line of the script, or of its own packages, that is being executed; "" if there is none."""
        for frame, number in walk_stack(None):
            if self.is_own(frame):
                return f"{frame.f_code.co_filename.removeprefix(self._here)}:{number}"
        return ""

    def is_own(self, frame: Any) -> bool:
        """Return whether a frame executes the script or a package beside it."""
        name = frame.f_code.co_filename  # not absolute for the script itself
        return (name.startswith(self._here) or name[0] not in "/<") and "site-packages" not in name

    # Backward passes and steps

    def _trained(self, optimizer: Any) -> list[_Parameter]:
        """Return the parameters of an optimizer; each has a hook that notes the rank's own gradients."""
        tensors = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        for tensor in tensors:
            if tensor not in self._parameters:
                self._parameters[tensor] = one = _Parameter(tensor)
                if one.whole:
                    self._hooks.append(tensor.register_hook(partial(self._came, one)))
        return [self._parameters[tensor] for tensor in tensors]

    @_safe
    def _came(self, one: _Parameter, gradient: Any) -> None:
        if _filled(gradient):
            one.own.append((len(self._passes) - 1, sketch(gradient)))

    @_safe
    def optimizes(self, args: Any, more: Any) -> None:
        """Note an optimizer. Lightning, which validates only after whole epochs, then has epochs of a few batches."""
        self._since.setdefault(args[0], 0)
        for frame, _ in [] if self._watches else walk_stack(None):
            trainer: Any = frame.f_locals.get("trainer")
            if type(getattr(trainer, "val_check_interval", None)) is float:  # else it is a number of batches
                trainer.limit_train_batches = (self._most_steps + 1) // 2 * trainer.accumulate_grad_batches

    @_safe
    def before_backward(self, args: Any, more: Any) -> None:
        """Hook new parameters, and note which gradients were cleared."""
        for one in chain(*map(self._trained, self._since)):
            one.look()
        self._fresh, self._drawn = True, len(self._noise)
        loss = tree_leaves([args, more])[0]
        self._passes.append((self.line(), float(loss.detach().sum()), str(loss.grad_fn)))

    @_safe
    def after(self, when: str, *_: Any) -> None:
        """Take sketches of the gradients: after a "backward" pass, or before they are clipped."""
        for one in self._parameters.values():
            one.note(when)

    @_safe
    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Take sketches of what the optimizer takes."""
        for one in self._trained(optimizer):
            one.note("step")
            one.look()
            one.seen["value"] = sketch(one.tensor) if one.whole else []

    @_safe
    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Write everything about this step; end the script after the last one."""
        since, mine = self._since.setdefault(optimizer, 0), self._trained(optimizer)
        number = [*self._since].index(optimizer)
        passes = sorted({number for one in mine for number, _ in one.own if number >= since})
        lost = {number for one in mine for number in one.lost if number >= since}.difference(passes)
        settings: list[Any] = [
            {
                name: float(value or 0) if name == "lr" else str(value)
                for name, value in group.items()
                if name != "params"
            }
            for group in optimizer.param_groups
        ]
        settings += [{"metric": f"{one.best:.4g}"} for one in self._plateaus if one.optimizer is optimizer]
        for module in [] if self._named else gc.get_objects():
            if issubclass(type(module), torch.nn.Module):
                for name, one in module.named_parameters():
                    if len(name) > len(self._named.get(one, "")):  # the outermost module's
                        self._named[one] = name.removeprefix("module.")
        self.write(
            "step",
            optimizer=number,
            kind=type(optimizer).__name__,
            line=self.line(),
            settings=settings,
            stateful=any(optimizer.state.values()),
            closure=any(map(callable, [*args, *kwargs.values()])),
            passes=[self._passes[number][0] for number in passes],
            losses=[self._passes[number][1:] for number in passes],
            inputs=self._inputs,
            noise=self._noise[: self._drawn],
            weighed=self._weighed,
            discarded=[self._passes[number][0] for number in sorted(lost)],
            parameters=[self._parameter(one, since) for one in mine],
        )
        self._made += not number or (self._watches and 1 / 16)  # a run may never use its first optimizer
        self._since[optimizer], self._inputs, self._noise = len(self._passes), [], []
        self._note_states()
        if self._made >= self._most_steps:
            self._end()

    def _parameter(self, one: _Parameter, since: int) -> dict[str, Any]:
        seen, one.seen, one.lost = one.seen, {}, []
        return {
            "name": self._named.get(one.tensor) or f"a parameter of shape {tuple(one.tensor.shape)}",
            "whole": one.whole,
            **seen,
            "own": one.summed(range(since, len(self._passes))),
            "first": one.own[0][1] if one.own else None,
            "stale": one.summed(range(since)),
        }

    def _end(self) -> None:
        """End the script once all ranks are here: others may still need this one in a collective. Wait 20 s at most.

        A run goes on without hooks of its parameters, and may free these.
        """
        if self._watches:
            for hook in self._hooks:
                hook.remove()
            self._parameters.clear()
            self._named.clear()
            self._since.clear()
            return
        for iterator in [*self._open]:
            self._over(iterator)
        self.write("end")
        Path(self._file.name).with_suffix(".over").touch()
        for _ in range(1_000):
            if len(list(self._folder.glob("*.over"))) >= self._world:
                break
            time.sleep(0.02)
        sys.stdout.flush()
        os._exit(0)

    # Models

    def forward(self, args: Any, more: Any) -> None:
        """Note the inputs of the first call after each backward pass, and how the model is as training begins."""
        module, *inputs = args
        self._called.setdefault(id(module), module)
        if not self._since:
            return
        if not torch.is_grad_enabled():
            self._evaluations += 1
        elif self._fresh and module.training:
            self._fresh = False
            if not self._passes:
                trained = [one.tensor for one in chain(*map(self._trained, self._since))]
                self._batches.align([*trained, *module.buffers()])
            self._inputs.append(fingerprints([*inputs, *more.values()]))

    def _note_states(self) -> None:
        """Note what no optimizer has: statistics of BatchNorm only if they are used, and not broadcast."""
        averaged = any(getattr(one, "broadcast_buffers", False) for one in self._called.values())
        for number, module in enumerate(self._called.values()):
            if isinstance(module, _BatchNorm) and (averaged or not self._evaluations):
                continue
            for name, one in chain(module._parameters.items(), module._buffers.items()):
                if one is not None and one not in self._parameters and one.is_floating_point():
                    self.write("state", where=f"{number} {name} {self._made}", line=self.line(), values=sketch(one))

    # Samples

    def iterates(self, args: Any, *_: Any) -> None:
        """Begin a pass over a DataLoader."""
        iterator, loader = args[:2]
        self._loaders[loader] += 1
        sampler = getattr(iterator._index_sampler, "sampler", iterator._index_sampler)
        self._open[iterator] = one = {
            "loader": [*self._loaders].index(loader),
            "number": self._loaders[loader],
            "line": self.line(),
            "shuffle": bool(getattr(sampler, "shuffle", False)),
            "indices": [],
            "given": 0,
            "began": (len(self._passes), self._evaluations, self._made),
            "probed": loader.worker_init_fn is None,
        }
        with suppress(TypeError):  # there are datasets without a length
            one["samples"] = len(iterator._dataset)

    def indexed(self, args: Any, more: Any, index: Any) -> None:
        """Note the indices that a DataLoader loads next."""
        if one := self._open.get(args[0]):
            one["indices"].append(_indices(index))

    def fetch(self, iterator: Any, fetched: Hook) -> Any:
        """Return the next batch, or end the pass early by StopIteration."""
        one = self._open.get(iterator)
        if not one:
            return fetched()
        passes, evaluations, steps = one["began"]
        frame = sys._getframe(2)
        one |= {
            "trains": len(self._passes) > passes,
            "evaluates": self._evaluations > evaluations,
            # a `next()` of the script's own does not expect the end here; loops of frameworks do
            "looped": not self.is_own(frame) or dis.opname[frame.f_code.co_code[frame.f_lasti]] == "FOR_ITER",
        }
        least = max(1, (self._most_steps + 1) // 2 - steps)  # half of the steps are for what follows the first epoch
        enough = self._made - steps >= least if one["trains"] else one["given"] >= 4
        if enough and one["looped"]:
            self._over(iterator)
            raise StopIteration
        name = f"{one['loader']}-{one['number']}-{one['given']}.pt"
        try:
            if self._batches.replayed:
                batch = self._batches.joined(
                    name, lambda all: iterator._collate_fn([*map(iterator._dataset.__getitem__, all)])
                )
            else:
                batch = fetched()
                self._batches.keep(name, batch, one["indices"][one["given"] :][: 1 - iterator._dataset_kind])
        except StopIteration:
            self._over(iterator)
            raise
        one["given"] += 1
        return batch

    def _over(self, iterator: Any) -> None:
        """Write a pass over a DataLoader that has ended, with the batches that it would still have."""
        one = self._open.pop(iterator)
        if self._batches.replayed or not one["given"]:
            return
        seen, rest = one["indices"][: one["given"]], one["indices"][one["given"] :]
        left: Any = map(_indices, iterator._sampler_iter)
        if iterator._dataset_kind:  # a stream, which has no indices
            rest, left = [], ([] for _ in iter(iterator._next_data, None))
        end_s = time.monotonic() + 0.5
        with suppress(Exception):  # a sampler of the script's own may not be asked twice
            rest += takewhile(lambda _: time.monotonic() < end_s, left)
        if time.monotonic() < end_s and one["looped"]:
            one["batches"] = len(seen) + len(rest)
        one["indices"], one["rest"] = [
            [str(index) for index in chain(*part) if index is not None] for part in (seen, rest)
        ]
        if one["trains"] and not self._probed:
            self._probed = True
            one |= probed(iterator._dataset, [*chain(*seen, *rest)], live=one["probed"])
        self.write("pass", **one)

    # What else ranks do

    def opened(self, path: Any, mode: Any = "w", *_: Any) -> None:
        """Note a file that is opened to be written."""
        if not isinstance(path, str) or not set(str(mode)) & set("wxa") or path.startswith(("/dev/", "<")):
            return
        name = os.path.abspath(path)  # noqa: PTH100 - as open() sees it
        if not name.startswith(str(self._folder)) and (line := self.line()):
            self.write("file", path=name.removeprefix(self._here), line=line)

    # Hooks

    def install(self) -> None:
        """Replace functions of torch by ones that report to this recorder, or that leave dropout out."""
        optim: Any = sys.modules["torch.optim.optimizer"]  # torch.optim does not keep the name
        optim.register_optimizer_step_pre_hook(self.before_step)
        optim.register_optimizer_step_post_hook(self.after_step)
        _around(optim.Optimizer, "add_param_group", self.optimizes)
        _around(torch.autograd, "backward", self.before_backward, partial(self.after, "backward"))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            _around(torch.nn.utils, name, partial(self.after, "clip"))
        if self._watches:
            return
        _around(torch.nn.Module, "__call__", self.forward)
        for name in dir(dist):
            if name.startswith(("all_reduce", "all_gather", "gather", "reduce")):  # they combine results
                _around(dist, name, lambda *_: self.write("call"))
        for name in dir(torch.nn.functional):
            if "loss" in name or "entropy" in name:
                _around(torch.nn.functional, name, self.lost)
            elif "dropout" in name:
                replace(torch.nn.functional, name, lambda _: lambda input, *_, **__: input)
        replace(
            torch.nn.functional,
            "scaled_dot_product_attention",
            lambda original: (
                lambda query, key, value, attn_mask=None, dropout_p=0.0, *args, **more: original(
                    query, key, value, attn_mask, 0.0, *args, **more
                )
            ),
        )
        for owner, name in product(
            (torch, torch.Tensor, sys.modules.get("numpy.random")),
            ("normal", "rand", "randn", "uniform", "rand_like", "randn_like", "normal_", "uniform_"),
        ):
            _around(owner, name, after=self.drew)
        _around(torch.optim.lr_scheduler.ReduceLROnPlateau, "__init__", lambda args, _: self._plateaus.append(args[0]))
        # ranks leave it together, but not after the same number of steps: later steps are no pairs
        _around(Join, "__exit__", lambda *_: self.write("join", made=self._made), lambda *_: self._end())
        base = dataloader._BaseDataLoaderIter
        for name in ("__init__", "_reset"):  # persistent workers keep their iterator for all epochs
            _around(base, name, after=self.iterates)
        _around(base, "_next_index", after=self.indexed)
        replace(base, "__next__", lambda original: lambda iterator: self.fetch(iterator, lambda: original(iterator)))
        _around(torch, "save", lambda args, more: self.opened(str([*args, *more.values()][1])))
        paths = {"open": slice(0, 2), "os.rename": slice(1, 2)}  # in the arguments of audit events
        sys.addaudithook(lambda event, args: self.opened(*args[paths[event]]) if event in paths else None)

    def lost(self, args: Any, more: Any) -> None:
        """Note whether a loss has weights."""
        self._weighed |= more.get("weight") is not None or len(args) > 2

    def drew(self, args: Any, more: Any, noise: Any) -> None:
        """Note random numbers that are drawn as the script trains."""
        if self._since:
            self._noise.append(fingerprints(torch.as_tensor(noise)))


def _filled(gradient: Any) -> bool:
    return gradient is not None and bool(gradient.detach().any())


def _indices(batch: Any) -> list[Any]:
    return list(batch) if isinstance(batch, list | tuple) else [batch]


def replace(owner: Any, name: str, change: Hook) -> None:
    """Replace ``owner.name``, if there is one, by ``change(original)``."""
    if callable(original := getattr(owner, name, None)):
        setattr(owner, name, wraps(original)(change(original)))


def _around(owner: Any, name: str, before: Any = None, after: Any = None) -> None:
    """Have hooks called with the arguments of each call of ``owner.name``, and ``after`` with its result too."""

    def change(original: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if before:
                before(args, more)
            result = original(*args, **more)
            if after:
                after(args, more, result)
            return result

        call.__code__ = call.__code__.replace(co_filename="<ddplaunch>")  # no failure is called one of this line
        return call

    replace(owner, name, change)
