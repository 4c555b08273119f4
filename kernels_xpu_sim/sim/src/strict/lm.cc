#include "lm.h"

#include <cstring>

#include "../report.h"
#include "../worker.h"
#include "state.h"

namespace xpu_sim::rt::strict {

namespace {
constexpr size_t kPrepared = 64 * 1024;  // of a stack, when it is first used: twice what a core may use
constexpr size_t kRuntime = 2 * 1024;    // that the runtime's own calls may use below the kernel

// Of the bits `which`, has each of the 64 bytes just `bits`?
inline bool none_differs(const uint8_t* shadow, uint8_t bits, uint8_t which) {
  ShadowBlock differ = {};
#pragma GCC unroll 4
  for (size_t i = 0; i < 64; i += sizeof differ) {
    ShadowBlock b;
    std::memcpy(&b, shadow + i, sizeof b);
    differ |= b ^ bits;
  }
  differ &= which;
  uint64_t w[2];
  std::memcpy(w, &differ, sizeof w);
  return (w[0] | w[1]) == 0;
}

// Does the line of LM hold nothing but kUnused?
inline bool is_unused(const char* line) {
  uint64_t differ = 0;
#pragma GCC unroll 8
  for (size_t i = 0; i < 64; i += sizeof kUnused) {
    uint64_t word;
    std::memcpy(&word, line + i, sizeof word);
    differ |= word ^ kUnused;
  }
  return differ == 0;
}

}  // namespace

char* LmShadow::clear(const Fiber& fiber, const char* top) {
  char*& lowest = lowest_[static_cast<size_t>(fiber.index)];
  if (!lowest) std::memset(of(fiber.high), kBeyond, kAboveStack);
  char* from = lowest ? lowest : fiber.high - kPrepared;
  from -= reinterpret_cast<uintptr_t>(from) & 63;
  if (from < fiber.low) from = fiber.low;
  std::memset(of(from), 0, static_cast<size_t>(top - from));
  std::memset(of(top), kArgument, static_cast<size_t>(fiber.high - top));
  lowest = fiber.high;
  return from;
}

void LmShadow::used(const Fiber& fiber, char* lowest, bool deeply) {
  char*& known = lowest_[static_cast<size_t>(fiber.index)];
  lowest = deeply ? fiber.high - kPrepared : lowest - kRuntime;
  if (!known || lowest < known) known = lowest;
}

void LmShadow::forget() { lowest_.assign(lowest_.size(), nullptr); }

void LmShadow::fence(char* from, char* high) {
  typedef uint32_t Words __attribute__((vector_size(16)));  // wider ones are compared word by word
  constexpr uint32_t kLow = static_cast<uint32_t>(kUnused), kHigh = static_cast<uint32_t>(kUnused >> 32);
  constexpr Words kFilling = {kLow, kHigh, kLow, kHigh};
  constexpr uint32_t kAllWritten = 0x01010101u * kWritten, kNoStore = 0x01010101u * (0xFFu & ~kStored);
  from -= reinterpret_cast<uintptr_t>(from) & 63;
  uint8_t* shadow = of(from);
  for (const char* at = from; at < high; at += 64, shadow += 64) {
    // Most lines are written, and not by stores since the last fence: a tile that was copied in.
    if (none_differs(shadow, kWritten, kWritten | kStored)) continue;
    // Or they belong to an array that is in use in part.
    if (none_differs(shadow, 0, 0xFF) && is_unused(at)) continue;
#pragma GCC unroll 4
    for (size_t i = 0; i < 64; i += sizeof(Words)) {
      Words content, bits;
      std::memcpy(&content, at + i, sizeof content);
      std::memcpy(&bits, shadow + i, sizeof bits);
      bits = (bits & kNoStore) | (reinterpret_cast<Words>(content != kFilling) & kAllWritten);
      std::memcpy(shadow + i, &bits, sizeof bits);
    }
  }
}

bool mixed_widths(const uint8_t* shadow, size_t bytes) {
  uint8_t differ = 0;
  ShadowBlock blocks = {};
  size_t i = 1;
  for (; i + sizeof blocks <= bytes; i += sizeof blocks) {
    ShadowBlock a, b;
    std::memcpy(&a, shadow + i, sizeof a);
    std::memcpy(&b, shadow + i - 1, sizeof b);
    blocks |= a ^ b;
  }
  for (; i < bytes; ++i) differ |= shadow[i] ^ shadow[i - 1];
  blocks &= static_cast<uint8_t>(kWidths);
  uint64_t w[2];
  std::memcpy(w, &blocks, sizeof w);
  return (w[0] | w[1]) || (differ & kWidths);
}

bool LmShadow::written_unseen(const char* address, size_t bytes) const {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const char* const end = address + bytes;
  for (const char* word = address - (at & 3); word < end; word += 4) {
    uint32_t bits;
    std::memcpy(&bits, of(word), sizeof bits);
    if (!(bits & 0x01010101u) && !untouched(word)) return true;
  }
  return false;
}

// Words are compared as a whole: a single byte may have the value by chance.
bool LmShadow::untouched(const char* word) const {
  uint32_t bits, content, unused;
  std::memcpy(&bits, of(word), sizeof bits);
  std::memcpy(&content, word, sizeof content);
  std::memcpy(&unused, reinterpret_cast<const char*>(&kUnused) + (reinterpret_cast<uintptr_t>(word) & 4),
              sizeof unused);
  return !(bits & 0x01010101u) && content == unused;
}

bool LmShadow::has_unwritten(const char* address, size_t bytes) const {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const char* const end = address + bytes;
  for (const char* word = address - (at & 3); word < end; word += 4) {
    if (untouched(word)) return true;
  }
  return false;
}

bool LmShadow::all_unwritten(const char* address, size_t bytes) const {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const char* const end = address + bytes;
  for (const char* word = address - (at & 3); word < end; word += 4) {
    if (!untouched(word)) return false;
  }
  return true;
}

// What is wrong with a load or store in LM.

namespace {

const char* kind(bool write) { return write ? "write" : "read"; }

}  // namespace

void lm_finding(Core& core, Check check, const char* p, size_t bytes, bool write, const void* pc) {
  report_once(check, core, pc, [&] {
    Finding f = finding_at(check, core, pc,
                           text("%s of %zu bytes of LM that a copy in flight %s; fence first", kind(write), bytes,
                                write ? "uses" : "has yet to fill"),
                           p);
    const InFlight* const copy = copy_in_flight(*state_of(core), p, bytes);
    if (!copy) return f;
    f.other = text("%s_ASYNC of %zu bytes at %s:%d, no fence since", direction_name(copy->copy.direction),
                   copy->copy.bytes, copy->copy.site.file, copy->copy.site.line);
    return copy->decides ? depending(std::move(f), copy->decides) : f;
  });
}

void lm_load_slow(Core& core, const char* p, size_t bytes, const void* pc) {
  State& state = *state_of(core);
  uint8_t* const shadow = state.lm.of(p);
  if (any_bits(shadow, bytes) & kDestination) {
    lm_finding(core, Check::read_in_flight, p, bytes, false, pc);
  } else if (bytes <= 8 || bytes == kVector ? state.lm.has_unwritten(p, bytes) : state.lm.all_unwritten(p, bytes)) {
    unwritten_load(state, core, pc, [&] {
      const char* first = nullptr;
      size_t count = 0;
      state.lm.each_unwritten(p, bytes, [&](char* at, size_t n) {
        if (!first) first = at;
        count += n;
      });
      std::string message = text("read of %zu bytes of LM that nothing has written", bytes);
      if (count < bytes) message = text("read of %zu bytes of LM; nothing has written %zu of them", bytes, count);
      return finding_at(Check::uninitialised_read, core, pc, message, first);
    });
    if (__builtin_expect(pc == state.on_trial, 0))
      state.lm.each_unwritten(p, bytes, [&](char* at, size_t n) { try_other_value(state, at, n, pc); });
  }
  set_bits(shadow, bytes, kWritten);  // reported once; or written by code without instrumentation
}

// Back along what the same instruction stored to, to the object that it left.
void beyond_lm(Core& core, const char* p, size_t bytes, bool write, const void* pc) {
  const char* from = p;
  while (write && from - kStorePiece >= core.lm_low && from - p > -static_cast<long>(kGroupLmBytes)) {
    const char* const before = from - kStorePiece;
    if (before < core.lm_top && store_at(core, before) != pc) break;
    from = before;
  }
  Finding f = finding_at(Check::lm_object_overflow, core, pc,
                         text("%s of %zu bytes, %lld past the end of the core's LM", write ? "store" : "load", bytes,
                              static_cast<long long>(p + bytes - core.lm_top)));
  describe(&f, core, from < core.lm_top ? from : core.lm_top - 1);
  if (f.offset >= 0) f.offset += p - (from < core.lm_top ? from : core.lm_top - 1);
  trap(std::move(f));
}

// The launcher, which is compiled with the kernel, puts its arguments there.
void store_beyond_lm(Core& core, const char* p, size_t bytes, const void* pc) {
  static thread_local const void* launcher = nullptr;
  if (pc == launcher && p + bytes <= core.fiber->high) return;
  const Module* const module = core.launch->kernel->module;
  const Symbol* const function = module ? module->function_at(reinterpret_cast<uintptr_t>(pc) - 1) : nullptr;
  const bool own = function && function->name.find("xpu_sim") == std::string::npos;
  if (own || p + bytes > core.fiber->high) beyond_lm(core, p, bytes, true, pc);
  launcher = pc;
}

void lm_store_slow(Core& core, const char* p, size_t bytes, const void* pc) {
  lm_finding(core, Check::write_in_flight, p, bytes, true, pc);
}

void unaligned(Core& core, const char* p, size_t bytes, const void* pc) {
  trap_or_go_on(finding_at(Check::ld_st_unalign, core, pc,
                           text("access to %zu bytes at an address that is not a multiple of %zu", bytes, bytes), p));
}

}  // namespace xpu_sim::rt::strict
