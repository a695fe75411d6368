"""Notes, in a rank and at its first optimizer steps, with which numbers it trains.

Like ``sitecustomize`` beside it, it is run by whatever Python a rank is, so it imports nothing of ddplaunch; torch is
looked at once the script has imported it. It never raises, changes no number, draws no random one, waits for no GPU,
and has put everything back after the fourth step.

What it looks at is called by torch anyway: the hook of all optimizers' steps, the constructors of DataLoaders'
iterators and of DistributedDataParallel, and what puts a checkpoint into an optimizer. These are noticed when they are
looked up, not called, so that no traceback ever shows a frame of this file.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING or __package__:
    from ddplaunch.agent.rank_site.ddplaunch_marks import Noticed
    from ddplaunch.agent.rank_site.ddplaunch_timeline import first_dimension, of_loader
else:  # beside this file
    from ddplaunch_marks import Noticed
    from ddplaunch_timeline import first_dimension, of_loader

    del sys.modules["ddplaunch_timeline"]
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    AfterImport = Callable[[dict[str, Callable[[Any], None]]], None]

#: Where the rank is to write its note.
PATH = "DDPLAUNCH_OBSERVE"
_STEPS = 4  # of the first optimizer; other optimizers are looked at meanwhile
_WRITTEN_AT = (1, 2, _STEPS)  # a rank may end by `os._exit` at any time
_MOST_STEPS = 64  # of all optimizers together
_MOST_SUMMED = 64  # parameters, and values of each
_MOST = 16  # optimizers, iterators and groups of parameters that are looked at
#: What lets ranks work together without a process group of torch.
_OTHERS = ("horovod", "mpi4py", "jax", "torch_xla", "bagua", "ray", "paddle")


def begin(path: str, after_import: AfterImport) -> None:
    """Write a note to ``path`` at the first optimizer steps, if there will be any."""
    watched = _Observer(path)
    looked_at = {"torch.optim.optimizer": watched.optimizers, "torch.utils.data.dataloader": watched.dataloaders}
    after_import({**looked_at, "torch.nn.parallel.distributed": watched.parallel})


class _Iterator:
    """One iterator of a DataLoader, how many batches it had given at the step before, and its note."""

    def __init__(self, iterator: Any) -> None:
        import weakref

        self.reference = weakref.ref(iterator)
        self.note: dict[str, Any] | None = None
        self._seen = 0

    def given(self) -> int:
        """Return how many batches it has given since this was asked last."""
        number = getattr(self.reference(), "_num_yielded", 0)
        before, self._seen = self._seen, number
        return int(number - before)


class _Observer:
    """One rank's first steps."""

    def __init__(self, path: str) -> None:
        self._path, self._owner = path, os.getpid()
        self._over = False
        self._restore: list[Any] = []
        self._steps = 0  # of the first optimizer
        self._all_steps = 0
        self._main: int | None = None
        self._begun: int | None = None  # collectives before the first step was over
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._iterators: list[_Iterator] = []
        self._loaders: list[dict[str, Any]] = []
        self._models: list[Any] = []  # references to what is distributed
        self._forward: list[int | None] = []  # first dimensions of what goes into it
        self._loaded: dict[int, Any] = {}  # rates of optimizers before something was loaded into them
        self._counted: Any = None  # the hook of a parameter
        self._passes = 0
        self._closure = False
        self._passes_of_steps: list[int] = []
        self._sums: list[Any] = []  # of parameters, and when a GPU will have them

    def optimizers(self, module: Any) -> None:
        """Be told of every optimizer's steps; torch before 2.0 has no such hook."""
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None:
            return

        def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
            import torch

            if not torch.compiler.is_compiling():  # what compiles a step is not to see more than this line
                self.stepped(optimizer, args, kwargs)

        handle = register(stepped)
        hooks = module._global_optimizer_post_hooks

        def restore() -> None:
            # Hooks are being iterated over: the last one may go; in the place of another one stays what does nothing.
            if next(reversed(hooks), None) == handle.id:
                handle.remove()
            elif handle.id in hooks:
                hooks[handle.id] = slice

        self._restore.append(restore)
        self._notice(module.Optimizer, "load_state_dict", self._restored)

    def dataloaders(self, module: Any) -> None:
        """Notice each iterator of a DataLoader."""
        self._notice(module._BaseDataLoaderIter, "__init__", self._iterator)

    def parallel(self, module: Any) -> None:
        """Notice each DistributedDataParallel."""
        import weakref

        def wrapped(model: Any) -> None:
            self._models = [*self._models[-_MOST:], weakref.ref(model)]

        self._notice(module.DistributedDataParallel, "__init__", wrapped)

    def _notice(self, kind: Any, name: str, notice: Callable[[Any], None]) -> None:
        method = kind.__dict__[name]
        noticed = Noticed(method, notice)
        setattr(kind, name, noticed)

        def restore() -> None:
            if kind.__dict__.get(name) is noticed:  # else somebody has put something on top of it
                setattr(kind, name, method)

        self._restore.append(restore)

    def _restored(self, optimizer: Any) -> None:
        self._loaded.setdefault(id(optimizer), _bases(optimizer))

    def _iterator(self, iterator: Any) -> None:
        if not self._over and os.getpid() == self._owner:
            alive = [each for each in self._iterators if each.reference() is not None]
            self._iterators = [*alive[-_MOST:], _Iterator(iterator)]

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Look at one optimizer that has just made a step."""
        if self._over or os.getpid() != self._owner:
            return
        try:
            self._look(optimizer, any(map(callable, args[1:])) or kwargs.get("closure") is not None)
        except Exception:  # the note is a convenience, the training is not
            self._end()

    def _look(self, optimizer: Any, closure: bool) -> None:
        self._all_steps += 1
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
                self._sums = _sums([model for each in self._models if (model := each()) is not None])
        over = self._steps >= _STEPS or self._all_steps >= _MOST_STEPS
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
            known["steady"] = known["steady"] and rates == known["lr"]
            above = [rate and first and rate > first for rate, first in zip(rates, known["initial_lr"])]  # noqa: B905
            known["rises"] = known["rises"] or any(above)
        elif len(self._optimizers) < _MOST:
            self._optimizers[id(optimizer)] = {
                "kind": type(optimizer).__name__,
                "steps": 1,
                "lr": rates,
                "initial_lr": [_number(group.get("initial_lr")) for group in groups],
                "max_lr": [_number(group.get("max_lr")) for group in groups],
                "steady": True,
                "rises": False,
                "devices": sorted({str(one.device) for one in groups[0]["params"][:_MOST] if hasattr(one, "device")}),
                "restored": self._loaded.get(id(optimizer), _bases(optimizer)) != _bases(optimizer),
            }

    def _note_loaders(self) -> None:
        """Note which iterators have gone on since the step before, and how many batches they gave."""
        for one in self._iterators:
            if (given := one.given()) <= 0:
                continue
            if one.note is None:
                iterator = one.reference()
                one.note = {**of_loader(iterator), "batches": []}
                self._loaders = [*self._loaders, one.note][-_MOST:]
                if one.note["batch_size"] is None:
                    self._look_into(iterator, one.note)
            one.note["batches"].append([self._steps, given])

    def _look_into(self, iterator: Any, note: dict[str, Any]) -> None:
        """Take the batch size from the next batches where the dataset makes them, not the DataLoader."""
        get = iterator._next_data

        def look() -> Any:
            data = get()
            if not self._over:
                note["first_dimension"] = first_dimension(data)
            return data

        iterator._next_data = look
        self._restore.append(lambda: iterator.__dict__.pop("_next_data", None))

    def _count_passes(self, optimizer: Any) -> None:
        """Count how often the gradient of one parameter is added to, where no DataLoader tells of batches."""
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

            handle = parameter.register_post_accumulate_grad_hook(passed)
            self._counted = handle
            self._restore.append(handle.remove)
            self._look_at_forward()

    def _look_at_forward(self) -> None:
        """Take the batch size from what goes into the one model that is distributed."""
        alive = [model for each in self._models if (model := each()) is not None]
        if len(alive) == 1 and not _compiled(alive[0]):
            self._restore.append(alive[0].register_forward_pre_hook(_Entered(self._forward)).remove)

    def _end(self) -> None:
        """Put everything back."""
        self._over = True
        for restore in self._restore:
            try:
                restore()
            except Exception:
                continue
        self._restore, self._iterators, self._counted = [], [], None

    def _write(self, over: bool) -> None:
        """Write the note in one step."""
        import json

        note = {
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
            "forward": self._forward,
            "sums": self._sums[0].tolist() if self._sums and all(each.query() for each in self._sums[1:]) else None,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "gpus": cuda.device_count() if (cuda := sys.modules["torch"].cuda).is_initialized() else 0,
            "passes": None if self._closure else self._passes_of_steps,
        }
        draft = f"{self._path}.{self._owner}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump(note, file)
        os.replace(draft, self._path)  # noqa: PTH105 - pathlib is not imported in every rank


class _Entered:
    """Notes the first dimension of what goes into a model that trains, each once."""

    def __init__(self, found: list[int | None]) -> None:
        self._found = found

    def __call__(self, model: Any, args: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and model.training and torch.is_grad_enabled() and args:
            size = first_dimension(args)
            if size not in self._found[:_MOST]:
                self._found.append(size)

    def __reduce__(self) -> Any:  # a model that is copied or saved meanwhile takes what does nothing in its place
        return getattr, ({}, "get")


def _sums(models: list[Any]) -> list[Any]:
    """Return sums over parameters that all ranks share, and what says when a GPU has them; nothing where none does.

    Two of each group of parameters: of its values and of their magnitudes, in double precision.
    """
    import torch

    ranks = torch.distributed.get_world_size() if models else 0
    if any(one.process_group.size() != ranks or getattr(one, "_comm_hooks", None) != [] for one in models):
        return []  # what a hook sends instead of gradients may be anything
    shared = [each for one in models for name, each in one.module.named_parameters() if _is_shared(one, name, each)]
    shared = shared[:: len(shared) // _MOST_SUMMED + 1] + shared[-1:]
    places = {each.device for each in shared}
    on_gpu = {"cuda"} == {place.type for place in places}
    if len(places) != 1 or (on_gpu and torch.cuda.is_current_stream_capturing()):
        return []
    with torch.no_grad():
        some = torch.cat([each.as_strided((min(each.numel(), _MOST_SUMMED),), (1,)).double() for each in shared])
        found = torch.stack([some.sum(), some.abs().sum()]).to("cpu", non_blocking=True)
    if not on_gpu:
        return [found]
    reached: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    reached.record()
    return [found, reached]


def _is_shared(model: Any, name: str, parameter: Any) -> bool:
    import torch

    plain = type(parameter) is torch.nn.Parameter and parameter.layout is torch.strided and parameter.numel() > 0
    return plain and parameter.requires_grad and name not in model.parameters_to_ignore


def _compiled(model: Any) -> bool:
    """Return whether calls of the model itself may be compiled, not only those of what is in it."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    within = type(model.module).__name__ == "OptimizedModule"
    return bool(counters.get("frames")) and not within


def _number(value: Any) -> float | None:
    """Return a rate as a float; None for what only the GPU knows."""
    on_gpu = not isinstance(value, int | float) and getattr(getattr(value, "device", None), "type", "cpu") != "cpu"
    return None if isinstance(value, bool) or value is None or on_gpu else float(value)


def _bases(optimizer: Any) -> list[float | None]:
    return [_number(group.get("initial_lr") or group.get("lr")) for group in optimizer.param_groups[:_MOST]]


def _process_group() -> dict[str, Any] | None:
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return {"size": distributed.get_world_size(), "backend": str(distributed.get_backend())}


def _collectives() -> int | None:
    """Return how many collectives all process groups have begun; None where a backend does not count them."""
    try:
        groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map
        return int(sum(one._get_sequence_number_for_group() for one in groups))
    except Exception:
        return None


def _last_with_gradient(optimizer: Any) -> Any:
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    with_gradient = (one for one in reversed(trained) if one.is_leaf and one.grad is not None)
    return next(with_gradient, next(iter(trained), None))
