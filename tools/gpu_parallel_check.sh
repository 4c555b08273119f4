#!/usr/bin/env bash
# Several engines on one GPU, and tensor parallelism on two: tests, then ranks that are killed and stopped under load.
# Needs 2 NVIDIA GPUs, python3 with this package's dependencies and its extra `serve`, PyTorch with CUDA, Triton, pytest,
# and libspecdec_cuda.so, either installed or in specdec_hal/lib. Takes less than 8 minutes: whatever hangs says after
# 90 s where it does, and is ended. usage: tools/gpu_parallel_check.sh [OUT_DIR]   (writes logs and JSON there)
# WHEELS: a folder of wheels to install first. KILLS, STOPS, LANES: of ranks, and servers side by side.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/gpu-parallel}
python=${PYTHON:-python3}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONPATH=$("${PYTHON:-python3}" tools/tree_path.py)${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1
export OMP_NUM_THREADS=2 COMMIT=${COMMIT:-$(git rev-parse --verify -q HEAD 2> /dev/null || echo unknown)}
limit=90

# one NAME TEST: with the stacks of all threads if it takes too long
one() {
  local log=$logs/$1.log start=$SECONDS state=passed limit=$limit
  if [[ $2 == *two_engines* || $2 == *side_by_side* ]]; then limit=150; fi # 200 rounds; four pairs of ranks
  export SPECDEC_HAL_RANKS_TIMEOUT_S=$((limit - 20))
  timeout --signal=ABRT --kill-after=5 $limit "$python" -X faulthandler -m pytest -m gpu -x -ra -p no:cacheprovider \
    -o faulthandler_timeout=$((limit - 15)) "$2" > "$log" 2>&1 || state=FAILED
  if grep -q '^SKIPPED' "$log"; then state=FAILED; fi # everything is to run here
  printf '%-7s %3d s %s\n' "$state" $((SECONDS - start)) "$2"
  if [ "$state" = FAILED ]; then tail -n 100 "$log"; fi
}
export -f one
logs=$(mktemp -d)
trap 'rm -r "$logs"' EXIT
export logs python limit

check() {
  echo "commit: $COMMIT"
  date -u +"date: %FT%TZ"
  if [ -n "${WHEELS:-}" ]; then "$python" -m pip install --quiet --no-deps --no-index "$WHEELS"/*.whl || return 1; fi
  df -h /dev/shm | tail -n 1 # NCCL's, if GPUs do not reach each other
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  "$python" -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__, "NCCL", torch.cuda.nccl.version())'
  "$python" -c 'import fastapi, uvicorn, httpx' || return 1
  "$python" -m specdec_hal.cli backends || return 1

  echo "== tests"
  local tests
  tests=$("$python" -m pytest -m gpu --collect-only -q -p no:cacheprovider tests/cuda/test_two_engines.py \
    tests/cuda/test_tensor_parallel.py tests/cuda/test_any_decoder_ranks.py | grep '::') || return 1
  tr '\n' '\0' <<< "$tests" | xargs -0 -P 4 -n 1 bash -c 'one "$(tr -c "[:alnum:]\n" _ <<< "${0#tests/cuda/}")" "$0"'
  echo "== $SECONDS s; a benchmark that ends and writes its result"
  if ! timeout --signal=ABRT --kill-after=5 $limit "$python" -X faulthandler benchmarks/tensor_parallel.py \
    --models 1.2B --layers 4 --requests 1 8 --out "$out/tensor-parallel-4-layers.json" > "$logs/benchmark.log" 2>&1; then
    echo "FAILED benchmarks/tensor_parallel.py"
  fi
  tail -n 20 "$logs/benchmark.log"
  echo "== $SECONDS s; ranks killed and stopped over NCCL"
  local left=$((450 - SECONDS))
  if [ $left -lt 100 ]; then echo "FAILED: no time left" && return 1; fi
  timeout --signal=ABRT --kill-after=5 $left "$python" -X faulthandler tools/soak_serving.py --device cuda \
    --rank-kills "${KILLS:-20}" --rank-stops "${STOPS:-8}" --lanes "${LANES:-5}" --limit-s $((left - 60)) \
    --out "$out/tensor-parallel-failures.json" > "$out/failures.log" 2>&1
  local status=$?
  tail -n 60 "$out/failures.log"
  echo "== $SECONDS s; status $status"
  ! grep -q '^FAILED' "$out/gpu_parallel_check.txt" && return $status
}
check 2>&1 | tee "$out/gpu_parallel_check.txt"
