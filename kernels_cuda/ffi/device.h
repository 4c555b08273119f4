// The current device of this thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "../ops/check.h"

namespace specdec::cuda {

// Makes a device current during its lifetime, if it is not already.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check("cudaGetDevice", cudaGetDevice(&before_));
    changed_ = before_ != device;
    if (changed_) check("cudaSetDevice", cudaSetDevice(device));
  }
  // Restoring the previous device cannot fail in a way that a destructor could report.
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// Throws CudaError if a stream belongs to another than the current device, where launches would use invalid addresses.
// Default streams belong to the current device; capturing streams are skipped, as cudaStreamGetDevice is not permitted
// on them.
inline void require_stream_of(int device, cudaStream_t stream) {
  if (reinterpret_cast<uintptr_t>(stream) <= reinterpret_cast<uintptr_t>(cudaStreamPerThread)) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check("cudaStreamIsCapturing", cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) return;
  int own = device;
  check("cudaStreamGetDevice", cudaStreamGetDevice(stream, &own));
  if (own == device) return;
  throw CudaError(("the stream is of cuda:" + std::to_string(own)).c_str(), cudaErrorInvalidResourceHandle);
}

// A hint for an error.
inline const char* hint_of(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidResourceHandle:
    case cudaErrorContextIsDestroyed: return "pass a live stream of the tensors' device";
    case cudaErrorNoKernelImageForDevice:
      return "build specdec_hal for this device: see SPECDEC_CUDA_ARCHS in kernels_cuda/CMakeLists.txt";
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice: return "see `specdec-hal explain cuda`";
    case cudaErrorMemoryAllocation: return "free memory of the device, or decode fewer requests at a time";
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureUnsupported: return "capture nothing but bound ops on this stream";
    default: return "an earlier kernel of this process may have failed: restart it, and look with compute-sanitizer";
  }
}

}  // namespace specdec::cuda
