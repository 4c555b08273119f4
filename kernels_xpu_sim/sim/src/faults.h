// Signals: a kernel's fault becomes a finding instead of ending the process; a launch that takes too long is ended.
#pragma once

#include <csignal>
#include <ctime>
#include <memory>

namespace xpu_sim::rt {

struct Core;

// Installs fault handlers once per process. Faults outside kernels go to the previous handlers.
void catch_faults();

// A signal stack for this thread, if it has none: a core's own stack may have overflowed.
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

// Ends launches that take too long, and interrupts cores that neither end nor call the runtime: such a core may wait
// for a flag that another one sets.
//
// A thread's. The timer counts the thread's processor time, so that a busy machine ends nothing; it runs on between
// launches and stops by itself when there are none, so that a launch costs no system call.
class Watch {
 public:
  Watch() = default;
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin(double seconds);
  void end() { watching_ = 0; }
  // Asked by a core that calls the runtime often.
  bool limit_reached() const { return requested_ != 0; }
  // Between the two, the core is not stopped: the runtime is in the middle of something that takes its time.
  void hold() { held_ = held_ + 1; }
  void release() { held_ = held_ - 1; }
  // The timer's signal, while this core runs. `stop`: it must be stopped where it is; `interrupt`: others should run.
  enum class Verdict { go_on, interrupt, stop };
  Verdict tick(const Core& core);
  // Of this copy of the emulator: each library that was linked with it has one, and the signal is for all of them.
  bool is_ours() const { return owner_ == &own_mark; }

 private:
  static constexpr double kPeriod = 0.25, kTurn = 0.004;  // kTurn: once a core has been interrupted
  static const char own_mark;

  // Where a core is, as far as the runtime knows: the same at two ticks if it has not called it between them.
  struct Position {
    const Core* core;
    int cluster;
    uint32_t epoch, calls;
    bool operator==(const Position& p) const {
      return core == p.core && cluster == p.cluster && epoch == p.epoch && calls == p.calls;
    }
  };

  void arm(double period);

  const char* owner_ = &own_mark;
  timer_t timer_{};
  bool created_ = false;
  unsigned generation_ = 0;  // of forks, when it was created
  double limit_ = 0, period_ = 0, used_ = 0, requested_at_ = 0;  // seconds
  Position last_{};
  volatile std::sig_atomic_t armed_ = 0, watching_ = 0, requested_ = 0, held_ = 0;
};

class WatchdogHold {
 public:
  explicit WatchdogHold(Watch* watch) : watch_(watch) { watch_->hold(); }
  ~WatchdogHold() { watch_->release(); }
  WatchdogHold(const WatchdogHold&) = delete;
  WatchdogHold& operator=(const WatchdogHold&) = delete;

 private:
  Watch* watch_;
};

class WatchdogScope {
 public:
  WatchdogScope(Watch* watch, double seconds) : watch_(watch) { watch_->begin(seconds); }
  ~WatchdogScope() { watch_->end(); }
  WatchdogScope(const WatchdogScope&) = delete;
  WatchdogScope& operator=(const WatchdogScope&) = delete;

 private:
  Watch* watch_;
};

}  // namespace xpu_sim::rt
