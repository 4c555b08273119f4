// The stacks that cores run on: their LM.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "context.h"

namespace xpu_sim::rt {

struct Core;

// One stack, and whoever runs on it.
struct Fiber {
  Context context;
  char* low = nullptr;    // lowest usable byte
  char* high = nullptr;   // one past the highest
  Core* next = nullptr;   // the core to run when continued without one in the middle of a kernel
  int index = 0;
};

// All stacks of a worker, in one reservation, so that "whose LM is this address" is a division. Memory is committed by
// use: only the top pages of most stacks ever are.
class Stacks {
 public:
  static constexpr size_t kGuard = 64 * 1024;
  static constexpr size_t kUsable = 448 * 1024;
  static constexpr size_t kStride = kGuard + kUsable;

  explicit Stacks(int most);
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  Fiber* fiber(int index) { return &fibers_[static_cast<size_t>(index)]; }
  // The fiber whose stack, or the guard below it, holds the address; nullptr: none.
  Fiber* owner(const void* address);
  const char* low() const { return arena_; }
  size_t bytes() const { return bytes_; }

 private:
  char* arena_;
  size_t bytes_;
  std::vector<Fiber> fibers_;
};

}  // namespace xpu_sim::rt
