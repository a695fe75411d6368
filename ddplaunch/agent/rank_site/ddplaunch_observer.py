"""Notes, inside a rank at its first optimizer steps, the numbers that it trains with.

Like ``sitecustomize`` beside it, it runs in whatever Python a rank is, so it imports nothing of ddplaunch; it hooks
into torch once the script has imported it. It never raises, changes no number, draws no random number, waits for no
GPU, and observes no step after the fourth.

It observes functions that torch calls anyway: the hook of all optimizers' steps, the constructors of DataLoader
iterators and of DistributedDataParallel, and ``load_state_dict`` of optimizers. The methods are noticed when they are
looked up, not when they are called, so that no traceback ever shows a frame of this file. In later epochs it notes
only whether the DistributedSampler of these steps repeats the same order.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING or __package__:
    from ddplaunch.agent.rank_site.ddplaunch_marks import batch_size, notice, notice_steps, plain_integer
else:  # beside this file
    from ddplaunch_marks import batch_size, notice, notice_steps, plain_integer
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    AfterImport = Callable[[dict[str, Callable[[Any], None]]], None]

_STEPS = 4  # of the first optimizer; other optimizers are observed meanwhile
_WRITTEN_AT = (1, 2, _STEPS)  # a rank may end by `os._exit` at any time
_MOST_STEPS = 64  # of all optimizers together
_MOST_SUMMED = 64  # parameters, and values of each
_IN_ORDER = 3  # passes over the samples: the second may be for evaluation only
_MOST = 16  # the most optimizers, iterators, and groups of parameters that are observed
#: Modules that let ranks work together without a process group of torch.
_OTHERS = ("horovod", "mpi4py", "jax", "torch_xla", "bagua", "ray", "paddle")


def begin(path: str, after_import: AfterImport) -> None:
    """Write a note to ``path`` at the first optimizer steps, if there are any."""
    observer = _Observer(path)
    calls: dict[str, Callable[[Any], None]] = {
        "torch.optim.optimizer": observer.optimizers,
        "torch.utils.data.dataloader": observer.dataloaders,
        "torch.utils.data.distributed": observer.samplers,
        "torch.nn.parallel.distributed": observer.parallel,
    }
    if "DDPLAUNCH_PROVE" in os.environ:

        def prove(_: Any) -> None:
            import ddplaunch.prove.in_rank

            ddplaunch.prove.in_rank.begin()

        calls["torch"] = prove
    after_import(calls)


class _Iterator:
    """One iterator of a DataLoader, the number of batches that it gave up to the previous step, and its note."""

    def __init__(self, iterator: Any) -> None:
        import weakref

        self.reference = weakref.ref(iterator)
        self.note: dict[str, Any] | None = None
        self._given = 0

    def newly_given(self) -> int:
        """Return how many batches the iterator has given since the last call."""
        number = getattr(self.reference(), "_num_yielded", 0)
        earlier, self._given = self._given, number
        return int(number - earlier)


class _Observer:
    """One rank's first steps."""

    def __init__(self, path: str) -> None:
        self._path, self._owner = path, os.getpid()
        self._over = False
        self._steps = 0  # of the first optimizer
        self._main: int | None = None
        self._begun: int | None = None  # collectives begun before the end of the first step
        self._note: dict[str, Any] = {}
        self._sampler: Any = None  # a weak reference to the sampler that shuffles these steps' samples
        self._passes_in_order, self._epoch = 1, 0
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._iterators: list[_Iterator] = []
        self._loaders: list[dict[str, Any]] = []
        self._models: list[Any] = []  # weak references to the DistributedDataParallel modules
        self._loaded: dict[int, Any] = {}  # rates of optimizers before a checkpoint was loaded
        self._counted: Any = None  # the handle of a parameter's hook
        self._passes = 0
        self._closure = False
        self._passes_of_steps: list[int] = []
        # two sums of parameters, and the GPU event after which they are known: in DistributedDataParallel, and outside
        self._sums: list[Any] = []
        self._outside: list[Any] = []

    def optimizers(self, module: Any) -> None:
        """Notice every optimizer's steps, and checkpoints that are loaded into one."""
        notice_steps(module, self.stepped)
        notice(module.Optimizer, "load_state_dict", self._restored)

    def dataloaders(self, module: Any) -> None:
        """Notice each iterator of a DataLoader."""
        notice(module._BaseDataLoaderIter, "__init__", self._iterator)

    def parallel(self, module: Any) -> None:
        """Notice each DistributedDataParallel."""
        import weakref

        def wrapped(model: Any) -> None:
            self._models = [*self._models[-_MOST:], weakref.ref(model)]

        notice(module.DistributedDataParallel, "__init__", wrapped)

    def samplers(self, module: Any) -> None:
        """Notice each pass over the samples of a DistributedSampler."""
        notice(module.DistributedSampler, "__iter__", self._pass)

    def _pass(self, sampler: Any) -> None:
        if self._sampler is None or self._sampler() is not sampler or os.getpid() != self._owner:
            return
        self._passes_in_order = self._passes_in_order + 1 if sampler.epoch == self._epoch else 1
        self._epoch = sampler.epoch
        if self._passes_in_order == _IN_ORDER and self._over:
            self._save({**self._note, "passes_in_order": _IN_ORDER})

    def _restored(self, optimizer: Any) -> None:
        if not self._over:
            self._loaded.setdefault(id(optimizer), _bases(optimizer))

    def _iterator(self, iterator: Any) -> None:
        if not self._over and os.getpid() == self._owner:
            alive = [one for one in self._iterators if one.reference() is not None]
            self._iterators = [*alive[-_MOST:], _Iterator(iterator)]

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note the numbers of an optimizer that has just made a step."""
        if self._over:
            return
        try:
            self._look(optimizer, any(map(callable, args[1:])) or kwargs.get("closure") is not None)
        except Exception:  # the note is optional, and must not stop the training
            self._end()

    def _look(self, optimizer: Any, closure: bool) -> None:
        self._note_optimizer(optimizer)
        if self._main is None:
            self._main = id(optimizer)
        if id(optimizer) == self._main:
            self._steps += 1
            self._begun = _collectives() if self._steps == 1 else self._begun
            self._closure = self._closure or closure
            self._note_loaders()
            self._count_passes(optimizer)
            if self._steps == _STEPS - 1:
                models = [model for reference in self._models if (model := reference()) is not None]
                self._sums, self._outside = _sums(_shared(models)), _sums(_outside(models, optimizer))
        over = self._steps >= _STEPS or sum(one["steps"] for one in self._optimizers.values()) >= _MOST_STEPS
        if over or (id(optimizer) == self._main and self._steps in _WRITTEN_AT):
            self._write(over)
        if over:
            self._end()

    def _note_optimizer(self, optimizer: Any) -> None:
        groups = optimizer.param_groups[:_MOST]
        rates = [_number(group.get("lr")) for group in groups]
        known = self._optimizers.get(id(optimizer))
        if known is not None:
            known["steps"] += 1
            known["rates"] = [*known["rates"], *rates[:1]][:_STEPS]
            known["steady"] = known["steady"] and rates == known["lr"]
            above = [rate and first and rate > first for rate, first in zip(rates, known["initial_lr"])]  # noqa: B905
            known["rises"] = known["rises"] or any(above)
        elif len(self._optimizers) < _MOST:
            self._optimizers[id(optimizer)] = {
                "kind": type(optimizer).__name__,
                "steps": 1,
                "lr": rates,
                "rates": rates[:1],  # of the first group, at each step
                "initial_lr": [_number(group.get("initial_lr")) for group in groups],
                "max_lr": [_number(group.get("max_lr")) for group in groups],
                "steady": True,
                "rises": False,
                "devices": sorted({str(one.device) for one in groups[0]["params"][:_MOST] if hasattr(one, "device")}),
                "restored": self._loaded.get(id(optimizer), _bases(optimizer)) != _bases(optimizer),
            }

    def _note_loaders(self) -> None:
        """Note which iterators gave batches since the previous step, and how many."""
        for one in self._iterators:
            if (given := one.newly_given()) <= 0:
                continue
            if one.note is None:
                iterator = one.reference()
                one.note = {**_loader_of(iterator), "batches": []}
                self._shuffled_by(getattr(getattr(iterator, "_index_sampler", None), "sampler", None))
                self._loaders = [*self._loaders, one.note][-_MOST:]
            one.note["batches"].append([self._steps, given])

    def _shuffled_by(self, sampler: Any) -> None:
        import weakref

        if getattr(sampler, "shuffle", False) and isinstance(getattr(sampler, "epoch", None), int):
            self._sampler, self._epoch = weakref.ref(sampler), sampler.epoch

    def _count_passes(self, optimizer: Any) -> None:
        """Count how often one parameter's gradient is added to, if no DataLoader shows the number of batches."""
        if self._counted is not None:
            self._passes_of_steps.append(self._passes)
            self._passes = 0
        elif not any(note["batches"][-1][0] == self._steps for note in self._loaders):
            parameter = _last_with_gradient(optimizer)
            compiled = getattr(sys.modules.get("torch._dynamo.config"), "compiled_autograd", False)
            if parameter is None or compiled:
                return

            def passed(_: Any) -> None:
                self._passes += 1

            self._counted = parameter.register_post_accumulate_grad_hook(passed)

    def _end(self) -> None:
        """Stop observing."""
        self._over, self._iterators = True, []
        if self._counted is not None:
            self._counted.remove()

    def _write(self, over: bool) -> None:
        self._note = {
            "schema": 1,
            "rank": int(os.environ["RANK"]),
            "world_size": int(os.environ["WORLD_SIZE"]),
            "over": over,
            "steps": self._steps,
            "process_group": _process_group(),
            "exchanged": now - self._begun if (now := _collectives()) is not None and self._begun is not None else None,
            "others": [name for name in _OTHERS if name in sys.modules],
            "ddp": bool(self._models),
            "optimizers": list(self._optimizers.values()),
            "loaders": self._loaders,
            "sums": _arrived(self._sums),
            "sums_outside": _arrived(self._outside),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "gpus": cuda.device_count() if (cuda := sys.modules["torch"].cuda).is_initialized() else 0,
            "passes": None if self._closure else self._passes_of_steps,
        }
        self._save(self._note)

    def _save(self, note: dict[str, Any]) -> None:
        """Write the note atomically."""
        import json

        draft = f"{self._path}.{self._owner}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(note, file)
        os.replace(draft, self._path)  # noqa: PTH105 - pathlib is not imported in every rank


