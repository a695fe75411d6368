"""``ddplaunch.current()``: the plan of the launch that a training script runs in, from its environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import PLAN


@dataclass(frozen=True)
class Current:
    """The plan of this process's launch. Outside of a launch the sizes are 1 and the rest is None.

    ``batch_size`` is per rank, ``global_batch_size`` per optimizer step over all ranks, ``lr`` already scaled.
    ``lrs`` has each of several learning rates by its name.
    """

    run_id: str | None = None
    batch_size: int | None = None
    accum: int | None = None
    global_batch_size: int | None = None
    world_size: int = 1
    nproc: int = 1
    nnodes: int = 1
    lr: float | None = None
    lr_factor: float | None = None
    warmup_steps: int | None = None
    steps_per_epoch: int | None = None
    dataset_size: int | None = None
    lrs: dict[str, float] | None = None

    def asdict(self) -> dict[str, Any]:
        """Return the values that are set, ready for ``wandb.config.update(...)``."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def step(samples: int | None = None) -> None:
    """Mark the end of a training step, of ``samples`` on this rank, where no optimizer of torch ends one.

    With `ddplaunch run --phases` the time between two calls is a step; elsewhere it does nothing. From the first call
    on the optimizers' own steps end none.
    """
    measuring = sys.modules.get("ddplaunch_phases")  # agent/rank_site/ddplaunch_phases.py, if it is in this process
    if measuring is not None:
        measuring.step(samples)


def current(environment: Mapping[str, str] | None = None) -> Current:
    """Return the launch of this process, from ``DDPLAUNCH_PLAN``.

    Raises ValueError if the variable is set but is not the JSON of a plan.
    """
    text = (os.environ if environment is None else environment).get(PLAN)
    if not text:
        return Current()
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"{PLAN} is not a JSON object")
    known = Current.__dataclass_fields__
    return Current(**{key: value for key, value in values.items() if key in known})
