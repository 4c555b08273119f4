// The contents of LM and SM before a kernel uses them.
#pragma once

#include <cstdint>

#include "stacks.h"

namespace xpu_sim::rt {

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

}  // namespace xpu_sim::rt
