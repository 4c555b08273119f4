// Signals: a kernel's fault becomes a finding, not the end of the process.
#pragma once

namespace xpu_sim::rt {

// Once per process: handlers for faults. Those of others are called for what is not a kernel's. And an alternate stack
// for this thread, since a core's stack may be what overflowed.
void catch_faults();

int watchdog_signal();
void catch_watchdog_signal();

}  // namespace xpu_sim::rt
