"""The file of `accelerate config`: what it says, by option of `accelerate launch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddplaunch.planning.convert.launcher_options import ONE_PROCESS

_NO_OPTIONS = ("compute_environment", "distributed_type", "rdzv_backend", "downcast_bf16", "same_network")
_SWITCHES = {"FSDP": "--use-fsdp", "DEEPSPEED": "--use-deepspeed"}


def accelerate_options(data: bytes) -> Mapping[str, str] | None:
    """Return what the YAML of `accelerate config` says, by option; None for another file.

    https://huggingface.co/docs/accelerate/package_reference/cli#accelerate-config
    """
    import yaml  # takes 15 ms

    try:
        document = next(iter(yaml.safe_load_all(data.decode("utf-8", "replace"))), None)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    if not isinstance(document, dict) or "distributed_type" not in document:
        return None
    kind = "NO" if document["distributed_type"] is False else str(document["distributed_type"]).upper()
    options = {"distributed_type": kind}
    if kind in _SWITCHES:
        options[_SWITCHES[kind]] = ""
    for name, value in document.items():
        if isinstance(value, dict) and any(value.values()):
            options[_option(name)] = "{}"
        elif name == "use_cpu" and kind not in ONE_PROCESS:
            continue  # it is read where one process starts
        elif name not in _NO_OPTIONS and isinstance(value, (str, int, float)) and value is not False:
            options[_option(name)] = _text(value)
    return options


def _option(name: Any) -> str:
    return "--" + str(name).replace("_", "-")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
