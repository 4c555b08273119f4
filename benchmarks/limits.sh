#!/usr/bin/env bash
# How near to a GPU's limit steps, the engine, ranks and servers are: recorded tables again, and tests that results
# are the same. Each part ends after 240 s at most. Needs what tools/gpu_check.sh needs; output and servers also the extra
# `serve`. Tests of ranks: tools/gpu_parallel_check.sh. Ops: benchmarks/gpu_bench.sh.
# usage: benchmarks/limits.sh OUT_DIR PART...
# PART, on one GPU each, shared out over those that are visible: tests steps turns ready host output
# PART, on two GPUs, not together with the others: ranks-1.2B ranks-8B servers servers-split
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
python=${PYTHON:-python3}
export PYTHONPATH=$("${PYTHON:-python3}" tools/tree_path.py)${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 COLUMNS=160
export COMMIT=${COMMIT:-$(git rev-parse --verify -q HEAD 2> /dev/null || echo unknown)}
card=$(nvidia-smi --query-gpu=name --format=csv,noheader | grep -oE '[A-Z]+[0-9]+' | head -n 1)
card=${card,,}

part() { # part NAME: in the foreground
  local name=$1 tests=("$python" -m pytest -m gpu -q -ra -p no:cacheprovider)
  case $name in
    tests) "${tests[@]}" -n 8 tests/cuda/test_equality.py tests/cuda/test_decoding.py tests/models/test_prefix_cache.py ;;
    steps) "$python" benchmarks/gpu_model.py "$out/$card-limits-steps.json" models ;;
    turns) "$python" benchmarks/chat_turns.py --out "$out/$card-limits-turns.json" ;;
    ready) "$python" benchmarks/ready.py --out "$out/$card-limits-ready.json" ;;
    host) "$python" benchmarks/engine.py overlap latency --out "$out/$card-limits-host.json" ;;
    output) "$python" benchmarks/serving.py --only output_path --rounds 2 --new-tokens 512 --together 64 --clients 128 --turns 24 \
      --client-processes 8 --http-workers 6 --out "$out/$card-limits-output.json" ;;
    ranks-*) "$python" benchmarks/tensor_parallel.py --models "${name#ranks-}" --ways alone gathered shared \
      --out "$out/${card}x2-limits-$name.json" ;;
    servers | servers-split)
      local split=()
      if [ "$name" = servers-split ]; then split=(--split --http-workers 6); fi
      "$python" benchmarks/serving.py --only gpus --large --load-clients 1 8 64 --client-processes 8 --rounds 1 \
        "${split[@]}" --out "$out/${card}x2-limits-$name.json"
      ;;
    *) echo "no part '$name'" && return 2 ;;
  esac
}

IFS=, read -ra gpus <<< "${CUDA_VISIBLE_DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd,)}"
lane() { # lane I: every part whose turn it is on the I-th GPU, or all of them on all GPUs
  local i=$1 at=0 failed=0 name start state
  for name in "${parts[@]}"; do
    if ((lanes == 1 || at++ % lanes == i)); then
      start=$SECONDS state=done
      (
        if ((lanes > 1)); then export CUDA_VISIBLE_DEVICES=${gpus[i]}; fi
        export -f part
        export python out card name
        timeout --kill-after=5 240 bash -c 'part "$name"'
      ) > "$out/$name.log" 2>&1 || state=FAILED failed=1
      echo "$name: $state, $((SECONDS - start)) s: $(tail -n 1 "$out/$name.log" | cut -c 1-100)"
    fi
  done
  return $failed
}
parts=("$@") lanes=${#gpus[@]}
for name in "${parts[@]}"; do
  case $name in ranks-* | servers*) lanes=1 ;; esac
done
pids=() status=0
for ((i = 0; i < lanes; i++)); do
  lane "$i" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
exit $status
