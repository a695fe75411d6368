"""The options of a launch, declared once and shared by every command that describes one; refuses to interpret them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Optional

import typer

from ddplaunch.launch.options import Options
from ddplaunch.values import Resolved, Source

_SIZE, _NUMBERS, _INPUTS = "Size and devices", "Numbers", "Inputs"
_NETWORK, _ENVIRONMENT, _CHECKING = "Network", "Environment and torchrun", "Checking and records"

Text, Integer, Number = Optional[str], Optional[int], Optional[float]  # noqa: UP045 - Typer reads these at run time
Switch, Many = Optional[bool], Optional[list[str]]  # noqa: UP045


def _option(panel: str, text: str, metavar: str | None = None, flags: tuple[str, ...] = ()) -> Any:
    return typer.Option(*flags, help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


#: Field of ``Options`` -> (type, Typer's description). The order is that of ``--help``.
_DECLARED: dict[str, tuple[Any, Any]] = {
    "nproc": (
        Text,
        typer.Argument(
            help="Processes per node: 4, auto (every visible GPU), or NxM (N nodes of M).", metavar="[NPROC]"
        ),
    ),
    "gpus": (
        Text,
        _option(_SIZE, "0,1,3 (as nvidia-smi counts), UUIDs, or free:4 to pick and hold 4 idle ones.", "LIST"),
    ),
    "device": (Text, _option(_SIZE, "auto, cuda or cpu.", "KIND")),
    "nnodes": (Text, _option(_SIZE, "Nodes, or MIN:MAX.", "N")),
    "batch_size": (Integer, _option(_NUMBERS, "Samples per process and forward pass.", "N")),
    "accum": (Integer, _option(_NUMBERS, "Gradient accumulation: forward passes per optimizer step.", "N")),
    "global_batch_size": (Integer, _option(_NUMBERS, "Samples per optimizer step over all processes.", "N")),
    "base_lr": (Number, _option(_NUMBERS, "Learning rate to scale from.", "X")),
    "base_batch_size": (
        Integer,
        _option(_NUMBERS, "Effective batch that --base-lr was tuned for [one process's].", "N"),
    ),
    "lr": (Number, _option(_NUMBERS, "Final learning rate, never scaled.", "X")),
    "lr_scaling": (Text, _option(_NUMBERS, "linear, sqrt or none.", "RULE")),
    "lr_max_factor": (Number, _option(_NUMBERS, "Largest factor that scaling may apply.", "X")),
    "base_warmup": (Integer, _option(_NUMBERS, "Warmup steps, scaled like --base-lr.", "N")),
    "dataset_size": (Integer, _option(_NUMBERS, "Samples in the training set: gives steps per epoch.", "N")),
    "forward": (
        Switch,
        _option(_NUMBERS, "Fill in the options that the script declares.", None, ("--forward/--no-forward",)),
    ),
    "data": (Many, _option(_INPUTS, "A file or directory that must be readable (repeatable).", "PATH")),
    "output": (Many, _option(_INPUTS, "A file or directory that must be writable (repeatable).", "PATH")),
    "workers": (Integer, _option(_INPUTS, "DataLoader workers per process, for the checks.", "N")),
    "node_rank": (Integer, _option(_NETWORK, "This node's rank, from 0.", "K")),
    "master_addr": (Text, _option(_NETWORK, "Address of the node with rank 0.", "ADDR")),
    "master_port": (Integer, _option(_NETWORK, "Port of the rendezvous [a free one on one node].", "PORT")),
    "socket_ifname": (Text, _option(_NETWORK, "Network interface for NCCL and gloo.", "NAME")),
    "nccl_debug": (Text, _option(_NETWORK, "NCCL_DEBUG: WARN, INFO, TRACE.", "LEVEL")),
    "nccl_ib": (
        Switch,
        _option(_NETWORK, "Use InfiniBand or not [if a port is up].", None, ("--nccl-ib/--no-nccl-ib",)),
    ),
    "env": (Many, _option(_ENVIRONMENT, "Set a variable for the ranks (repeatable).", "K=V")),
    "env_file": (Many, _option(_ENVIRONMENT, "Set the variables of a file of K=V lines.", "FILE")),
    "max_restarts": (Integer, _option(_ENVIRONMENT, "Restarts of the ranks after a failure.", "N")),
    "torchrun_arg": (Many, _option(_ENVIRONMENT, "Any other option of the installed torchrun.", "ARG")),
    "ignore": (Many, _option(_CHECKING, "Do not let this finding stop the launch (repeatable).", "CODE")),
    "checks": (Switch, _option(_CHECKING, "Check before launching.", None, ("--checks/--no-checks",))),
    "run_id": (Text, _option(_CHECKING, "Name of the run [time and a random part].", "ID")),
    "run_dir": (Text, _option(_CHECKING, "Where records go [.ddplaunch].", "DIR")),
}


def launch_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a Typer command every launch option; it receives them as one ``options: Options``."""
    own = [item for name, item in inspect.signature(command, eval_str=True).parameters.items() if name != "options"]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, described])
        for name, (kind, described) in _DECLARED.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        options = options_from_flags({name: values.pop(name) for name in _DECLARED})
        command(options=options, **values)

    keyword = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own]
    wrapper.__signature__ = inspect.Signature([*shared, *keyword])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {item.name: item.annotation for item in (*shared, *keyword)}
    return wrapper


def options_from_flags(values: dict[str, Any]) -> Options:
    """Return what was said on the command line, each with its flag as source; None is "not said"."""
    said: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or value == []:
            continue
        source = Source("flag", "NPROC" if name == "nproc" else _spelling(name, value))
        said[name] = (
            tuple(Resolved(item, source) for item in value) if isinstance(value, list) else Resolved(value, source)
        )
    return Options(**said)


def _spelling(name: str, value: object) -> str:
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
