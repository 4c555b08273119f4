#!/usr/bin/env bash
# Build the libraries of the backends cuda and cpu for this machine's GPU into specdec_hal/lib, with all cores, for a source
# tree that is not installed (tools/tree_path.py). Needs nvcc, a C++ compiler, CMake, Ninja and apache-tvm-ffi.
# usage: tools/gpu_build.sh [ARCH]   (compute capability without a dot; default: the GPU's)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
arch=${1:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)}
cmake -G Ninja -S . -B build/gpu -DPython_EXECUTABLE="$(command -v "$python")" -DSPECDEC_CUDA=ON -DSPECDEC_CUDA_ARCHS="$arch"
cmake --build build/gpu --parallel "$(nproc)" --target specdec_cuda specdec_cpu specdec_common
mkdir -p specdec_hal/lib
cp build/gpu/kernels_{cuda,cpu,common}/libspecdec_*.so build/gpu/kernels_cuda/libspecdec_cuda.json specdec_hal/lib/
