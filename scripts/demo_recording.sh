#!/bin/sh
# The whole way on a real recording (three episodes of a Unitree G1): look at it, train a small ACT, evaluate it.
# Every command is shown as you would type it. Change the variables from outside: `STEPS=300 make demo-recording`.
set -eu
cd "$(dirname "$0")/.."

DATA=${DATA:-tests/fixtures/real/g1_v21}
OUTPUT=${OUTPUT:-outputs/demo_recording}
STEPS=${STEPS:-150}
BATCH_SIZE=${BATCH_SIZE:-4}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
if [ ! -t 1 ] || [ -n "${NO_COLOR:-}" ]; then say() { printf '\n%s\n' "$*"; }; fi
# Shows a command, one flag a line, then runs it.
run() {
  printf '$'
  for word in "$@"; do
    case $word in --*) printf ' \\\n    %s' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
  "$@"
}

# An earlier demo is moved aside, never deleted.
if [ -e "$OUTPUT" ]; then
  n=1
  while [ -e "$OUTPUT.$n" ]; do n=$((n + 1)); done
  mv "$OUTPUT" "$OUTPUT.$n"
  echo "the earlier demo is now in $OUTPUT.$n"
fi

say "1. What is in the recording?"
run mimetic dataset info --root="$DATA"

say "2. Train a small ACT policy on two episodes ($STEPS steps); the last one named is held out"
run mimetic train --policy.type=act \
  --dataset.repo_id=demo/g1 --dataset.root="$DATA" --dataset.episodes=[0,2,1] --dataset.eval_split=0.3 \
  --policy.pretrained_backbone_weights=null --policy.dim_model=128 --policy.n_heads=4 --policy.dim_feedforward=512 \
  --policy.n_encoder_layers=2 --policy.use_vae=false --policy.pre_norm=true --policy.dropout=0 \
  --policy.chunk_size=60 --policy.n_action_steps=10 \
  --policy.optimizer_lr=1e-3 --policy.optimizer_lr_backbone=1e-4 --policy.push_to_hub=false \
  --accelerator.mixed_precision=bf16 --batch_size="$BATCH_SIZE" --num_workers=1 \
  --steps="$STEPS" --log_freq=10 --eval_steps=50 --max_eval_samples=16 --save_freq=50 \
  --output_dir="$OUTPUT/train"

say "3. Compare its predictions with what was recorded in the episode that it has not seen"
run mimetic eval --policy.path="$OUTPUT/train" \
  --dataset.repo_id=demo/g1 --dataset.root="$DATA" --output_dir="$OUTPUT/eval"

say "Done. The report: $OUTPUT/eval/report.html"
