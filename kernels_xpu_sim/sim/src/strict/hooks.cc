// The functions that -fsanitize=thread calls before every load and store of a kernel. ThreadSanitizer's own library is
// not linked: these are ours, and they know cores instead of threads.
//
// By far the most accesses are good ones to the core's own stack. Those take one look at the shadow; all others leave
// for a function of their own, by a jump, so that its frame shows the kernel as its caller.
#include <cstdint>
#include <cstring>

#include "lm.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {

constexpr uint64_t spread(uint8_t bits) { return 0x0101010101010101ull * bits; }

template <size_t N>
struct Word;
template <>
struct Word<1> {
  using type = uint8_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<8> {
  using type = uint64_t;
};

// Kernels run on the stacks of cores only; what the host runs of the same file is not looked at.
inline bool in_kernel(const void* sp) {
  return __builtin_expect(static_cast<size_t>(static_cast<const char*>(sp) - block_space) < kBlockSpaceBytes, 1);
}

inline bool on_own_stack(const void* p, const void* sp) {
  return __builtin_expect((reinterpret_cast<uintptr_t>(p) ^ reinterpret_cast<uintptr_t>(sp)) < kBlockBytes, 1);
}

inline bool is_aligned(const void* p, size_t n) {
  return __builtin_expect((reinterpret_cast<uintptr_t>(p) & (n - 1)) == 0, 1);
}

// Both at once: the bits that must not be set are moved to the top. In a hook the stack pointer is a multiple of 8.
template <size_t N>
inline bool aligned_on_own_stack(const void* p, const void* sp) {
  const uintptr_t x = reinterpret_cast<uintptr_t>(p) ^ reinterpret_cast<uintptr_t>(sp);
  constexpr int kShift = N == 8 ? 3 : N == 4 ? 2 : N == 2 ? 1 : 0;
  const uintptr_t turned = kShift == 0 ? x : x >> kShift | x << (64 - kShift);
  return __builtin_expect(turned < kBlockBytes >> kShift, 1);
}

// LM in use: what was stored to.
inline void note(Core* core, const char* p, const void* pc) {
  ++core->accesses;
  if (__builtin_expect(p < core->lm_low, 0)) {
    core->lm_low = const_cast<char*>(p);
    core->lm_at = pc;
  }
}

template <size_t N>
[[gnu::noinline]] void load_otherwise(const char* p) {
  const void* const pc = __builtin_return_address(0);
  Core* const core = current();
  if (!core->checked) return;
  if (!is_aligned(p, N)) unaligned(*core, p, N, pc);
  if (!on_own_stack(p, core->fiber->low)) return shared_access(*core, p, N, false, pc);
  if (p + N > core->fiber->high) beyond_lm(*core, p, N, false, pc);
  note(core, p, pc);
  typename Word<N>::type bits;
  std::memcpy(&bits, LmShadow::of(p), N);
  if (mixed_widths(bits)) narrow_load(*core, p, N, pc, pc);
  lm_load_slow(*core, p, N, pc);
}

template <size_t N>
[[gnu::noinline]] void store_otherwise(char* p) {
  const void* const pc = __builtin_return_address(0);
  Core* const core = current();
  if (!core->checked) return;
  if (!is_aligned(p, N)) unaligned(*core, p, N, pc);
  if (!on_own_stack(p, core->fiber->low)) return shared_access(*core, p, N, true, pc);
  if (p + N > core->lm_top) return store_beyond_lm(*core, p, N, pc);
  note(core, p, pc);
  store_at(*core, p) = pc;
  uint8_t* const shadow = LmShadow::of(p);
  const uint8_t in_flight = any_bits(shadow, N) & (kDestination | kSource);
  if (in_flight) {
    lm_store_slow(*core, p, N, pc);
  } else {
    state_of(*core)->narrow_writes.note(p, pc);
  }
  std::memset(shadow, in_flight | kWritten | kStored | width_bits(N), N);
}

template <size_t N>
inline __attribute__((always_inline)) void load(const char* p) {
  using W = typename Word<N>::type;
  constexpr W kLooked = static_cast<W>(spread(kWritten | kDestination)), kGood = static_cast<W>(spread(kWritten));
  const void* const sp = stack_pointer();
  if (!in_kernel(sp)) return;
  if (!aligned_on_own_stack<N>(p, sp)) return load_otherwise<N>(p);
  W bits;
  std::memcpy(&bits, LmShadow::of(p), N);
  if (__builtin_expect(((bits & kLooked) ^ kGood) | mixed_widths(bits), 0)) return load_otherwise<N>(p);
  ++(*owner_slot(sp))->accesses;
}

template <size_t N>
inline __attribute__((always_inline)) void store(char* p, const void* pc) {
  using W = typename Word<N>::type;
  const void* const sp = stack_pointer();
  if (!in_kernel(sp)) return;
  if (!aligned_on_own_stack<N>(p, sp)) return store_otherwise<N>(p);
  uint8_t* const shadow = LmShadow::of(p);
  W bits;
  std::memcpy(&bits, shadow, N);
  // An int into an int64_t may be narrow: only later is it known. Whose line it was is kept.
  constexpr uint8_t kLooked = kDestination | kSource | (N == 4 ? width_bits(8) : 0);
  if (__builtin_expect(bits & static_cast<W>(spread(kLooked)), 0)) return store_otherwise<N>(p);
  bits = static_cast<W>(spread(kWritten | kStored | width_bits(N)));  // it has no others
  std::memcpy(shadow, &bits, N);
  Core* const core = *owner_slot(sp);
  note(core, p, pc);
  store_at(*core, p) = pc;
}

// Vectors, the compiler's own of 16 bytes and the dialect's: a device would take the former apart, so that alignment is
// no matter. Those may have gaps or unused lanes, hence count as uninitialised only when all of one is.
template <size_t N>
inline __attribute__((always_inline)) void load_block(const char* p, const void* pc) {
  const void* const sp = stack_pointer();
  if (!in_kernel(sp)) return;
  if (!on_own_stack(p, sp)) return load_range(p, N, pc);
  uint64_t w[N / 8], any = 0, all = ~uint64_t{0};
  std::memcpy(w, LmShadow::of(p), N);
  for (const uint64_t bits : w) any |= bits, all &= bits;
  const bool written = N == kVector ? !(~all & spread(kWritten)) : (any & spread(kWritten)) != 0;
  if (__builtin_expect((any & spread(kDestination)) || !written, 0)) return load_range(p, N, pc);
  ++(*owner_slot(sp))->accesses;
}

template <size_t N>
inline __attribute__((always_inline)) void store_block(char* p, const void* pc) {
  const void* const sp = stack_pointer();
  if (!in_kernel(sp)) return;
  if (!on_own_stack(p, sp)) return store_range(p, N, pc);
  uint64_t w[N / 8], any = 0;
  std::memcpy(w, LmShadow::of(p), N);
  for (const uint64_t bits : w) any |= bits;
  if (__builtin_expect(any & spread(kDestination | kSource), 0)) return store_range(p, N, pc);
  std::memset(LmShadow::of(p), kWritten | kStored | kBlock8, N);
  Core* const core = *owner_slot(sp);
  note(core, p, pc);
  note_stores(*core, p, N, pc);
}

}  // namespace

