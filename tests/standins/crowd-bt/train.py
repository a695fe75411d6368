"""Stand-in for the Crowd-BT quality scorer: the arguments of its guide, a tiny model."""

import argparse

import torch
import torch.distributed as dist

import evidence


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--distributed", action="store_true")
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
    parser.add_argument("--data-source", choices=("local", "s3"), default="local")
    parser.add_argument("--backbone", default="efficientnet_b4")
    parser.add_argument("--input-size", type=int, default=448)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--weight-decay", type=float, default=1e-5)
    parser.add_argument("--num-workers", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.distributed:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if dist.get_rank() == 0:
            print(f"Distributed training initialized with {dist.get_world_size()} processes", flush=True)
    evidence.train(arguments, arguments.batch_size, arguments.epochs, arguments.lr)
    if arguments.distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
