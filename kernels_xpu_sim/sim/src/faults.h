// Signals: a kernel's fault becomes a finding, not the end of the process.
#pragma once

#include <memory>

namespace xpu_sim::rt {

// Once per process: handlers for faults. Those of others are called for what is not a kernel's.
void catch_faults();

// A stack for this thread's handlers, if it has none yet: a core's own may be what overflowed.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::unique_ptr<char[]> memory_;
};

int watchdog_signal();
void catch_watchdog_signal();

}  // namespace xpu_sim::rt