void load_range(const char* p, size_t bytes, const void* pc) {
  Core* const core = current();
  if (!core->checked || bytes == 0) return;
  if (!on_own_stack(p, core->fiber->low)) return shared_access(*core, p, bytes, false, pc);
  if (p + bytes > core->fiber->high) beyond_lm(*core, p, bytes, false, pc);
  note(core, p, pc);
  // A structure may have gaps: it counts as uninitialised when all of it is. Lanes of the dialect's vectors may be
  // unused: whether those matter is tried.
  const uint8_t* const shadow = LmShadow::of(p);
  const uint8_t bits = any_bits(shadow, bytes);
  const uint8_t written = bytes == kVector ? all_bits(shadow, bytes) : bits;
  if (!(written & kWritten) || (bits & kDestination)) lm_load_slow(*core, p, bytes, pc);
}

void store_range(char* p, size_t bytes, const void* pc) {
  Core* const core = current();
  if (!core->checked || bytes == 0) return;
  if (!on_own_stack(p, core->fiber->low)) return shared_access(*core, p, bytes, true, pc);
  if (p + bytes > core->lm_top) return store_beyond_lm(*core, p, bytes, pc);
  note(core, p, pc);
  note_stores(*core, p, bytes, pc);
  uint8_t* const shadow = LmShadow::of(p);
  const uint8_t in_flight = any_bits(shadow, bytes) & (kDestination | kSource);
  if (in_flight) lm_store_slow(*core, p, bytes, pc);
  if (bytes < 8) state_of(*core)->narrow_writes.note(p, pc);
  write_block(shadow, reinterpret_cast<uintptr_t>(p), bytes, in_flight | kWritten | kStored);
}

}  // namespace xpu_sim::rt::strict

