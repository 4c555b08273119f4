#!/usr/bin/env bash
# Record every benchmark suite on an NVIDIA GPU that nobody else uses: JSON documents for benchmarks/results/.
# Needs what tools/gpu_check.sh needs. usage: benchmarks/gpu_bench.sh [--quick] [OUT_DIR [SUITE...]]
# --quick: fewer cases and repetitions.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
quick=()
if [[ ${1:-} == --quick ]]; then
  quick=(--quick)
  shift
fi
out=${1:-build/gpu}
shift $(($# > 0))
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH=$("${PYTHON:-python3}" tools/tree_path.py)${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 COLUMNS=${COLUMNS:-160}
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | awk '{print tolower($NF)}')
suites=("$@")
((${#suites[@]})) || suites=(verify slots step logprobs sampling ngram)
pids=()
for suite in "${suites[@]}"; do # together, taking turns on the GPU: making inputs and checking take the longest
  "$python" -m specdec_hal.cli bench --suite "$suite" --backend cuda "${quick[@]}" --lock "$out/lock" \
    --out "$out/$name-$suite.json" > "$out/$name-$suite.txt" 2>&1 &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
rm -f "$out/lock"
for suite in "${suites[@]}"; do cat "$out/$name-$suite.txt"; done
exit $status
