// memcpy and its like, for kernels: the kernel header gives these names to the assembler (kernel/strict.h), so that
// also calls that the compiler makes are seen.
#include "memory_calls.h"

#include <cxxabi.h>

#include <cstring>

#include "../trap.h"

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
