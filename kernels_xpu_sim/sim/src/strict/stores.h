// Where each piece of a core's LM was last stored to, for findings to name. What is newer in the same piece hides it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../worker.h"

namespace xpu_sim::rt::strict {

constexpr size_t kStorePiece = 16;                            // bytes
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
