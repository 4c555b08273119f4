#include "forks.h"

#include <pthread.h>

namespace xpu_sim::rt {

namespace {
unsigned generation = 0;
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { ++generation; });
}  // namespace

unsigned fork_generation() { return generation; }

}  // namespace xpu_sim::rt
