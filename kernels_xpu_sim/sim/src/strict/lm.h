// One byte of shadow for each byte of LM; and where each piece of it was last stored to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../lm.h"
#include "../worker.h"

namespace xpu_sim::rt::strict {

constexpr size_t kVector = 64;  // bytes of the dialect's vectors

enum LmBits : uint8_t {
  kWritten = 1,      // since the core started
  kDestination = 2,  // of a copy in flight
  kSource = 4,       // of a copy in flight
  kStored = 8,       // by a store, since the last fence
  // Above LM lie the kernel's arguments, which are loaded, and beyond those nothing: stores, or all accesses, are
  // checked.
  kArgument = kWritten | kSource,
  kBeyond = kDestination | kSource,
  kWidths = 0xF0  // how many bytes were last written there at once: see width_bits
};

class LmShadow {
 public:
  LmShadow() : lowest_(kStacksPerWorker) {}

  static uint8_t* of(const void* address) {
    return reinterpret_cast<uint8_t*>(reinterpret_cast<uintptr_t>(address) - kShadowDistance);
  }

  // A core starts on the fiber: forgets what an earlier one did there. Gives the lowest byte that one may have used,
  // from where on the caller fills the stack with kUnused. LM ends at `top`.
  char* clear(const Fiber& fiber, const char* top);
  // The core used its stack down to `lowest`; `deeply`: and the runtime made findings on it, which takes much.
  void used(const Fiber& fiber, char* lowest, bool deeply);
  // Cores were left in the middle: nothing is known of what they used.
  void forget();

  // A fence of LM, where [from, high) is in use: no store is without a fence any more. Code without instrumentation,
  // such as the return of a structure, counts as well: where the filling is gone, something was written.
  void fence(char* from, char* high);
  // Was a part of the range written by such code since the last fence?
  bool written_unseen(const char* address, size_t bytes) const;

  // Is any aligned 4-byte word of the range unwritten?
  bool has_unwritten(const char* address, size_t bytes) const;
  // Calls f(first, bytes) for the pieces of the range that lie in unwritten words.
  template <class F>
  void each_unwritten(const char* address, size_t bytes, F f) const {
    char* at = const_cast<char*>(address);
    for (char* const end = at + bytes; at < end;) {
      char* const word = at - (reinterpret_cast<uintptr_t>(at) & 3);
      char* const stop = word + 4 < end ? word + 4 : end;
      if (untouched(word)) f(at, static_cast<size_t>(stop - at));
      at = stop;
    }
  }

  // Are all bytes of the range unwritten?
  bool all_unwritten(const char* address, size_t bytes) const;

