// The caller's options for an op's launches.
#pragma once

#if !defined(SPECDEC_XPU_DEVICE)
#include "xpu_sim/options.h"
#endif

namespace specdec::xpu {

// 0 clusters or cores: as many as the work can use, up to the device's; a positive
// number is taken as it is. `sim` carries seed, DMA policy, host threads, and the op's tensors as global memory.
struct LaunchOptions {
  int clusters = 0;
  int cores = 0;
#if !defined(SPECDEC_XPU_DEVICE)
  xpu_sim::Options sim;
#endif
};

}  // namespace specdec::xpu
