"""Lets a script that insists on GPUs train on the CPU: devices, the backend `nccl` and `torch.cuda` are stood in for.

The script itself sees a GPU for each rank; libraries see that there is none. Mixed precision for CUDA is off, because
torch switches it off where CUDA is missing.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from typing import Any
from unittest.mock import Mock

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_gather
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ddplaunch.prove.in_rank.recorder import Hook, replace


class CpuForCuda(TorchFunctionMode):
    """Gives functions of torch the CPU where their arguments name CUDA, and calls ``used`` then."""

    used: Hook

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch."""
        if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            self.used()
            return args[0]
        if function is torch.device:  # the script may ask for its type
            return function(*args, **kwargs or {})
        if function.__name__ in ("to", "_parse_to"):
            args = [f"cuda:{one}" if type(one) is int else one for one in args]
        return self.call(function, *args, **kwargs or {})

    def call(self, function: Any, *args: Any, **more: Any) -> Any:
        """Call a function with the CPU for CUDA, and `gloo` for `nccl`."""
        kept = {
            name: self._on_cpu(value, name == "device")
            for name, value in more.items()
            if name not in ("device_id", "device_ids", "output_device")
        }
        return function(*map(self._on_cpu, args), **kept)

    def _on_cpu(self, value: Any, may_be_index: bool = False) -> Any:
        text = str(value) if isinstance(value, str | torch.device) else ""
        if text.startswith("cuda") or (may_be_index and type(value) is int):
            self.used()
            return "cpu"
        return "gloo" if "nccl" in text else value


class Unsaid(Mock):
    """What only a GPU could say: a script may call, enter, compute with and print it, but decide nothing by it."""

    def __bool__(self, *_: object) -> bool:
        """Raise TypeError, as comparing it by size, indexing it and making it a number do."""
        raise TypeError("the CPU stands in for a GPU, and cannot say what the script decides by")

    __eq__ = __bool__
    __enter__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        Mock.__call__
    )
    __exit__ = Mock(return_value=None)
    __format__ = Mock(return_value="unknown")


def stand_in(gpus: int, used: Hook, is_own: Hook) -> None:
    """Stand in for that many GPUs from now on. ``is_own`` says whether a frame executes the script."""
    mode = CpuForCuda()
    mode.used = cache(used)
    answers = {
        "is_available": True,
        "device_count": gpus,
        "current_device": int(os.environ["LOCAL_RANK"]),
        "current_accelerator": torch.device("cuda"),
        "device": Unsaid(),
    }

    def answering(name: str, original: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if not is_own(sys._getframe(1)):
                return original(*args, **more)
            try:
                return answers[name] if name in answers else original(*args, **more)
            except Exception:  # there is no GPU
                return Unsaid()

        return call

    for module in (torch.cuda, torch.accelerator):
        for name in filter(str.islower, module.__all__):
            replace(module, name, partial(answering, name))
    # they stay classes: annotations combine them by `|`
    torch.cuda.Event.__new__ = torch.cuda.Stream.__new__ = lambda *_, **__: Unsaid()  # type: ignore[method-assign, assignment]
    ddp = torch.nn.parallel.DistributedDataParallel
    for owner, name in (dist, "init_process_group"), (torch, "load"), (torch, "set_default_device"), (ddp, "__init__"):
        replace(owner, name, lambda original: lambda *args, **more: mode.call(original, *args, **more))
    replace(ddp, "_passing_sync_batchnorm_handle", lambda _: lambda *_: None)  # it insists on GPUs
    replace(torch.nn.SyncBatchNorm, "forward", lambda _: _batch_norm_of_all)
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    mode.__enter__()  # type: ignore[no-untyped-call]


def _batch_norm_of_all(self: Any, input: Any) -> Any:
    """Normalize by the statistics of all ranks' inputs: torch's own synchronized BatchNorm needs GPUs."""
    if not self.training:
        return _BatchNorm.forward(self, input)
    every = torch.cat(all_gather(input))  # type: ignore[no-untyped-call]
    return _BatchNorm.forward(self, every).chunk(dist.get_world_size())[dist.get_rank()]
