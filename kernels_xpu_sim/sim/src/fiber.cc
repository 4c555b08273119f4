#include "xpu_sim/fiber.h"

#include <cstdint>
#include <cstdlib>

// Present only in programs built with AddressSanitizer.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake_stack, const void* low, size_t bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake_stack, const void** low, size_t* bytes);
}

#if defined(XPU_SIM_OWN_SWITCH)

// A switch saves what a function call must preserve, nothing else: no signal mask, hence no system call. MXCSR and the
// x87 control word are left alone, since no kernel changes them.
extern "C" void xpu_sim_switch(void** save, void* load);
extern "C" void xpu_sim_start();
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".hidden xpu_sim_switch\n"
    ".globl xpu_sim_switch\n"
    ".type xpu_sim_switch, @function\n"
    "xpu_sim_switch:\n"
    "  .cfi_startproc\n"
    "  pushq %rbp\n"
    "  pushq %rbx\n"
    "  pushq %r12\n"
    "  pushq %r13\n"
    "  pushq %r14\n"
    "  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n"
    "  popq %r14\n"
    "  popq %r13\n"
    "  popq %r12\n"
    "  popq %rbx\n"
    "  popq %rbp\n"
    "  ret\n"
    "  .cfi_endproc\n"
    ".size xpu_sim_switch, . - xpu_sim_switch\n"
    // Where a new fiber begins: entry in r12, its argument in r13. No caller: the unwinder stops here.
    ".hidden xpu_sim_start\n"
    ".globl xpu_sim_start\n"
    ".type xpu_sim_start, @function\n"
    "xpu_sim_start:\n"
    "  .cfi_startproc\n"
    "  .cfi_undefined rip\n"
    "  movq %r13, %rdi\n"
    "  xorl %ebp, %ebp\n"
    "  call *%r12\n"
    "  ud2\n"
    "  .cfi_endproc\n"
    ".size xpu_sim_start, . - xpu_sim_start\n");

namespace xpu_sim {

void prepare_context(Context* context, char* stack_low, size_t stack_bytes, void (*entry)(void*), void* argument) {
  // At xpu_sim_start rsp must be a multiple of 16, as before any call; below it the six registers and its address.
  void** const top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack_low) + stack_bytes) & ~uintptr_t{15});
  void** sp = top - 2;
  *--sp = reinterpret_cast<void*>(&xpu_sim_start);
  *--sp = nullptr;                             // rbp
  *--sp = nullptr;                             // rbx
  *--sp = reinterpret_cast<void*>(entry);      // r12
  *--sp = argument;                            // r13
  *--sp = nullptr;                             // r14
  *--sp = nullptr;                             // r15
  context->sp = sp;
  context->stack_low = stack_low;
  context->stack_bytes = stack_bytes;
  context->fake_stack = nullptr;
}

namespace {
inline void swap(Context* from, Context* to) { xpu_sim_switch(&from->sp, to->sp); }
}  // namespace

}  // namespace xpu_sim

#else

namespace xpu_sim {

namespace {

// makecontext passes ints only.
struct Start {
  void (*entry)(void*);
  void* argument;
};

void start(unsigned high, unsigned low) {
  const uintptr_t address = static_cast<uintptr_t>(static_cast<uint64_t>(high) << 32 | low);
  const Start& s = *reinterpret_cast<const Start*>(address);
  s.entry(s.argument);
  std::abort();
}

inline void swap(Context* from, Context* to) { swapcontext(&from->registers, &to->registers); }

}  // namespace

void prepare_context(Context* context, char* stack_low, size_t stack_bytes, void (*entry)(void*), void* argument) {
  const size_t usable = (stack_bytes - sizeof(Start)) & ~size_t{15};
  Start* const s = reinterpret_cast<Start*>(stack_low + usable);
  *s = {entry, argument};
  getcontext(&context->registers);
  context->registers.uc_stack.ss_sp = stack_low;
  context->registers.uc_stack.ss_size = usable;
  context->registers.uc_link = nullptr;
  const uint64_t address = reinterpret_cast<uintptr_t>(s);
  makecontext(&context->registers, reinterpret_cast<void (*)()>(start), 2, static_cast<unsigned>(address >> 32),
              static_cast<unsigned>(address));
  context->stack_low = stack_low;
  context->stack_bytes = stack_bytes;
  context->fake_stack = nullptr;
}

}  // namespace xpu_sim

#endif

namespace xpu_sim {

namespace {
thread_local Context* came_from = nullptr;  // kept for AddressSanitizer only
}

void switch_context(Context* from, Context* to) {
  if (__sanitizer_start_switch_fiber) {
    came_from = from;
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack_low, to->stack_bytes);
    swap(from, to);
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
  } else {
    swap(from, to);
  }
}

void abandon_context(Context* to) {
  Context dead;
  if (__sanitizer_start_switch_fiber) __sanitizer_start_switch_fiber(nullptr, to->stack_low, to->stack_bytes);
  swap(&dead, to);
  std::abort();
}

void enter_context() {
  // The thread's own stack is not ours, so its bounds are learnt here, when it first switches away.
  if (__sanitizer_finish_switch_fiber) {
    const void* low = nullptr;
    size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &low, &bytes);
    came_from->stack_low = low;
    came_from->stack_bytes = bytes;
  }
}

}  // namespace xpu_sim
