"""Stand-in for QuantumGrav's TrainerDDP: configured by YAML, saves on rank 0."""

import argparse
from pathlib import Path

import torch.distributed as dist

import evidence


def initialize_ddp(rank, worldsize, master_addr=None, master_port=None, backend="nccl"):
    dist.init_process_group(backend, rank=rank, world_size=worldsize)


def cleanup_ddp():
    if dist.is_initialized():
        dist.destroy_process_group()


class TrainerDDP:
    def __init__(self, rank, config):
        self.rank, self.config = rank, config

    def run_training(self):
        training = self.config["training"]
        arguments = argparse.Namespace(world_size=self.config["parallel"]["world_size"], seed=training["seed"])
        path = Path(training["path"], "model.pt")
        evidence.train(arguments, training["batch_size"], training["num_epochs"], save_path=path)
