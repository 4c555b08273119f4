// A forked child has the memory of its parent, but neither its other threads nor its timers.
#pragma once

namespace xpu_sim::rt {

// How many forks lie between the program's start and this process.
unsigned fork_generation();

}  // namespace xpu_sim::rt
