"""Stand-in for the guide's torchrun script: takes no arguments, reads configs/train_ddp.yaml beside it."""

import os
import sys
from pathlib import Path

import torch
import yaml

sys.path.insert(0, str(Path(__file__).parent / "src"))

import QuantumGrav as QG  # noqa: E402
from QuantumGrav.train_ddp import TrainerDDP, cleanup_ddp, initialize_ddp  # noqa: E402


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        initialize_ddp(rank=rank, worldsize=world_size, backend="nccl" if torch.cuda.is_available() else "gloo")
        with open(Path(__file__).parent / "configs" / "train_ddp.yaml") as stream:
            config = yaml.load(stream, QG.get_loader())
        if config["parallel"]["world_size"] != world_size:
            raise SystemExit("parallel.world_size is not the number of processes")
        TrainerDDP(rank=rank, config=config).run_training()
    finally:
        cleanup_ddp()


if __name__ == "__main__":
    main()