 private:
  bool untouched(const char* word) const;
  std::vector<char*> lowest_;  // per fiber; nullptr: never used
};

// A store of so many bytes. What is written as a block counts as stores of 8, of another kind, and of less at its ends.
constexpr uint8_t kBlock8 = 0x80;
constexpr uint8_t width_bits(size_t bytes) { return bytes == 1 ? 0 : static_cast<uint8_t>(bytes << 3); }
constexpr size_t width_of(uint8_t shadow) {
  return (shadow & 0xC0) ? 8 : (shadow & 0x20) ? 4 : (shadow & 0x10) ? 2 : 1;
}

// The shadow of a block that begins at `address` becomes `bits`, and widths.
inline void write_block(uint8_t* shadow, uintptr_t address, size_t bytes, uint8_t bits) {
  const auto piece = [&](size_t width, uint8_t widths) {
    std::memset(shadow, bits | widths, width);
    shadow += width;
    address += width;
    bytes -= width;
  };
  for (size_t w = 1; w < 8 && address % 8 != 0; w *= 2) {
    if ((address & w) && bytes >= w) piece(w, width_bits(w));
  }
  if (bytes >= 8) piece(bytes & ~size_t{7}, kBlock8);
  if (bytes == 0) return;
  for (size_t w = 4; w > 0; w /= 2) {
    if (bytes >= w) piece(w, width_bits(w));
  }
}

// Not 0: the bytes of a word were last written by stores of different widths.
template <class W>
inline __attribute__((always_inline)) W mixed_widths(W shadow) {
  constexpr W kAll = static_cast<W>(0xF0F0F0F0F0F0F0F0ull), kNotLast = static_cast<W>(kAll >> 8);
  return static_cast<W>((shadow ^ static_cast<W>(shadow >> 8)) & kNotLast);
}
bool mixed_widths(const uint8_t* shadow, size_t bytes);
template <class W>
inline __attribute__((always_inline)) W shadow_word(const uint8_t* shadow) {
  W w;
  std::memcpy(&w, shadow, sizeof w);
  return w;
}
// Of a scalar, or of something longer.
inline bool mixed_scalar(const uint8_t* shadow, size_t bytes) {
  if (bytes == 4) return mixed_widths(shadow_word<uint32_t>(shadow));
  if (bytes == 8) return mixed_widths(shadow_word<uint64_t>(shadow));
  return mixed_widths(shadow, bytes);
}
inline void write_scalar(uint8_t* shadow, uintptr_t address, size_t bytes, uint8_t bits) {
  if (bytes == 4) {
    std::memset(shadow, bits | width_bits(4), 4);
  } else if (bytes == 8) {
    std::memset(shadow, bits | width_bits(8), 8);
  } else {
    write_block(shadow, address, bytes, bits);
  }
}

// Whole buffers of shadow at a time: 16 bytes, then what is left.
typedef uint8_t ShadowBlock __attribute__((vector_size(16)));

template <class F, class G>
inline void over_shadow(uint8_t* shadow, size_t bytes, F block, G byte) {
  size_t i = 0;
  for (; i + sizeof(ShadowBlock) <= bytes; i += sizeof(ShadowBlock)) {
    ShadowBlock b;
    std::memcpy(&b, shadow + i, sizeof b);
    block(b);
    std::memcpy(shadow + i, &b, sizeof b);
  }
  for (; i < bytes; ++i) byte(shadow[i]);
}

inline void set_bits(uint8_t* shadow, size_t bytes, uint8_t bits) {
  over_shadow(shadow, bytes, [bits](ShadowBlock& b) { b |= bits; }, [bits](uint8_t& b) { b |= bits; });
}
inline void clear_bits(uint8_t* shadow, size_t bytes, uint8_t bits) {
  const uint8_t kept = static_cast<uint8_t>(~bits);
  over_shadow(shadow, bytes, [kept](ShadowBlock& b) { b &= kept; }, [kept](uint8_t& b) { b &= kept; });
}

// f of the shadows of all bytes, bit by bit, from `none` on: two words at a time, then what is left.
template <class F>
inline uint8_t combined(const uint8_t* shadow, size_t bytes, uint8_t none, F f) {
  const uint64_t start = 0x0101010101010101ull * none;
  uint64_t words[2] = {start, start};
  uint64_t rest = start;
  size_t i = 0;
  for (; i + 16 <= bytes; i += 16) {
    uint64_t w[2];
    std::memcpy(w, shadow + i, sizeof w);
    words[0] = f(words[0], w[0]);
    words[1] = f(words[1], w[1]);
  }
  for (; i < bytes; ++i) rest = f(rest, uint64_t{shadow[i]});
  uint64_t w = f(words[0], words[1]);
  w = f(w, w >> 32);
  w = f(w, w >> 16);
  return static_cast<uint8_t>(f(rest, f(w, w >> 8)));
}
// The bits that some, or all, of the bytes have.
inline uint8_t any_bits(const uint8_t* shadow, size_t bytes) {
  return combined(shadow, bytes, 0, [](uint64_t a, uint64_t b) { return a | b; });
}
inline uint8_t all_bits(const uint8_t* shadow, size_t bytes) {
  return combined(shadow, bytes, 0xFF, [](uint64_t a, uint64_t b) { return a & b; });
}

// Where each piece of a core's LM was last stored to, for findings to name. What is newer in the same piece hides it.

constexpr size_t kStorePiece = 16;  // bytes
constexpr size_t kStorePieces = kGroupLmBytes / kStorePiece;  // a core has at most the LM of its group

inline const void*& store_at(const Core& core, const char* p) {
  return core.stores[reinterpret_cast<uintptr_t>(p) / kStorePiece % kStorePieces];
}

inline void note_stores(const Core& core, const char* p, size_t bytes, const void* pc) {
  if (bytes > kGroupLmBytes) bytes = kGroupLmBytes;
  for (size_t i = 0; i < bytes; i += kStorePiece) store_at(core, p + i) = pc;
  store_at(core, p + bytes - 1) = pc;
}

}  // namespace xpu_sim::rt::strict
