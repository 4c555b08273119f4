// Threads that share the clusters of a launch.
#pragma once

#include "worker.h"

namespace xpu_sim::rt {

// Runs the launch on `workers` threads, of which the caller's is one.
void run_on(int workers, Launch* launch, Counters* counters);

}  // namespace xpu_sim::rt
