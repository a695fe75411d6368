"""Values that no launch can have, whoever said them, flag or profile; refuses to judge values against each other."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ddplaunch.errors import UsageError, usage
from ddplaunch.launch.options import Options
from ddplaunch.values import Resolved

#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
_NCCL_LEVELS = ("VERSION", "WARN", "INFO", "TRACE")
_NOT_NEGATIVE = {"workers": "4", "max_restarts": "3", "relaunch": "3", "node_rank": "0", "grace": "60"}
_NOT_EMPTY = {
    "socket_ifname": "eth0",
    "run_dir": "runs",
    "data": "/data/train",
    "output": "out",
    "env_file": "train.env",
    "master_addr": "10.0.0.5",
    "torchrun_arg": "--monitor-interval=1",
}


def refuse_impossible(options: Options) -> None:
    """Raise UsageError for the first value that is out of its option's range, empty or holds a null byte."""
    for field in fields(options):
        value = getattr(options, field.name)
        for item in value if isinstance(value, tuple) else () if value is None else (value,):
            _refuse(field.name, item)


def _refuse(name: str, item: Resolved[Any]) -> None:
    flag = "NPROC" if name == "nproc" else "--" + name.replace("_", "-")
    value = item.value
    if isinstance(value, str) and "\0" in value:
        raise _impossible(
            item, f"`{flag}` holds a null byte", "no argument, path or variable can", f"write `{flag}` anew"
        )
    if name in _NOT_EMPTY and not value.strip():
        raise _impossible(item, f"`{flag}` is empty", "an empty text names nothing", f"`{flag} {_NOT_EMPTY[name]}`")
    if name in _NOT_NEGATIVE and value < 0:
        fix = f"`{flag} {_NOT_NEGATIVE[name]}`, or leave it out"
        raise _impossible(item, f"`{flag}` is {value}, less than 0", "it counts from 0", fix)
    if name == "nccl_debug" and value.upper() not in _NCCL_LEVELS:
        what = f"`--nccl-debug {value}` is not a level of NCCL"
        raise _impossible(item, what, f"it is one of {', '.join(_NCCL_LEVELS)}", "`--nccl-debug INFO`")


def _impossible(item: Resolved[Any], what: str, why: str, fix: str) -> UsageError:
    return usage(what, why=why, fix=fix, where=str(item.source))
