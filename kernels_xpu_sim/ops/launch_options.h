// How the wrappers of this folder launch their kernels.
#pragma once

#include <cstdint>

namespace specdec::xpu {

// Given by the backend's options. 0 clusters or cores: the wrapper takes as many as the work can use, up to the
// device's 12 x 64; a positive number is taken as it is. `seed` orders cores, clusters and DMA completions (0: natural
// order); `dma` is a policy of DmaPolicy; `workers` is the most host threads that may run clusters at the same time.
struct LaunchOptions {
  int clusters = 0;
  int cores = 0;
  int64_t seed = 0;
  int dma = 0;
  int workers = 1;
};

enum DmaPolicy : int { kEager = 0, kDeferred = 1, kRandom = 2 };

constexpr int kDeviceClusters = 12;
constexpr int kClusterCores = 64;

}  // namespace specdec::xpu
