#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one call: the tests marked `gpu`, and compute-sanitizer over every op.
# Needs python3 with this package's dependencies, PyTorch with CUDA, CuPy, pytest-xdist and hypothesis, and libspecdec_cuda.so,
# either installed or in specdec_hal/lib. usage: tools/gpu_check.sh [OUT_DIR]   (writes gpu_check.txt and logs there)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/gpu}
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONPATH=$("${PYTHON:-python3}" tools/tree_path.py)${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2

names=() pids=()
start() { # start NAME COMMAND...: in the background, with a log
  local name=$1
  shift
  echo "command: $*" > "$out/$name.log"
  "$@" >> "$out/$name.log" 2>&1 &
  names+=("$name") pids+=($!)
}
tests() { start "$1" "$python" -m pytest -m gpu -ra -p no:cacheprovider "${@:2}"; }

check() {
  echo "commit: ${COMMIT:-$(git rev-parse --verify -q HEAD 2> /dev/null || echo unknown)}"
  date -u +"date: %FT%TZ"
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  "$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'
  "$python" -m specdec_hal.cli backends

  tests equality tests/cuda/test_equality.py
  tests decoding tests/cuda/test_decoding.py tests/models --ignore=tests/models/test_chat_models.py
  tests drafters tests/cuda/test_trained_drafters.py
  tests decoders -n 8 tests/cuda/test_any_decoder.py # compiles for every architecture
  tests others tests/cuda --ignore-glob='*/test_equality.py' --ignore-glob='*/test_decoding.py' \
    --ignore-glob='*/test_any_decoder.py' --ignore-glob='*/test_trained_drafters.py'
  for tool in memcheck racecheck initcheck; do
    start "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 "$python" tools/sanitize.py
  done

  local failed=0
  for i in "${!pids[@]}"; do
    if wait "${pids[i]}"; then state=passed; else state=FAILED failed=1; fi
    printf '%-10s %s: %s\n' "${names[i]}" "$state" "$(tail -n 1 "$out/${names[i]}.log")"
  done
  for name in "${names[@]}"; do
    grep -E '^(FAILED|ERROR|SKIPPED)|ERROR SUMMARY|^=+ +(Invalid|Uninitialized|Error)' "$out/$name.log" | sort | uniq -c | head -n 20
  done
  return $failed
}
check 2>&1 | tee "$out/gpu_check.txt"
