"""What a training script learns about its launch (``ddplaunch.current()``) and reports to it (steps and metrics)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import METRICS, PLAN


@dataclass(frozen=True)
class Current:
    """The plan of this process's launch. Outside of a launch the sizes are 1 and the rest is None.

    ``batch_size`` is per rank, ``global_batch_size`` per optimizer step over all ranks, ``lr`` already scaled.
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

    def asdict(self) -> dict[str, Any]:
        """Return the values that are set, ready for ``wandb.config.update(...)``."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def step(samples: int | None = None) -> None:
    """Mark the end of a training step with ``samples`` on this rank, for training without a torch optimizer.

    With `ddplaunch run --phases` a step is the time between two calls; otherwise calls do nothing. After the first
    call, optimizer steps no longer end a training step.
    """
    measuring = sys.modules.get("ddplaunch_phases")  # agent/rank_site/ddplaunch_phases.py, if it is in this process
    if measuring is not None:
        measuring.step(samples)


def log_metrics(metrics: Mapping[str, float], step: int | None = None) -> None:
    """Record metrics of this training, such as ``{"val_loss": 0.31}``, and the optimizer step ``step`` if given.

    Only rank 0 records, into the run's record; the last value of each name is in ``Outcome.metrics`` of
    ``ddplaunch.launch``. On other ranks and outside of a launch nothing is recorded. Values may be anything that
    ``float()`` takes, one-element tensors too. Raises TypeError or ValueError for a value that is not a number; a full
    disk raises nothing.
    """
    path = os.environ.get(METRICS)
    numbers = {str(name): float(value) for name, value in metrics.items()}
    if not path or os.environ.get("RANK", "0") != "0":
        return
    finite_numbers = {name: number for name, number in numbers.items() if math.isfinite(number)}
    line = {"metrics": finite_numbers, **({} if step is None else {"step": int(step)}), "at_s": round(time.time(), 3)}
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)


def current(environment: Mapping[str, str] | None = None) -> Current:
    """Return the plan of this process's launch, from ``DDPLAUNCH_PLAN``.

    Raises ValueError if the variable is set but is not the JSON of a plan.
    """
    text = (os.environ if environment is None else environment).get(PLAN)
    if not text:
        return Current()
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"{PLAN} is not a JSON object")
    field_names = Current.__dataclass_fields__
    return Current(**{key: value for key, value in values.items() if key in field_names})
