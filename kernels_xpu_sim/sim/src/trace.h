// The runtime's events for the timeline. Without a timeline each costs one test.
#pragma once

#include <cstdint>

#include "xpu_sim/finding.h"
#include "xpu_sim/site.h"
#include "xpu_sim/trace.h"

namespace xpu_sim::rt {

struct Copy;
struct Core;
struct Launch;
class Worker;

extern __attribute__((visibility("hidden"))) bool trace_is_on;
inline bool tracing() { return __builtin_expect(trace_is_on, 0); }

void trace_launch_begins(Launch* launch);
void trace_launch_ends(const Launch& launch);
void trace_core_begins(const Core& core);
void trace_core_ends(const Core& core);
void trace_copy(const Core& core, const Copy& copy, bool sync);
void trace_fence(const Core& core, uint32_t mask, Site site);
void trace_arrival(const Core& core);                    // at a barrier, core.last
void trace_release(Worker& worker, uint64_t cores);      // bit per core that met there
void trace_finding(const Finding& finding);              // of the core that runs

}  // namespace xpu_sim::rt
