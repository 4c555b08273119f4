// Global memory: allocated here, or the caller's own.
#pragma once

#include <cstddef>
#include <type_traits>

#include "xpu_sim/options.h"

namespace xpu_sim {

// `bytes` of GM, 64-byte aligned, filled with 0xA5, between red zones that are checked after each launch. Throws
// std::bad_alloc. The host may write to what kernels may only read.
void* gm_alloc_bytes(size_t bytes, const char* name = "", unsigned element = 1, GmAccess access = GmAccess::read_write);

template <class T>
T* gm_alloc(size_t count, const char* name = "") {
  // A part of a structure may well be written.
  constexpr size_t element = std::is_scalar_v<T> ? sizeof(T) : alignof(T);
  return static_cast<T*>(gm_alloc_bytes(count * sizeof(T), name, static_cast<unsigned>(element)));
}

// nullptr is fine; what gm_alloc did not give is std::invalid_argument.
void gm_free(void* p);

// Lets kernels use the caller's memory, without copying, until unregister_gm with the same address and size. The same
// memory may be registered more than once, also in overlapping parts.
void register_gm(const GmSpan& span);
void register_gm(const void* data, size_t bytes, const char* name = "");
void unregister_gm(const void* data, size_t bytes);

// The bytes from p to the end of the GM that it is in, allocated or registered; 0: it is in none.
size_t gm_room(const void* p);

}  // namespace xpu_sim
