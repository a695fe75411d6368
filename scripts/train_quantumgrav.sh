#!/usr/bin/env bash
# Train a QuantumGrav model with TrainerDDP on chosen GPUs, as its YAML file says.
#
#   ./train_quantumgrav.sh [--gpus 3,4,5] [CONFIG [SCRIPT [ARG...]]]
#   ./train_quantumgrav.sh configs/train_ddp.yaml --gpus=3,4,5
#   CUDA_VISIBLE_DEVICES=3,4,5 ./train_quantumgrav.sh configs/train_ddp.yaml train_ddp_torchrun.py
#
# CONFIG (default: configs/train_ddp.yaml) decides how many processes run (parallel.world_size), where they meet
# (parallel.master_port) and the batch per GPU that the plan shows (training.batch_size). SCRIPT (default:
# train_ddp_torchrun.py) reads its configuration by itself, as in the guide; only ARG... is passed to it. A script that
# does not name CONFIG is told of before the start.
# The reader needs PyYAML, which QuantumGrav needs too.
# DDPLAUNCH_OPTIONS holds options of ddplaunch: DDPLAUNCH_OPTIONS='--hang-timeout 10m' ./train_quantumgrav.sh
set -eu
. "$(dirname "$0")/with_ddplaunch.sh"
called_as="--batch-size training.batch_size
--master-port parallel.master_port"

gpus=()
words=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpus | --gpus=*) split "$@" && gpus=(--gpus "$value") ;;
    -*) break ;;
    *) words+=("$1") && width=1 ;;
  esac
  shift "$width"
  if [ ${#words[@]} -eq 2 ]; then break; fi # what follows is the script's
done
config=${words[0]:-configs/train_ddp.yaml}
script=${words[1]:-train_ddp_torchrun.py}

reader=
for python in "${VIRTUAL_ENV:-.venv}/bin/python" .venv/bin/python python3 python; do
  if "$python" -c 'import yaml' >/dev/null 2>&1; then
    reader=$python
    break
  fi
done
[ -n "$reader" ] || fail "no Python here has PyYAML, which reads $config" "\`python3 -m pip install PyYAML\`"
# a script that names another file trains as that one says
if [ -r "$script" ] && [[ "$(<"$script") $*" != *"${config##*/}"* ]]; then
  echo "ddplaunch: $script does not name ${config##*/}: the plan follows $config, the training what $script reads" >&2
fi
found=$("$reader" "$(dirname "$0")/parallel_section.py" "$config")
read -r world_size options <<<"$found"

# $options are plain words that parallel_section.py has made; they are meant to be split.
# shellcheck disable=SC2086
become_ddplaunch "$world_size" ${gpus[@]+"${gpus[@]}"} $options -- "$script" "$@"