#define XPU_SIM_HOOK extern "C" __attribute__((used, visibility("hidden"))) void
#define XPU_SIM_PC __builtin_return_address(0)
#define XPU_SIM_HOOKS(N)                                                                              \
  XPU_SIM_HOOK __tsan_read##N(void* p) { xpu_sim::rt::strict::load<N>(static_cast<const char*>(p)); } \
  XPU_SIM_HOOK __tsan_write##N(void* p) { xpu_sim::rt::strict::store<N>(static_cast<char*>(p), XPU_SIM_PC); }

// The compiler knows that these are unaligned and a device's would take them apart: not an error.
#define XPU_SIM_RANGE_HOOKS(READ, WRITE, N)                                                                   \
  XPU_SIM_HOOK READ(void* p) { xpu_sim::rt::strict::load_range(static_cast<const char*>(p), N, XPU_SIM_PC); } \
  XPU_SIM_HOOK WRITE(void* p) { xpu_sim::rt::strict::store_range(static_cast<char*>(p), N, XPU_SIM_PC); }

#define XPU_SIM_VECTOR_HOOKS(READ, WRITE)                                                                      \
  XPU_SIM_HOOK READ(void* p) { xpu_sim::rt::strict::load_block<16>(static_cast<const char*>(p), XPU_SIM_PC); } \
  XPU_SIM_HOOK WRITE(void* p) { xpu_sim::rt::strict::store_block<16>(static_cast<char*>(p), XPU_SIM_PC); }

XPU_SIM_HOOKS(1)
XPU_SIM_HOOKS(2)
XPU_SIM_HOOKS(4)
XPU_SIM_HOOKS(8)
XPU_SIM_VECTOR_HOOKS(__tsan_read16, __tsan_write16)
XPU_SIM_VECTOR_HOOKS(__tsan_unaligned_read16, __tsan_unaligned_write16)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read2, __tsan_unaligned_write2, 2)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read4, __tsan_unaligned_write4, 4)
XPU_SIM_RANGE_HOOKS(__tsan_unaligned_read8, __tsan_unaligned_write8, 8)

XPU_SIM_HOOK __tsan_read_range(void* p, unsigned long bytes) {
  if (bytes == xpu_sim::rt::strict::kVector) {
    return xpu_sim::rt::strict::load_block<64>(static_cast<const char*>(p), XPU_SIM_PC);
  }
  xpu_sim::rt::strict::load_range(static_cast<const char*>(p), bytes, XPU_SIM_PC);
}
XPU_SIM_HOOK __tsan_write_range(void* p, unsigned long bytes) {
  if (bytes == xpu_sim::rt::strict::kVector) {
    return xpu_sim::rt::strict::store_block<64>(static_cast<char*>(p), XPU_SIM_PC);
  }
  xpu_sim::rt::strict::store_range(static_cast<char*>(p), bytes, XPU_SIM_PC);
}
XPU_SIM_HOOK __tsan_vptr_update(void**, void*) {}
XPU_SIM_HOOK __tsan_vptr_read(void**) {}
XPU_SIM_HOOK __tsan_func_entry(void*) {}
XPU_SIM_HOOK __tsan_func_exit() {}
