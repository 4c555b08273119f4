// Common code of the probes. A probe is a kernel whose result, passed to report(), decides between two readings of the
// device: PROBE(flag, its value if every launch is right, its value otherwise, cores) { ... }. Its program prints the
// resulting flag of the emulator's model: model.dma_fifo=1.
#pragma once

#include <cstdio>
#include <vector>

#include "xpu/kernel/cluster.h"
#include "xpu/kernel/cluster_primitive.h"
#include "xpu/kernel/cluster_simd.h"
#include "xpu/runtime.h"

constexpr int kElements = 2048;  // of `in`, where element i is i + 1, and of `out`, which is 0 before each launch
constexpr int kLaunches = 50;  // what is a matter of timing need not show at once

enum { kDied = 0, kRight = 1, kWrong = 2 };

// The kernel's answer, from one core.
static inline __device__ void report(_global_ptr_ int* out, bool right) {
  int answer = right ? kRight : kWrong;
  mfence();
  LM2GM(&answer, out, sizeof(answer));
  mfence();
}

// Launches until an answer is not kRight, and prints the flag's value: `right` if all were, else `otherwise`.
template <class Launch>
int decide(const char* flag, const char* right, const char* otherwise, Launch launch) {
  std::vector<int> in(kElements), zeros(kElements);
  for (int i = 0; i < kElements; ++i) in[static_cast<size_t>(i)] = i + 1;
  const uint64_t bytes = kElements * sizeof(int);
  void *device_in = nullptr, *device_out = nullptr;
  int error = xpu_malloc(&device_in, bytes) || xpu_malloc(&device_out, bytes) ||
              xpu_memcpy(device_in, in.data(), bytes, XPU_HOST_TO_DEVICE);
  int answer = kRight, launches = 0;
  while (!error && answer == kRight && launches < kLaunches) {
    error = xpu_memcpy(device_out, zeros.data(), bytes, XPU_HOST_TO_DEVICE);
    launch(static_cast<const int*>(device_in), static_cast<int*>(device_out));
    const bool ended = xpu_wait() != 0;  // a trap
    error = error || xpu_memcpy(&answer, device_out, sizeof(answer), XPU_DEVICE_TO_HOST);
    if (ended) answer = kDied;
    ++launches;
  }
  if (error) {
    std::printf("%s: expected the runtime to do what it is asked, got an error\n", flag);
    return 2;
  }
  const char* const how[] = {"ended early", "was right", "was wrong"};
  std::printf("%s=%s: launch %d %s\n", flag, answer == kRight ? right : otherwise, launches, how[answer]);
  return 0;
}

#define PROBE(FLAG, RIGHT, OTHERWISE, CORES)                                                              \
  __global__ void probe(const int* in, int* out);                                                         \
  int main() {                                                                                            \
    return decide(FLAG, RIGHT, OTHERWISE, [](const int* in, int* out) { probe<<<1, CORES>>>(in, out); }); \
  }                                                                                                       \
  __global__ void probe([[maybe_unused]] const int* in, int* out)
