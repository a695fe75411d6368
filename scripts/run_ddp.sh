#!/usr/bin/env bash
# Distil the retriever with DDP.
#
#   ./run_ddp.sh [NPROC] [USE_PROJECTION] [OPTION...]
#   ./run_ddp.sh 8 True                       with the projection layer
#   ./run_ddp.sh 8 False                      MRL mode
#   ./run_ddp.sh 4 --batch_size=128           options go to train_ddp.py
#
# NPROC is the number of processes (default: one for every visible GPU), USE_PROJECTION is True or False.
# DDPLAUNCH_OPTIONS holds options of ddplaunch: DDPLAUNCH_OPTIONS='--hang-timeout 10m' ./run_ddp.sh 8
set -eu
. "$(dirname "$0")/with_ddplaunch.sh"
usage="\`$self 8 True\`: 8 processes with the projection layer"

take 2 "$@"
case ${positions[0]-} in
  True | False | true | false) positions=('' "${positions[@]}") ;;
esac
[ ${#positions[@]} -le 2 ] || fail "\`${positions[2]}\` is behind USE_PROJECTION" "$usage"
nproc=${positions[0]:-auto}
use_projection=${positions[1]:-True}
processes NPROC "$nproc"
case $use_projection in
  True | False | true | false) ;;
  *) fail "USE_PROJECTION is \`$use_projection\`, neither True nor False" "$usage" ;;
esac

become_ddplaunch "$nproc" -- train_ddp.py --use_projection="$use_projection" ${rest[@]+"${rest[@]}"}
