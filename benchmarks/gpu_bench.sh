#!/usr/bin/env bash
# Record the benchmark suites on an NVIDIA GPU that nobody else uses: JSON documents for benchmarks/results/, of the cases
# that the pages show. Needs what tools/gpu_check.sh needs. usage: benchmarks/gpu_bench.sh [OUT_DIR [SUITE...]]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/gpu}
shift $(($# > 0))
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH=$("${PYTHON:-python3}" tools/tree_path.py)${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 COLUMNS=${COLUMNS:-160}
name=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | awk '{print tolower($NF)}')
suites=("$@")
((${#suites[@]})) || suites=(sampling verify ngram logprobs slots step)
pids=()
for suite in "${suites[@]}"; do # together, taking turns on the GPU: making inputs and checking take the longest
  case $suite in
    sampling) only=("256 x 151,936 float32, spread 2" "20 peaks" "no filter" "x 32,000" "48 x") ;;
    verify) only=("B 256, K 5" "rows x" REJECTION) ;;
    ngram) only=(latency length none "L 16,384") ;;
    logprobs) only=("256 x 151,936") ;;
    *) only=() ;;
  esac
  "$python" -m specdec_hal.cli bench --suite "$suite" --backend cuda "${only[@]/#/--only=}" --lock "$out/lock" \
    --out "$out/$name-$suite.json" > "$out/$name-$suite.txt" 2>&1 &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
rm -f "$out/lock"
for suite in "${suites[@]}"; do cat "$out/$name-$suite.txt"; done
exit $status
