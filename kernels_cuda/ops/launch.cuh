// How the wrappers of this folder launch kernels: on the caller's stream, every launch checked.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "check.h"

namespace specdec::cuda {

inline int current_device(const char* op) {
  int device = 0;
  check(op, cudaGetDevice(&device));
  return device;
}

// A nonzero property of each device; ask() is called once.
class OfDevices {
 public:
  template <typename Ask>
  int get(int device, Ask ask) {
    if (device >= kDevices) return ask();
    int value = known_[device].load(std::memory_order_acquire);
    if (value == 0) known_[device].store(value = ask(), std::memory_order_release);
    return value;
  }

 private:
  static constexpr int kDevices = 64;
  std::array<std::atomic<int>, kDevices> known_ = {};
};

// An attribute of the current device that is never 0.
template <cudaDeviceAttr kAttribute>
int device_attribute(const char* op) {
  static OfDevices known;
  const int device = current_device(op);
  return known.get(device, [&] {
    int value = 0;
    check(op, cudaDeviceGetAttribute(&value, kAttribute, device));
    return value;
  });
}

// Major compute capability: 9 has thread block clusters and overlapping launches.
inline int compute_capability_major(const char* op) { return device_attribute<cudaDevAttrComputeCapabilityMajor>(op); }
inline int device_sms(const char* op) { return device_attribute<cudaDevAttrMultiProcessorCount>(op); }

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  unsigned cluster = 1;     // blocks of a cluster, along x; more than one only from compute capability 9 on
};

// A launch as the runtime takes it, which overlaps with the previous one in the stream where the device can
// (programmatic dependent launch).
class LaunchConfig {
 public:
  LaunchConfig(const char* op, cudaStream_t stream, const LaunchShape& shape) {
    config_.gridDim = shape.grid;
    config_.blockDim = shape.block;
    config_.dynamicSmemBytes = shape.shared_bytes;
    config_.stream = stream;
    config_.attrs = attributes_;
    if (compute_capability_major(op) < 9) return;
    attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    if (shape.cluster > 1) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs++].val.clusterDim = {shape.cluster, 1, 1};
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2] = {};
  cudaLaunchConfig_t config_ = {};
};

// Launches `kernel`, which may start before the previous launch in the stream ends: it must call `wait_for_previous()`
// of warp.cuh before it accesses earlier results.
template <typename... P, typename... A>
void launch(const char* op, cudaStream_t stream, const LaunchShape& shape, void (*kernel)(P...), const A&... args) {
  const LaunchConfig config(op, stream, shape);
  check(op, cudaLaunchKernelEx(config.get(), kernel, static_cast<P>(args)...));
}

// Blocks for `count` items, `each` a block: at least one, at most `most`.
inline unsigned blocks_for(int64_t count, int64_t each, int64_t most = 0x7FFFFFFF) {
  const int64_t blocks = count / each + (count % each != 0 ? 1 : 0);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > most ? most : blocks);
}

}  // namespace specdec::cuda
