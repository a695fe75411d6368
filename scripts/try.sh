#!/bin/sh
# Set up .venv if needed and run a real DDP training on 2 processes: on GPUs where there are two, else on the CPU.
#
#   scripts/try.sh [OPTION...]       options of ddplaunch/examples/train_char.py, such as --epochs 4
set -eu
cd "$(dirname "$0")/.."
. scripts/venv.sh
ready_venv .
PATH=$PWD/.venv/bin:$PATH

device=cpu
if command -v nvidia-smi >/dev/null 2>&1 &&
  [ "$(python -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)" -ge 2 ]; then
  device=cuda
fi
# torch works without NumPy and says so once per process.
export PATH PYTHONWARNINGS="${PYTHONWARNINGS:+$PYTHONWARNINGS,}ignore:Failed to initialize NumPy"

exec ddplaunch run 2 --device "$device" --batch-size 32 --base-lr 2e-3 -- ddplaunch/examples/train_char.py "$@"
