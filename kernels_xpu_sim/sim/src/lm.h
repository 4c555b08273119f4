// The stacks of cores, which are their LM: initial contents and limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "xpu_sim/fiber.h"
#include "xpu_sim/kernel/core.h"

namespace xpu_sim::rt {

struct Core;

// One stack, and the core that runs on it.
struct Fiber {
  Context context;
  char* low = nullptr;    // lowest usable byte
  char* high = nullptr;   // one past the highest
  Core* next = nullptr;   // the core to run when continued without one in the middle of a kernel
  int index = 0;
};

// A block, from its start: what the strict build knows of each byte of the stack, a guard, the stack, another guard,
// and the page with the block's last word, which a loop of stores past LM must not reach.
constexpr size_t kGuardBytes = 64 * 1024;
#if defined(__x86_64__)
constexpr size_t kPageBytes = 4 * 1024, kUpperGuardBytes = 16 * 1024;
#else
constexpr size_t kPageBytes = 64 * 1024, kUpperGuardBytes = kPageBytes;  // the largest there are
#endif
constexpr size_t kAboveStack = kUpperGuardBytes + kPageBytes;
constexpr size_t kStackBytes = kBlockBytes / 2 - kGuardBytes - kAboveStack;
// From a byte of the stack down to what is known of it. No multiple of 4 KB: a processor takes a load for one of the
// store that came just before if their addresses agree in the low 12 bits, and waits.
constexpr size_t kShadowDistance = kBlockBytes / 2 + 2048 + 64;

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

// Copying and filling that AddressSanitizer does not see: the DMA engine may write where kernels may not.
extern "C" {
__attribute__((weak)) void __asan_init();
}

namespace xpu_sim::rt {

inline void raw_copy(void* to, const void* from, size_t bytes) {
  if (!__asan_init) {
    // Most copies are of one number: a call takes longer than all the checks.
    if (bytes == 4) {
      std::memcpy(to, from, 4);
    } else if (bytes == 8) {
      std::memcpy(to, from, 8);
    } else {
      std::memcpy(to, from, bytes);
    }
    return;
  }
#if defined(__x86_64__)
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  volatile char* const out = static_cast<volatile char*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<const char*>(from)[i];
#endif
}

inline void raw_fill(void* to, unsigned char value, size_t bytes) {
  if (!__asan_init) {
    std::memset(to, value, bytes);
    return;
  }
#if defined(__x86_64__)
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
#else
  volatile char* const out = static_cast<volatile char*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(value);
#endif
}

struct Core;
class Worker;

// Fill with the poison of the options what the core that is about to start, or the cluster, has not used.
void poison_lm(Core* core);
void poison_sm(Worker& worker);
// What the strict build fills LM and SM with. A byte counts as uninitialised only while it has this value as well as no
// store recorded: code that is not instrumented, such as the prologue that keeps a parameter, writes without telling.
constexpr uint64_t kUnused = 0xB5C3D2E1F7A98B6Dull;

// Fills the stack from `lowest`, a multiple of 8, up to the caller's frame. Inlined, and calls nothing: what is below
// the stack pointer is nobody's, since signals are handled on another stack.
inline __attribute__((always_inline)) void fill_unused_stack(char* lowest) {
  const size_t words = static_cast<size_t>(static_cast<const char*>(stack_pointer()) - lowest) / sizeof kUnused;
#if defined(__x86_64__)
  size_t count = words;
  __asm__ volatile("rep stosq" : "+D"(lowest), "+c"(count) : "a"(kUnused) : "memory");
#else
  volatile uint64_t* const at = reinterpret_cast<uint64_t*>(lowest);
  for (size_t i = 0; i < words; ++i) at[i] = kUnused;
#endif
}

// The stacks' contents will not be returned to.
void forget_stacks(Stacks* stacks);

// The core has returned, and has used so many bytes, group-shared memory among them.
void check_lm(const Core& core, size_t used);

}  // namespace xpu_sim::rt
