// A timeline of launches: clusters, cores, copies, fences, barriers and findings, for Perfetto or chrome://tracing.
#pragma once

#include <string>

namespace xpu_sim {

// Launches from now on are noted, up to a million events. Not to be called while kernels run.
void start_trace();
// What has been noted, as a document in the trace event format. Times are ticks: one for each call into the runtime and
// for each 64 bytes of a copy, and, in the strict build, for each load and store. They order; they are no times.
std::string trace_json();

}  // namespace xpu_sim
