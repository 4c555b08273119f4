#include "watchdog.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "faults.h"
#include "forks.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

namespace xpu_sim::rt {

const char Watch::own_mark = 0;

Watch::~Watch() {
  if (created_) timer_delete(timer_);
}

void Watch::begin(double seconds) {
  limit_ = seconds;
  ticks_ = 0;
  requested_ = held_ = 0;
  if (seconds <= 0) return;
  if (generation_ != fork_generation()) {
    created_ = false;
    armed_ = 0;
    generation_ = fork_generation();
  }
  watching_ = 1;
  if (!armed_) arm(kPeriod);
}

void Watch::arm(double period) {
  if (!created_) {
    catch_watchdog_signal();
    sigevent event;
    std::memset(&event, 0, sizeof event);
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_notify_thread_id = static_cast<int>(syscall(SYS_gettid));
    event.sigev_signo = watchdog_signal();
    event.sigev_value.sival_ptr = this;
    if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) != 0) return;  // no timers left: run unwatched
    created_ = true;
  }
  itimerspec when;
  std::memset(&when, 0, sizeof when);
  when.it_interval.tv_nsec = when.it_value.tv_nsec = static_cast<long>(period * 1e9);
  timer_settime(timer_, 0, &when, nullptr);
  armed_ = period > 0;
}

bool Watch::tick() {
  if (!watching_) {
    arm(0);
    return false;
  }
  if (held_) return false;
  if (++ticks_ * kPeriod < limit_) return false;
  // First ask: the core may be in the runtime, which must not be left in the middle. One that has not come by in a
  // whole period is in its own code.
  if (requested_) return true;
  requested_ = 1;
  return false;
}

}  // namespace xpu_sim::rt
