// Errors of the CUDA runtime as exceptions. Faults of asynchronous kernels appear in a later call.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace specdec::cuda {

struct CudaError : std::runtime_error {
  CudaError(const char* what, cudaError_t status)
      : std::runtime_error(std::string(what) + ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status)),
        code(status) {}
  cudaError_t code;
};

// Throws CudaError for an error of the CUDA runtime, and clears it so that it is reported once; a broken context keeps
// failing.
inline void check(const char* what, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw CudaError(what, status);
}

// For launches with <<<>>>, directly after them.
inline void check_launch(const char* kernel) { check(kernel, cudaGetLastError()); }

}  // namespace specdec::cuda
