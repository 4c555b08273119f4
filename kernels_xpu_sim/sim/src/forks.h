// A forked child has the memory of its parent, but neither its other threads nor its timers.
#pragma once

#include <mutex>

namespace xpu_sim::rt {

// How many forks lie between the program's start and this process.
unsigned fork_generation();

// What threads share, in the order in which the locks are taken where one is held already. A fork waits for all of
// them: none is left locked in the child by a thread that the child does not have. What is made when it is first used
// is made under its lock for the same reason.
enum class Shared {
  handles,
  gm,
  kernels,
  modules,
  source_lines,
  pool,
  stacks,
  signals,
  program,
  reports,
  findings,
  trace,
  count
};
std::mutex& lock_of(Shared what);

}  // namespace xpu_sim::rt
