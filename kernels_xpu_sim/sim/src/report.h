// Adding up what launches counted.
#pragma once

#include "kernel_info.h"
#include "xpu_sim/report.h"

namespace xpu_sim::rt {

void record(const KernelInfo& kernel, int clusters, int cores, const Counters& counters);
// Adds the counters of another worker of the same launch.
void merge(Counters* into, const Counters& from);

}  // namespace xpu_sim::rt
