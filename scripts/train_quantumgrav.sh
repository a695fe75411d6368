#!/usr/bin/env bash
# Train a QuantumGrav model with TrainerDDP on chosen GPUs, as its YAML file says.
#
#   ./train_quantumgrav.sh [--gpus 3,4,5] [CONFIG [SCRIPT [ARG...]]]
#   CUDA_VISIBLE_DEVICES=3,4,5 ./train_quantumgrav.sh configs/train_ddp.yaml train_ddp_torchrun.py
#
# CONFIG (default: configs/train_ddp.yaml) decides how many processes run (parallel.world_size), where they meet
# (parallel.master_port) and the batch per GPU that the plan shows (training.batch_size). SCRIPT (default:
# train_ddp_torchrun.py) reads its configuration by itself, as in the guide; only ARG... is passed to it.
# The reader needs PyYAML, which QuantumGrav needs too.
set -eu

launch=()
case ${1-} in
  --gpus) launch+=(--gpus "${2-}"); shift $(($# < 2 ? $# : 2)) ;;
  --gpus=*) launch+=("$1"); shift ;;
esac
config=${1:-configs/train_ddp.yaml}
script=${2:-train_ddp_torchrun.py}
shift $(($# < 2 ? $# : 2))

words=$(python "$(dirname "$0")/parallel_section.py" "$config")
read -r world_size options <<<"$words"

# $options are plain words that parallel_section.py has made; they are meant to be split.
# shellcheck disable=SC2086
exec ddplaunch run "$world_size" ${launch[@]+"${launch[@]}"} $options -- "$script" "$@"
