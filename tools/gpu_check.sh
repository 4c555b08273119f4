#!/usr/bin/env bash
# What needs an NVIDIA GPU: run on a machine that has one, with PyTorch, pytest and hypothesis. No installation needed.
# usage: tools/gpu_check.sh [OUT_DIR]   (writes gpu_check.txt there)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/gpu}
mkdir -p "$out"
export PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1
{
  echo "commit: ${COMMIT:-$(git rev-parse --verify -q HEAD 2> /dev/null || echo unknown)}"
  date -u +"date: %FT%TZ"
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
  python3 -c 'import sys, torch; print("python", sys.version.split()[0], "torch", torch.__version__)'
  echo "command: python3 -m pytest tests/models -m gpu -ra"
  python3 -m pytest tests/models -m gpu -ra -p no:cacheprovider
} 2>&1 | tee "$out/gpu_check.txt"
