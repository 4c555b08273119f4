// std::atomic and __atomic: -fsanitize=thread turns the operations into these calls. The device has no such atomics, so
// in a kernel they are loads and stores like others; host code in the same file may use them.
#include <cstdint>

#include "memory_calls.h"

#define XPU_SIM_HOOK extern "C" __attribute__((used, visibility("hidden")))
#define XPU_SIM_TELL(KIND)                                                                                   \
  xpu_sim::rt::strict::KIND##_range(const_cast<char*>(reinterpret_cast<const volatile char*>(p)), sizeof *p, \
                                    __builtin_return_address(0))
#define XPU_SIM_FETCH(BITS, NAME)                                                                                     \
  XPU_SIM_HOOK uint##BITS##_t __tsan_atomic##BITS##_fetch_##NAME(volatile uint##BITS##_t* p, uint##BITS##_t x, int) { \
    XPU_SIM_TELL(load);                                                                                               \
    XPU_SIM_TELL(store);                                                                                              \
    return __atomic_fetch_##NAME(p, x, __ATOMIC_SEQ_CST);                                                             \
  }
#define XPU_SIM_COMPARE(BITS, NAME, WEAK)                                                                         \
  XPU_SIM_HOOK int __tsan_atomic##BITS##_compare_exchange_##NAME(volatile uint##BITS##_t* p, uint##BITS##_t* old, \
                                                                 uint##BITS##_t x, int, int) {                    \
    XPU_SIM_TELL(load);                                                                                           \
    if (*p == *old) XPU_SIM_TELL(store);                                                                          \
    return __atomic_compare_exchange_n(p, old, x, WEAK, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                      \
  }
#define XPU_SIM_ATOMICS(BITS)                                                                                     \
  XPU_SIM_HOOK uint##BITS##_t __tsan_atomic##BITS##_load(const volatile uint##BITS##_t* p, int) {                 \
    XPU_SIM_TELL(load);                                                                                           \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                  \
  }                                                                                                               \
  XPU_SIM_HOOK void __tsan_atomic##BITS##_store(volatile uint##BITS##_t* p, uint##BITS##_t x, int) {              \
    XPU_SIM_TELL(store);                                                                                          \
    __atomic_store_n(p, x, __ATOMIC_SEQ_CST);                                                                     \
  }                                                                                                               \
  XPU_SIM_HOOK uint##BITS##_t __tsan_atomic##BITS##_exchange(volatile uint##BITS##_t* p, uint##BITS##_t x, int) { \
    XPU_SIM_TELL(load);                                                                                           \
    XPU_SIM_TELL(store);                                                                                          \
    return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST);                                                           \
  }                                                                                                               \
  XPU_SIM_FETCH(BITS, add)                                                                                        \
  XPU_SIM_FETCH(BITS, sub)                                                                                        \
  XPU_SIM_FETCH(BITS, and)                                                                                        \
  XPU_SIM_FETCH(BITS, or)                                                                                         \
  XPU_SIM_FETCH(BITS, xor)                                                                                        \
  XPU_SIM_FETCH(BITS, nand)                                                                                       \
  XPU_SIM_COMPARE(BITS, strong, false)                                                                            \
  XPU_SIM_COMPARE(BITS, weak, true)

XPU_SIM_ATOMICS(8)
XPU_SIM_ATOMICS(16)
XPU_SIM_ATOMICS(32)
XPU_SIM_ATOMICS(64)

XPU_SIM_HOOK void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
XPU_SIM_HOOK void __tsan_atomic_signal_fence(int) { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
