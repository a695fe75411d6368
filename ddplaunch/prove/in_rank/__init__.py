"""Runs inside the ranks: records what they train on, or gives one process the samples of all ranks."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

#: The environment variable that asks for a recording: the number of steps, of GPUs for which the CPU stands in,
#: and the folder to write to, with colons between them. In a run, which is left as it is, the second is empty.
VARIABLE = "DDPLAUNCH_PROVE"
#: The name of the trial whose batches are replayed in the others.
RANKS = "ranks"


def begin() -> None:
    """Start recording this process, as ``VARIABLE`` asks for it."""
    from ddplaunch.prove.in_rank.recorder import Recorder  # it imports torch
    from ddplaunch.prove.in_rank.stand_in import stand_in

    steps, gpus, folder = os.environ.pop(VARIABLE).split(":", 2)
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    recorder = Recorder(Path(folder), rank, world, int(steps), watches=not gpus)
    recorder.install()
    if int(gpus or 0):
        stand_in(int(gpus), partial(recorder.write, "cuda"), recorder.is_own)
