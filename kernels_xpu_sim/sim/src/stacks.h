// The stacks that cores run on: their LM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "xpu_sim/fiber.h"

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

// Every stack lies in a block of its own, aligned to the block's size, whose last word names the core that runs there.
// So the stack pointer alone tells who is running. A thread-local variable would do that too, but in a library that is
// loaded late either slowly or, as static thread-local storage, at the price of all of the kernels' SM being static.
//
// A block, from its start: what the strict build knows of each byte of the stack, a guard, the stack.
constexpr size_t kBlockBytes = 512 * 1024;
constexpr size_t kGuardBytes = 64 * 1024;
constexpr size_t kStackBytes = kBlockBytes / 2 - kGuardBytes;
// From a byte of the stack down to what is known of it. No multiple of 4 KB: a processor takes a load for one of the
// store that came just before if their addresses agree in the low 12 bits, and waits.
constexpr size_t kShadowDistance = kBlockBytes / 2 + 2048 + 64;

// All blocks of all workers: address space, reserved and not used.
constexpr size_t kMostThreads = 64;
constexpr int kStacksPerWorker = 65;  // a core's each, and one for what follows a fault
constexpr size_t kBlockSpaceBytes = kMostThreads * kStacksPerWorker * kBlockBytes;
extern __attribute__((visibility("hidden"))) char* block_space;

inline Core** owner_slot(const void* in_block) {
  return reinterpret_cast<Core**>((reinterpret_cast<uintptr_t>(in_block) | (kBlockBytes - 1)) + 1) - 1;
}

// Outside of kernels: a core without a worker.
extern __attribute__((visibility("hidden"))) Core nobody;

inline Core* core_on(const void* stack_pointer) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(stack_pointer) - block_space);
  return __builtin_expect(offset < kBlockSpaceBytes, 1) ? *owner_slot(stack_pointer) : &nobody;
}

inline __attribute__((always_inline)) const void* stack_pointer() {
#if defined(__x86_64__)
  const void* sp;
  __asm__("movq %%rsp, %0" : "=r"(sp));
  return sp;
#else
  return __builtin_frame_address(0);
#endif
}

// The core that runs here.
inline __attribute__((always_inline)) Core* current() { return core_on(stack_pointer()); }

// In a forked child: those of threads that it does not have are free.
void keep_only_own_stacks();

// The stacks of one worker. Memory is committed by use: only the top pages of most ever are.
class Stacks {
 public:
  Stacks();
  ~Stacks();
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;

  Fiber* fiber(int index) { return &fibers_[static_cast<size_t>(index)]; }
  // The fiber whose stack, or the guard below it, holds the address; nullptr: none.
  Fiber* owner(const void* address);
  const char* low() const { return low_; }
  size_t bytes() const { return fibers_.size() * kBlockBytes; }

 private:
  char* low_;
  std::vector<Fiber> fibers_;
};

}  // namespace xpu_sim::rt
