// Replacements of memcpy and similar functions, and of atomic operations, for instrumented kernels.
#include <cxxabi.h>

#include <cstdint>
#include <cstring>

#include "../report.h"
#include "state.h"

// memcpy and its like, for kernels: the kernel header gives these names to the assembler (kernel/strict.h), so that
// also calls that the compiler makes are seen.
#define XPU_SIM_CALL extern "C" __attribute__((used, visibility("hidden"))) void*
#define XPU_SIM_PC __builtin_return_address(0)

using xpu_sim::rt::strict::load_range;
using xpu_sim::rt::strict::store_range;

XPU_SIM_CALL xpu_sim_memcpy(void* to, const void* from, size_t n) {
  load_range(static_cast<const char*>(from), n, XPU_SIM_PC);
  store_range(static_cast<char*>(to), n, XPU_SIM_PC);
  return std::memcpy(to, from, n);
}

XPU_SIM_CALL xpu_sim_memmove(void* to, const void* from, size_t n) {
  load_range(static_cast<const char*>(from), n, XPU_SIM_PC);
  store_range(static_cast<char*>(to), n, XPU_SIM_PC);
  return std::memmove(to, from, n);
}

XPU_SIM_CALL xpu_sim_memset(void* to, int value, size_t n) {
  store_range(static_cast<char*>(to), n, XPU_SIM_PC);
  return std::memset(to, value, n);
}

XPU_SIM_CALL xpu_sim_memchr(const void* in, int value, size_t n) {
  const void* const found = std::memchr(in, value, n);
  const char* const begin = static_cast<const char*>(in);
  load_range(begin, found ? static_cast<size_t>(static_cast<const char*>(found) - begin) + 1 : n, XPU_SIM_PC);
  return const_cast<void*>(found);
}

extern "C" __attribute__((used, visibility("hidden"))) int xpu_sim_memcmp(const void* a, const void* b, size_t n) {
  load_range(static_cast<const char*>(a), n, XPU_SIM_PC);
  load_range(static_cast<const char*>(b), n, XPU_SIM_PC);
  return std::memcmp(a, b, n);
}

extern "C" __attribute__((used, visibility("hidden"))) size_t xpu_sim_strlen(const char* text) {
  const size_t n = std::strlen(text);
  load_range(text, n + 1, XPU_SIM_PC);
  return n;
}

XPU_SIM_CALL xpu_sim_allocate_exception(size_t bytes) {
  using namespace xpu_sim::rt;
  const Core& core = *current();
  if (core.worker) trap(finding_at(Check::exception, core, XPU_SIM_PC, "the kernel throws; kernels cannot throw"));
  return abi::__cxa_allocate_exception(bytes);
}

// std::atomic and __atomic: -fsanitize=thread turns the operations into these calls. The device has no such atomics, so
// in a kernel they are loads and stores like others; host code in the same file may use them.
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
