"""Runs inside the ranks of a proof: records what they train on, or gives one process the samples of all ranks."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

#: The environment variable that asks for a recording: the number of steps, of GPUs for which the CPU stands in,
#: and the folder of the trial, with colons between them.
VARIABLE = "DDPLAUNCH_PROVE"
#: The name of the trial whose batches are replayed in the others.
RANKS = "ranks"


def begin() -> None:
    """Start recording this process, as ``VARIABLE`` asks for it."""
    from ddplaunch.prove.in_rank.recorder import Recorder  # it imports torch
    from ddplaunch.prove.in_rank.stand_in import stand_in

    steps, gpus, folder = os.environ.pop(VARIABLE).split(":", 2)
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    recorder = Recorder(Path(folder), rank, world, int(steps))
    recorder.install()
    if int(gpus):
        stand_in(int(gpus), partial(recorder.write, "cuda"), recorder.is_own)
