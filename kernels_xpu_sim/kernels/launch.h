// How host functions of this folder launch kernels: on the simulated device or, with SPECDEC_XPU_DEVICE and without the
// emulator, on the compiler's device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "launch_options.h"
#if defined(__xpu__) || defined(SPECDEC_XPU_DEVICE)
#include "xpu/kernel/cluster.h"
#endif
#if !defined(SPECDEC_XPU_DEVICE)
#include "xpu_sim/launch.h"
#endif

namespace specdec::xpu {

constexpr int64_t kDeviceClusters = 12;
constexpr int64_t kClusterCores = 64;
constexpr int64_t kRowShare = 1024;  // elements of a row that are worth a core: a tile

// At least one, at most `most`; `fixed` if that is positive.
inline int launch_extent(int fixed, int64_t useful, int64_t most) {
  return fixed > 0 ? fixed : static_cast<int>(useful < 1 ? 1 : useful > most ? most : useful);
}

inline int64_t parts_of(int64_t count, int64_t each) { return count / each + (count % each != 0 ? 1 : 0); }

#if !defined(SPECDEC_XPU_DEVICE)
// Throws std::runtime_error with the emulator's findings about the launch, if any.
void check_launch(int status);
#endif

// Launches, synchronously on the simulated device. `clusters`, `cores`: how many the work can use.
template <typename... P, typename... A>
void launch(const LaunchOptions& options, int64_t clusters, int64_t cores, void (*kernel)(P...), A... args) {
  const int c = launch_extent(options.clusters, clusters, kDeviceClusters);
  const int n = launch_extent(options.cores, cores, kClusterCores);
#if defined(SPECDEC_XPU_DEVICE)
  kernel<<<c, n>>>(args...);
#else
  check_launch(xpu_sim::launch(kernel, c, n, options.sim)(args...));
#endif
}

// For work that any core of any cluster can take: `items`, of which a core should have `each` before the next is used.
template <typename... P, typename... A>
void launch_items(const LaunchOptions& options, int64_t items, int64_t each, void (*kernel)(P...), A... args) {
  const int64_t threads = parts_of(items, each);
  launch(options, parts_of(threads, kClusterCores), threads, kernel, args...);
}

}  // namespace specdec::xpu
