#include "forks.h"

#include <pthread.h>

#include "lm.h"

namespace xpu_sim::rt {

namespace {

constexpr int kLocks = static_cast<int>(Shared::count);
std::mutex locks[kLocks];
unsigned generation = 0;

void before() {
  for (std::mutex& lock : locks) lock.lock();
}

void after() {
  for (int i = kLocks; i-- > 0;) locks[i].unlock();
}

void after_in_child() {
  ++generation;
  keep_only_own_stacks();
  after();
}

[[maybe_unused]] const int registered = pthread_atfork(&before, &after, &after_in_child);

}  // namespace

unsigned fork_generation() { return generation; }

std::mutex& lock_of(Shared what) { return locks[static_cast<int>(what)]; }

}  // namespace xpu_sim::rt
