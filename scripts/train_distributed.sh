#!/usr/bin/env bash
# Train the Crowd-BT quality scorer with DDP.
#
#   ./train_distributed.sh [N] [OPTION...]
#   ./train_distributed.sh 4 --epochs 20 --batch-size 16
#   CUDA_VISIBLE_DEVICES=0,1,3 ./train_distributed.sh 3 --batch-size 16
#
# N is the number of processes (default: one for every visible GPU). Every OPTION goes to train.py, which
# takes --batch-size per GPU and --lr as it is: scale it yourself, or let ddplaunch do it:
#   DDPLAUNCH_OPTIONS='--base-lr 1e-4' ./train_distributed.sh 4 --batch-size 16
set -eu
. "$(dirname "$0")/with_ddplaunch.sh"
usage="\`$self 4 --batch-size 16\`: 4 processes"

take 1 "$@"
nproc=${positions[0]:-auto}
processes N "$nproc"

become_ddplaunch "$nproc" -- train.py --distributed --world-size '{world_size}' ${rest[@]+"${rest[@]}"}
