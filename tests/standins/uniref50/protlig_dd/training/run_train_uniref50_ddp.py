"""Stand-in for SEDD on UniRef50: numbers from the YAML file, paths from the arguments of its guide, a tiny model."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import yaml

import evidence


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--work_dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--datafile", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    training = yaml.safe_load(arguments.config.read_text())["training"]
    if not arguments.datafile.is_file():
        raise SystemExit(f"no such file: {arguments.datafile}")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    evidence.train(
        arguments, training["batch_size"], arguments.epochs, save_path=arguments.work_dir / "checkpoints" / "sedd.pt"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
