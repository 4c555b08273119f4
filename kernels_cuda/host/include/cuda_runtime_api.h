// The part of the CUDA runtime that the wrappers of ops/ use, for kernels on the host: one device with synchronous
// launches.
#pragma once

#include <cstddef>
#include <string>

using cudaStream_t = struct CUstream_st*;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation,
  cudaErrorInsufficientDriver,
  cudaErrorNoDevice,
  cudaErrorNoKernelImageForDevice,
  cudaErrorInvalidResourceHandle,
  cudaErrorContextIsDestroyed,
  cudaErrorStreamCaptureUnsupported,
  cudaErrorStreamCaptureInvalidated,
  cudaErrorLaunchFailure,
};
inline thread_local std::string simt_failure;  // of the last launch that failed
inline const char* cudaGetErrorName(cudaError_t) { return "cudaErrorLaunchFailure"; }
inline const char* cudaGetErrorString(cudaError_t) { return simt_failure.c_str(); }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return cudaGetDevice(device); }

enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
#define cudaStreamPerThread ((cudaStream_t)0x2)
inline cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

enum cudaDeviceAttr {
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrL2CacheSize,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
};
// Those of a device of the compute capability that the kernels are compiled for: an H200, or an A100.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  constexpr bool kHopper = SPECDEC_HOST_ARCH >= 900;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = SPECDEC_HOST_ARCH / 100; break;
    case cudaDevAttrMultiProcessorCount: *value = kHopper ? 132 : 108; break;
    case cudaDevAttrL2CacheSize: *value = kHopper ? 50 << 20 : 4 << 10; break;  // small, so that both ways are tested
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (kHopper ? 228 : 164) << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (kHopper ? 227 : 163) << 10; break;
  }
  return cudaSuccess;
}
