#!/usr/bin/env bash
# Record what the pages show of a CPU: some 20 minutes on two idle cores. Tables and plots of the site follow the records.
# usage: benchmarks/cpu_record.sh [OUT_DIR], of a tree without changes. QUICK=1: tiny budgets, to try the script itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-benchmarks/results} python=${PYTHON:-.venv/bin/python} vllm=() failed=0
git diff --quiet HEAD || { echo "expected a tree without changes, so that records name a commit" && exit 2; }
COMMIT=$(git rev-parse HEAD)
export COMMIT
[ ! -x build/engine-venv/bin/python ] || vllm=(--vllm build/engine-venv/bin/python)
full() { if [ -n "${QUICK:-}" ]; then echo "$2"; else echo "$1"; fi; }
record() { # record NAME COMMAND...: COMMAND --out OUT_DIR/NAME.json; `option`: instead of --out
  local name=$1 start=$SECONDS
  shift
  if "$@" "${option:---out}" "$out/$name.json" > "$out/$name.log" 2>&1; then rm "$out/$name.log"; else tail -n 5 "$out/$name.log"; failed=1; fi
  echo "$name: $((SECONDS - start)) s"
}
mkdir -p "$out"
record cpu-engine "$python" benchmarks/cpu_engine.py --rounds 1 --new-tokens "$(full 96 8)" --minutes "$(full 5 0.1)" "${vllm[@]}"
record cpu-methods "$python" benchmarks/engine.py methods --device cpu --new-tokens "$(full 256 8)" --turns "$(full 9 1)"
record cpu-serving-load "$python" benchmarks/serving.py --only load --rounds "$(full 2 1)" --new-tokens "$(full 128 4)"
record cpu-ops taskset -c 0 "$python" benchmarks/cpu_ops.py --seconds "$(full 0.1 0.001)" --most "$(full 1e7 1e5)"
record cpu-xpu-sim taskset -c 0 "$python" benchmarks/xpu_sim.py --seconds "$(full 0.5 0.01)"
record cpu-host-time "$python" benchmarks/host_time.py --steps "$(full 300 10)"
record cpu-http-cost "$python" benchmarks/http_cost.py --rounds "$(full 2 1)" --steps "$(full 150 10)" --requests "$(full 320 32)"
heads=(--set speculative.eagle3.path=models/tiny-py-lm-eagle3 --set speculative.dflash.path=models/tiny-py-lm-dflash)
prompts=(--prompt-file examples/prompts/completion.txt --prompt-file examples/prompts/edit_function.txt)
option=--record record cpu-compare-sweep "${python%/*}/specdec-hal" compare --config configs/cpu.yaml --set model.framework=transformers \
  "${heads[@]}" "${prompts[@]}" --max-new-tokens "$(full 32 4)" --repeat 1 --method all --sweep "$(full 1,3,7 1)"
record cpu-fp8-smollm2 "$python" benchmarks/fp8_accuracy.py build/engines/SmolLM2-135M-Instruct
exit $failed
