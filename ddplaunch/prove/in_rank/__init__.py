"""Runs inside the ranks of a proof: records what they train on, or gives one process the samples of all ranks."""

from __future__ import annotations

import os
from pathlib import Path

#: The environment variable that asks for a recording: the number of steps, a colon, and the folder of the trial.
VARIABLE = "DDPLAUNCH_PROVE"
#: The name of the trial whose batches are replayed in the others.
RANKS = "ranks"


def begin() -> None:
    """Start recording this process if ``VARIABLE`` asks for it."""
    if VARIABLE in os.environ and "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun itself lacks the latter
        from ddplaunch.prove.in_rank.recorder import Recorder  # it imports torch

        steps, _, folder = os.environ.pop(VARIABLE).partition(":")
        rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        Recorder(Path(folder), rank, world, int(steps)).install()
