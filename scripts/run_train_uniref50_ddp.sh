#!/usr/bin/env bash
# Train SEDD on UniRef50 with DDP.
#
#   ./run_train_uniref50_ddp.sh [--config FILE] [--work_dir DIR] [--datafile FILE] [OPTION...]
#   ./run_train_uniref50_ddp.sh --config configs/my_ddp_config.yaml
#   ./run_train_uniref50_ddp.sh --nnodes 2 --node_rank 0 --master_addr 192.168.1.100 --master_port 29500
#
# NPROC in the environment is the number of processes on this node (default: one for every visible GPU).
# --nnodes, --node_rank, --master_addr and --master_port go to the launcher, every other OPTION to the module.
# DDPLAUNCH_OPTIONS holds options of ddplaunch: DDPLAUNCH_OPTIONS='--hang-timeout 10m' ./run_train_uniref50_ddp.sh
set -eu
. "$(dirname "$0")/with_ddplaunch.sh"
called_as="--data --config or --datafile
--node-rank --node_rank
--master-addr --master_addr
--master-port --master_port"
usage="\`NPROC=4 $self --nnodes 2 --node_rank 0 --master_addr 192.168.1.100 --master_port 29500\`"

config=configs/config_uniref50_ddp.yaml
work_dir=.
datafile=data/processed_uniref50.pt
launch=()
options=()
while [ $# -gt 0 ]; do
  case ${1%%=*} in
    --config) split "$@" && config=$value ;;
    --work_dir) split "$@" && work_dir=$value ;;
    --datafile) split "$@" && datafile=$value ;;
    # ddplaunch spells --node_rank with a dash.
    --nnodes | --master_port) split "$@" && whole "$name" "$value" && launch+=("${name//_/-}" "$value") ;;
    --node_rank) split "$@" && whole "$name" "$value" 0 && launch+=(--node-rank "$value") ;;
    --master_addr) split "$@" && launch+=(--master-addr "$value") ;;
    *) options+=("$1") && width=1 ;;
  esac
  shift "$width"
done
processes NPROC "${NPROC:-auto}"

become_ddplaunch "${NPROC:-auto}" ${launch[@]+"${launch[@]}"} --data "$config" --data "$datafile" \
  -- -m protlig_dd.training.run_train_uniref50_ddp \
  --work_dir "$work_dir" --config "$config" --datafile "$datafile" ${options[@]+"${options[@]}"}
