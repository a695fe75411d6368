#!/usr/bin/env bash
# Train the underwater-ir student with DDP.
#
#   bash train_ddp.sh [GPUS [BATCH [EPOCHS [IMG_SIZE]]]] [OPTION...]
#   bash train_ddp.sh 4 4 20 256       4 GPUs, 4 images per GPU, 20 epochs, 256x256
#   bash train_ddp.sh 2 16             32 images per step in all
#   bash train_ddp.sh 2 --batch-size=16 --lr 1e-4
#
# Paths and workers come from the environment:
#   TRAIN_ROOT VAL_REF_ROOT VAL_NONREF_ROOT PSEUDO_ROOT SAVE_PATH NUM_WORKERS
# More options (--lr 1e-4 ...) go to train_student as they are. ddplaunch checks GPUs, paths and numbers;
# DDPLAUNCH_OPTIONS holds options of its own: DDPLAUNCH_OPTIONS='--hang-timeout 10m' bash train_ddp.sh 4
set -eu
. "$(dirname "$0")/with_ddplaunch.sh"
called_as="--batch-size BATCH
--data TRAIN_ROOT, VAL_REF_ROOT, VAL_NONREF_ROOT or PSEUDO_ROOT"
usage="\`$self 4 4 20 256\`: 4 GPUs, 4 images per GPU, 20 epochs, 256x256"

take 4 "$@"
gpus=${positions[0]:-4}
batch=${positions[1]:-4}
epochs=${positions[2]:-20}
img_size=${positions[3]:-256}
options=()
set -- ${rest[@]+"${rest[@]}"}
while [ $# -gt 0 ]; do
  case $1 in
    --batch-size | --batch-size=*) split "$@" && batch=$value ;;
    --epochs | --epochs=*) split "$@" && epochs=$value ;;
    --img-size | --img-size=*) split "$@" && img_size=$value ;;
    --ddp) width=1 ;; # it is passed below
    *) options+=("$1") && width=1 ;;
  esac
  shift "$width"
done
processes GPUS "$gpus"
whole BATCH "$batch"
whole EPOCHS "$epochs"
whole IMG_SIZE "$img_size"
whole NUM_WORKERS "${NUM_WORKERS:-4}" 0

train_root=${TRAIN_ROOT:-Dataset/train}
val_ref_root=${VAL_REF_ROOT:-Dataset/testset(ref)}
val_nonref_root=${VAL_NONREF_ROOT:-Dataset/testset(non-ref)}
pseudo_root=${PSEUDO_ROOT:-pseudo-labels/daclip}
save_path=${SAVE_PATH:-experiments/daclip_student_ddp.pt}

become_ddplaunch "$gpus" --batch-size "$batch" \
  --data "$train_root" --data "$val_ref_root" --data "$val_nonref_root" --data "$pseudo_root" \
  -- -m underwater_ir.student.train_student \
  --train-root "$train_root" \
  --val-ref-root "$val_ref_root" \
  --val-nonref-root "$val_nonref_root" \
  --pseudo-root "$pseudo_root" \
  --epochs "$epochs" \
  --batch-size '{batch_size}' \
  --num-workers "${NUM_WORKERS:-4}" \
  --img-size "$img_size" \
  --save-path "$save_path" \
  --ddp ${options[@]+"${options[@]}"}
