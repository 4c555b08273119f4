// The functions that -fsanitize=thread calls before every load and store of a kernel. ThreadSanitizer's own library is not
// linked: these are ours, and they know cores instead of threads.
#include <cstdint>
#include <cstring>

#include "lm_shadow.h"
#include "memory_calls.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

constexpr uint64_t spread(uint8_t bits) { return 0x0101010101010101ull * bits; }

template <size_t N>
struct Word;
template <>
struct Word<1> { using type = uint8_t; };
template <>
struct Word<2> { using type = uint16_t; };
template <>
struct Word<4> { using type = uint32_t; };
template <>
struct Word<8> { using type = uint64_t; };

inline void note(Core* core, const char* p, const void* pc) {
  ++core->accesses;
  if (__builtin_expect(p < core->lm_low, 0)) {
    core->lm_low = const_cast<char*>(p);
    core->lm_pc = pc;
  }
}

// On a core's own stack, which is by far the most frequent, a load or store costs one look at the shadow.
template <size_t N>
inline __attribute__((always_inline)) void load(const char* p, const void* pc) {
  using W = typename Word<N>::type;
  Core* const core = current();
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - core->stack_begin;
  if (__builtin_expect(offset < core->stack_bytes, 1)) {
    note(core, p, pc);
    W bits;
    std::memcpy(&bits, core->stack_shadow + offset, N);
    constexpr W kLooked = static_cast<W>(spread(kWritten | kDestination)), kGood = static_cast<W>(spread(kWritten));
    if (__builtin_expect((bits & kLooked) != kGood, 0)) lm_load_slow(*core, p, N, pc);
    if (__builtin_expect(reinterpret_cast<uintptr_t>(p) & (N - 1), 0)) unaligned(*core, p, N, pc);
  } else if (core->stack_bytes) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(p) & (N - 1), 0)) unaligned(*core, p, N, pc);
    shared_access(*core, p, N, false, pc);
  }
}

template <size_t N>
inline __attribute__((always_inline)) void store(char* p, const void* pc) {
  using W = typename Word<N>::type;
  Core* const core = current();
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - core->stack_begin;
  if (__builtin_expect(offset < core->stack_bytes, 1)) {
    note(core, p, pc);
    W bits;
    std::memcpy(&bits, core->stack_shadow + offset, N);
    if (__builtin_expect(bits & static_cast<W>(spread(kDestination | kSource)), 0)) lm_store_slow(*core, p, N, pc);
    bits = static_cast<W>(bits | spread(kWritten | kStored));
    std::memcpy(core->stack_shadow + offset, &bits, N);
    if (__builtin_expect(reinterpret_cast<uintptr_t>(p) & (N - 1), 0)) unaligned(*core, p, N, pc);
  } else if (core->stack_bytes) {
    if (__builtin_expect(reinterpret_cast<uintptr_t>(p) & (N - 1), 0)) unaligned(*core, p, N, pc);
    shared_access(*core, p, N, true, pc);
  }
}

}  // namespace

void load_range(const char* p, size_t bytes, const void* pc) {
  Core* const core = current();
  if (!core->stack_bytes || bytes == 0) return;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - core->stack_begin;
  if (offset >= core->stack_bytes) return shared_access(*core, p, bytes, false, pc);
  note(core, p, pc);
  // A structure may have gaps, a vector unused lanes: it counts as uninitialised when all of it is.
  const uint8_t* const shadow = core->stack_shadow + offset;
  const uint8_t bits = any_bits(shadow, bytes);
  if (!(bits & kWritten) || (bits & kDestination)) lm_load_slow(*core, p, bytes, pc);
}

void store_range(char* p, size_t bytes, const void* pc) {
  Core* const core = current();
  if (!core->stack_bytes || bytes == 0) return;
  const uintptr_t offset = reinterpret_cast<uintptr_t>(p) - core->stack_begin;
  if (offset >= core->stack_bytes) return shared_access(*core, p, bytes, true, pc);
  note(core, p, pc);
  uint8_t* const shadow = core->stack_shadow + offset;
  if (any_bits(shadow, bytes) & (kDestination | kSource)) lm_store_slow(*core, p, bytes, pc);
  set_bits(shadow, bytes, kWritten | kStored);
}

}  // namespace xpu_sim::rt::strict

#define XPU_SIM_HOOK extern "C" __attribute__((used, visibility("hidden"))) void
#define XPU_SIM_PC __builtin_return_address(0)
#define XPU_SIM_HOOKS(N)                                                                                            \
  XPU_SIM_HOOK __tsan_read##N(void* p) { xpu_sim::rt::strict::load<N>(static_cast<const char*>(p), XPU_SIM_PC); }   \
  XPU_SIM_HOOK __tsan_write##N(void* p) { xpu_sim::rt::strict::store<N>(static_cast<char*>(p), XPU_SIM_PC); }

// The compiler knows that these are unaligned and a device's would take them apart: not an error.
#define XPU_SIM_RANGE_HOOKS(READ, WRITE, N)                                                                         \
  XPU_SIM_HOOK READ(void* p) { xpu_sim::rt::strict::load_range(static_cast<const char*>(p), N, XPU_SIM_PC); }       \
  XPU_SIM_HOOK WRITE(void* p) { xpu_sim::rt::strict::store_range(static_cast<char*>(p), N, XPU_SIM_PC); }

XPU_SIM_HOOKS(1)
XPU_SIM_HOOKS(2)
XPU_SIM_HOOKS(4)
XPU_SIM_HOOKS(8)
XPU_SIM_RANGE_HOOKS(__tsan_read16, __tsan_write16, 16)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read2, __tsan_unaligned_write2, 2)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read4, __tsan_unaligned_write4, 4)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read8, __tsan_unaligned_write8, 8)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read16, __tsan_unaligned_write16, 16)

XPU_SIM_HOOK __tsan_read_range(void* p, unsigned long bytes) {
  xpu_sim::rt::strict::load_range(static_cast<const char*>(p), bytes, XPU_SIM_PC);
}
XPU_SIM_HOOK __tsan_write_range(void* p, unsigned long bytes) {
  xpu_sim::rt::strict::store_range(static_cast<char*>(p), bytes, XPU_SIM_PC);
}
XPU_SIM_HOOK __tsan_vptr_update(void**, void*) {}
XPU_SIM_HOOK __tsan_vptr_read(void**) {}
XPU_SIM_HOOK __tsan_func_entry(void*) {}
XPU_SIM_HOOK __tsan_func_exit() {}
