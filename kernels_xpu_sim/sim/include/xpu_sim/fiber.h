// Switching between stacks, for the emulator's cores and other fibers.
#pragma once

#include <cstddef>

// The portable way is the only one elsewhere; XPU_SIM_UCONTEXT asks for it here, to test it.
#if defined(__x86_64__) && !defined(XPU_SIM_UCONTEXT)
#define XPU_SIM_OWN_SWITCH
#else
#include <ucontext.h>
#endif

namespace xpu_sim {

// A stopped computation: a fiber's, or the thread's own while fibers run.
struct Context {
#if defined(XPU_SIM_OWN_SWITCH)
  void* sp = nullptr;
#else
  ucontext_t registers;
#endif
  // For AddressSanitizer, which must know on which stack the program is.
  const void* stack_low = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;
};

// Makes `context` start entry(argument) on that stack when it is switched to. `entry` must not return.
void prepare_context(Context* context, char* stack_low, size_t stack_bytes, void (*entry)(void*), void* argument);

// Stops here as `from` and continues `to`; returns when someone switches to `from`.
void switch_context(Context* from, Context* to);

// The same, when nobody will ever switch back: its stack may be used again.
[[noreturn]] void abandon_context(Context* to);

// The first thing `entry` must do.
void enter_context();

}  // namespace xpu_sim
