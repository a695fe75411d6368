"""The settings that a launch passes to torchrun's plug-in and the guard, as JSON in ``DDPLAUNCH_AGENT``.

``Settings`` is a NamedTuple because importing `dataclasses` would slow the guard's start by a quarter (46 instead of
37 ms).
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, NamedTuple

#: The codes of problems observed in running ranks, mostly at their first optimizer steps (``watch/observed.py``).
OBSERVED = (
    *("numbers-differ", "no-process-group", "gradients-not-averaged", "data-not-divided"),
    *("gpu-of-all-ranks", "gpus-not-used", "replicas-differ", "sampler-epoch-not-set"),
)
#: Fields that are written even with their default values.
_ALWAYS = frozenset({"run_id", "directory", "node", "show", "verbose", "grace_s", "max_restarts"})
_LARGEST = 1 << 31


class Settings(NamedTuple):
    """The decisions of the launch. The fields are in the order of the JSON text."""

    run_id: str = ""
    #: The run's directory (``…/runs/RUN_ID``), empty if nothing is recorded.
    directory: str = ""
    #: How ranks start, and the modules that are imported before they are forked.
    start: Literal["cold", "warm"] = "cold"
    preload: tuple[str, ...] = ()
    #: The number in ``node-K``.
    node: int = 0
    #: "all", or the ranks that are shown, comma-separated.
    show: str = "0"
    #: Show torchrun's own messages too.
    verbose: bool = False
    #: Print nothing about a run that succeeds.
    quiet: bool = False
    #: How long ranks may take to end after SIGTERM; the default is torchrun's.
    grace_s: float = 30.0
    max_restarts: int = 0
    #: Restart after failures that a restart cannot help, too.
    restart_always: bool = False
    #: How long the run may take, how long it may stand still, and what happens when it stands still longer.
    timeout_s: float | None = None
    hang_timeout_s: float | None = None
    on_hang: Literal["report", "stop"] | None = None
    #: Let ranks print their stacks on a signal.
    stacks: bool = True
    #: Let ranks record the numbers with which they train.
    observe: bool = True
    #: Let ranks record and judge the gradients of their first steps, too.
    prove: bool = False
    #: Codes of ``OBSERVED`` that are not reported.
    ignore: tuple[str, ...] = ()
    #: Let ranks record how long the phases of their steps take.
    phases: bool = False
    #: The memory limit of a rank; 0 means no limit.
    memory_bytes: int = 0
    #: The CPUs of each local rank ("0-15,64-79"); empty if ranks are not bound.
    cpus: tuple[str, ...] = ()
    #: How much of one rank's output is kept; 0 means all of it.
    log_max_bytes: int = 4 << 30
    #: Where checkpoints go; these disks are watched for running full.
    outputs: tuple[str, ...] = ()
    #: Address and port of torchrun's store, through which nodes learn that another one has ended.
    others: str = ""
    #: Leave the final summary to the launcher, which reports on all hosts.
    silent: bool = False

    @property
    def node_directory(self) -> str | None:
        """This node's folder in the run's directory, None if nothing is recorded."""
        return f"{self.directory}/node-{self.node}" if self.directory else None

    def shows(self, rank: int) -> bool:
        """Return whether the console shows ``rank``."""
        return self.show == "all" or str(rank) in self._chosen()

    def shows_alone(self, rank: int) -> bool:
        """Return whether the console shows only ``rank``, as if it ran without the others."""
        return self._chosen() == {str(rank)}

    def _chosen(self) -> set[str]:
        return {part.strip() for part in self.show.split(",")}

    def to_json(self) -> str:
        """Return the settings as JSON, without defaults except those of ``_ALWAYS``."""
        default = Settings._field_defaults
        changed = {name: value for name, value in self._asdict().items() if name in _ALWAYS or value != default[name]}
        return json.dumps(changed, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that ``to_json`` wrote, in this version or another. Raises ValueError for other text."""
        written = json.loads(text)
        if not isinstance(written, dict):
            raise ValueError("the settings are no JSON object")
        fields: dict[str, Any] = {name: value for name, value in written.items() if name in cls._fields}
        for name, value in fields.items():
            if not _fits(name, value):
                raise ValueError(f"{name} is {str(value)[:80]!r}")
        fields.update({name: tuple(fields[name]) for name in _LISTS if name in fields})
        return cls(**fields)


_LISTS = ("preload", "ignore", "cpus", "outputs")
_CHOICES = {"start": ("cold", "warm"), "on_hang": ("report", "stop")}


def _fits(name: str, value: object) -> bool:
    """Return whether a launch can have written ``value`` for the field ``name``."""
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name in _LISTS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if name.endswith("_bytes"):
        return type(value) is int and 0 <= value < 1 << 63
    if name.endswith("_s"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    kind = type(Settings._field_defaults[name])  # str, bool or int
    return type(value) is kind and (kind is not int or 0 <= value < _LARGEST)  # type: ignore[operator]
