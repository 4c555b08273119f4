// Exports for benchmarks: a launch without work, bound as ops are and bare.
#include <tvm/ffi/function.h>

#include <cuda_runtime_api.h>

#include <cstdint>

#include "../ffi/device.h"
#include "empty.h"

namespace specdec::cuda {
namespace {

using tvm::ffi::Function;

// A plan of the empty kernel.
Function empty(int64_t device) {
  return Function::FromTyped([device = static_cast<int>(device)](int64_t stream) {
    const DeviceGuard guard(device);
    launch_empty(reinterpret_cast<cudaStream_t>(stream));
  });
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(empty, empty)

// Launches the empty kernel `times` times, one call from Python.
void launch_empty_times(int64_t device, int64_t times, int64_t stream) {
  const DeviceGuard guard(static_cast<int>(device));
  for (int64_t i = 0; i < times; ++i) launch_empty(reinterpret_cast<cudaStream_t>(stream));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(launch_empty_times, launch_empty_times)

}  // namespace
}  // namespace specdec::cuda
