"""Stand-in for the underwater-ir student: the arguments of its guide, a tiny model."""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

import evidence


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-root", type=Path, required=True)
    parser.add_argument("--val-ref-root", type=Path)
    parser.add_argument("--val-nonref-root", type=Path)
    parser.add_argument("--pseudo-root", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--num-workers", type=int, default=4)
    parser.add_argument("--img-size", type=int, default=256)
    parser.add_argument("--save-path", default="experiments/daclip_student.pt")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--local-rank", type=int, default=-1)
    parser.add_argument("--world-size", type=int, default=-1)
    return parser.parse_args()


def main():
    arguments = parse()
    for folder in (arguments.train_root, arguments.val_ref_root, arguments.val_nonref_root, arguments.pseudo_root):
        if folder is not None and not folder.is_dir():
            raise SystemExit(f"no such folder: {folder}")
    if arguments.ddp:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    evidence.train(arguments, arguments.batch_size, arguments.epochs, save_path=arguments.save_path)
    if arguments.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
