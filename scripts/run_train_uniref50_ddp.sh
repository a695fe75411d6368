#!/usr/bin/env bash
# Train SEDD on UniRef50 with DDP.
#
#   ./run_train_uniref50_ddp.sh [--config FILE] [--work_dir DIR] [--datafile FILE] [OPTION...]
#   ./run_train_uniref50_ddp.sh --config configs/my_ddp_config.yaml
#   ./run_train_uniref50_ddp.sh --nnodes 2 --node_rank 0 --master_addr 192.168.1.100 --master_port 29500
#
# NPROC in the environment is the number of processes on this node (default: one for every visible GPU).
# --nnodes, --node_rank, --master_addr and --master_port go to the launcher, every other OPTION to the module.
set -eu

config=configs/config_uniref50_ddp.yaml
work_dir=.
datafile=data/processed_uniref50.pt
launch=("${NPROC:-auto}")
options=()
while [ $# -gt 0 ]; do
  name=${1%%=*}
  if [ "$name" = "$1" ]; then value=${2-}; width=2; else value=${1#*=}; width=1; fi
  case $name in
    --config) config=$value ;;
    --work_dir) work_dir=$value ;;
    --datafile) datafile=$value ;;
    # ddplaunch spells --node_rank with a dash.
    --nnodes | --node_rank | --master_addr | --master_port) launch+=("${name//_/-}" "$value") ;;
    *) options+=("$1"); width=1 ;;
  esac
  shift $(($# < width ? $# : width))
done

exec ddplaunch run "${launch[@]}" --data "$config" --data "$datafile" \
  -- -m protlig_dd.training.run_train_uniref50_ddp \
  --work_dir "$work_dir" --config "$config" --datafile "$datafile" ${options[@]+"${options[@]}"}
