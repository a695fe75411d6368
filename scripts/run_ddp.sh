#!/usr/bin/env bash
# Distil the retriever with DDP.
#
#   ./run_ddp.sh [NPROC [USE_PROJECTION [OPTION...]]]
#   ./run_ddp.sh 8 True                       with the projection layer
#   ./run_ddp.sh 8 False                      MRL mode
#   ./run_ddp.sh 4 True --batch_size=128      further options go to train_ddp.py
#
# NPROC is the number of processes (default: one for every visible GPU), USE_PROJECTION is True or False.
set -eu

nproc=${1:-auto}
use_projection=${2:-True}
shift $(($# < 2 ? $# : 2))

exec ddplaunch run "$nproc" -- train_ddp.py --use_projection="$use_projection" "$@"