def _shared(models: list[Any]) -> list[Any]:
    """Return the parameters that must be equal in all ranks; none if a hook sends something other than gradients."""
    import torch

    ranks = torch.distributed.get_world_size() if models else 0
    if any(model.process_group.size() != ranks or getattr(model, "_comm_hooks", None) != [] for model in models):
        return []
    return [
        one
        for model in models
        for name, one in model.module.named_parameters()
        if _is_shared(one) and name not in model.parameters_to_ignore
    ]


def _outside(models: list[Any], optimizer: Any) -> list[Any]:
    """Return the parameters that ``optimizer`` trains and that are in none of ``models``."""
    inside = {id(parameter) for model in models for parameter in model.module.parameters()}
    trained = [one for group in optimizer.param_groups for one in group["params"]]
    return [one for one in trained if id(one) not in inside and _is_shared(one)]


def _sums(parameters: list[Any]) -> list[Any]:
    """Return a tensor of two sums over some ``parameters``, of values and magnitudes, and on a GPU an event for it."""
    import torch

    some = parameters[:: len(parameters) // _MOST_SUMMED + 1] + parameters[-1:]
    devices = {parameter.device for parameter in some}
    on_gpu = {"cuda"} == {device.type for device in devices}
    if len(devices) != 1 or (on_gpu and torch.cuda.is_current_stream_capturing()):
        return []
    with torch.no_grad():
        first_values = [one.as_strided((min(one.numel(), _MOST_SUMMED),), (1,)).double() for one in some]
        values = torch.cat(first_values)
        sums = torch.stack([values.sum(), values.abs().sum()]).to("cpu", non_blocking=True)
    if not on_gpu:
        return [sums]
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return [sums, event]


def _arrived(sums: list[Any]) -> list[float] | None:
    """Return the values of ``sums``; None until their GPU has computed them."""
    return sums[0].tolist() if sums and all(event.query() for event in sums[1:]) else None


def _is_shared(parameter: Any) -> bool:
    import torch

    plain = type(parameter) is torch.nn.Parameter and parameter.layout is torch.strided
    # FullyShardedDataParallel, of which each rank has its own part, says so in attributes
    whole = plain and not any("flat" in name for name in vars(parameter))
    return whole and parameter.requires_grad and parameter.numel() > 0


def _loader_of(iterator: Any) -> dict[str, Any]:
    """Return the facts of a DataLoader from its iterator, without calling any code of the script."""
    batches = iterator._index_sampler
    collates = bool(iterator._auto_collation)
    sampler = getattr(batches, "sampler", None) if collates else batches
    dataset = iterator._dataset  # kind 1: an IterableDataset; otherwise the sampler has already called its `len()`
    counted = collates and not iterator._dataset_kind and hasattr(type(dataset), "__len__")
    return {
        "batch_size": batch_size(iterator),
        "sampler": _name(sampler),
        "batch_sampler": _name(batches) if collates else None,
        "replicas": plain_integer(getattr(sampler, "num_replicas", None)),
        "replica": plain_integer(getattr(sampler, "rank", None)),
        "dataset": _name(dataset),
        "samples": plain_integer(len(dataset)) if counted else None,
    }


def _name(one: Any) -> str | None:
    """Return the name of an object's class, with the prefix `torch.` for torch's own."""
    if one is None:
        return None
    kind = type(one)
    return f"torch.{kind.__name__}" if kind.__module__.startswith("torch.utils.data") else kind.__name__


def _number(value: Any) -> float | None:
    """Return a rate as a float; None if its value is on a GPU."""
    on_gpu = not isinstance(value, int | float) and getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
    return None if isinstance(value, bool) or value is None or on_gpu else float(value)


def _bases(optimizer: Any) -> list[float | None]:
    return [_number(group.get("initial_lr") or group.get("lr")) for group in optimizer.param_groups[:_MOST]]


def _process_group() -> dict[str, int] | None:
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return {"size": distributed.get_world_size()}


def _collectives() -> int | None:
    """Return how many collectives all process groups have begun; None if a backend does not count them."""
    try:
        groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
        return int(sum(one._get_sequence_number_for_group() for one in groups))
    except Exception:
        return None


def _last_with_gradient(optimizer: Any) -> Any:
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    with_gradient = (one for one in reversed(trained) if one.is_leaf and one.grad is not None)
    return next(with_gradient, next(iter(trained), None))
