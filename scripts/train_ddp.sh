#!/usr/bin/env bash
# Train the underwater-ir student with DDP.
#
#   bash train_ddp.sh [GPUS [BATCH [EPOCHS [IMG_SIZE [OPTION...]]]]]
#   bash train_ddp.sh 4 4 20 256       4 GPUs, 4 images per GPU, 20 epochs, 256x256
#   bash train_ddp.sh 2 16             32 images per step in all
#
# Paths and workers come from the environment:
#   TRAIN_ROOT VAL_REF_ROOT VAL_NONREF_ROOT PSEUDO_ROOT SAVE_PATH NUM_WORKERS
# More options (--lr 1e-4 ...) go to train_student as they are. ddplaunch checks GPUs, paths and numbers.
set -eu

gpus=${1:-4}
batch=${2:-4}
epochs=${3:-20}
img_size=${4:-256}
shift $(($# < 4 ? $# : 4))

train_root=${TRAIN_ROOT:-Dataset/train}
val_ref_root=${VAL_REF_ROOT:-Dataset/testset(ref)}
val_nonref_root=${VAL_NONREF_ROOT:-Dataset/testset(non-ref)}
pseudo_root=${PSEUDO_ROOT:-pseudo-labels/daclip}
save_path=${SAVE_PATH:-experiments/daclip_student_ddp.pt}

exec ddplaunch run "$gpus" --batch-size "$batch" \
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
  --ddp "$@"
