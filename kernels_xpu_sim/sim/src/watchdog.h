// Ends launches that take too long: a kernel that spins cannot be stopped by turns.
#pragma once

#include <csignal>
#include <ctime>

namespace xpu_sim::rt {

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
  // The timer's signal. True: the core must be stopped where it is.
  bool tick();
  // Of this copy of the emulator: each library that was linked with it has one, and the signal is for all of them.
  bool is_ours() const { return owner_ == &own_mark; }

 private:
  static constexpr double kPeriod = 0.25;
  static const char own_mark;

  void arm(double period);

  const char* owner_ = &own_mark;
  timer_t timer_{};
  bool created_ = false;
  unsigned generation_ = 0;  // of forks, when it was created
  double limit_ = 0;
  int ticks_ = 0;
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
