"""Stand-in for the retriever distillation: the arguments of its guide, two phases, a tiny model."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

import evidence


def boolean(text):
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not True or False")
    return text.lower() == "true"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--teacher_model", default="infly/inf-retriever-v1-pro")
    parser.add_argument("--student_model", default="sentence-transformers/all-mpnet-base-v2")
    parser.add_argument("--use_projection", type=boolean, default=True)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--phase1_epochs", type=int, default=1)
    parser.add_argument("--phase2_epochs", type=int, default=3)
    parser.add_argument("--phase1_lr", type=float, default=2e-5)
    parser.add_argument("--phase2_lr", type=float, default=5e-6)
    parser.add_argument("--output_dir", default="./checkpoints")
    parser.add_argument("--max_samples_phase1", type=int, default=100000)
    parser.add_argument("--max_samples_phase2", type=int, default=500000)
    parser.add_argument("--skip_phase1", action="store_true")
    parser.add_argument("--skip_phase2", action="store_true")
    parser.add_argument("--save_to_artifacts", action="store_true")
    parser.add_argument("--artifacts_dir", default="./artifacts")
    return parser.parse_args()


def main():
    arguments = parse()
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    epochs = 0 if arguments.skip_phase1 else arguments.phase1_epochs
    epochs += 0 if arguments.skip_phase2 else arguments.phase2_epochs
    folder = arguments.artifacts_dir if arguments.save_to_artifacts else arguments.output_dir
    evidence.train(arguments, arguments.batch_size, epochs, arguments.phase2_lr, Path(folder, "model.pt"))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
