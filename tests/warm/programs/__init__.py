"""Programs that are run by torchrun or `python`, and as forks."""

from pathlib import Path

PROGRAMS = Path(__file__).parent
ROOT = PROGRAMS.parents[2]
