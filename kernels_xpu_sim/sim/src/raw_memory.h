// Copying and filling that AddressSanitizer does not see: the DMA engine may write where kernels may not.
#pragma once

#include <cstddef>
#include <cstring>

extern "C" {
__attribute__((weak)) void __asan_init();
}

namespace xpu_sim::rt {

inline void raw_copy(void* to, const void* from, size_t bytes) {
  if (!__asan_init) {
    std::memcpy(to, from, bytes);
    return;
  }
#if defined(__x86_64__)
  __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  volatile char* const out = static_cast<volatile char*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<const char*>(from)[i];
#endif
}

inline void raw_fill(void* to, unsigned char value, size_t bytes) {
  if (!__asan_init) {
    std::memset(to, value, bytes);
    return;
  }
#if defined(__x86_64__)
  __asm__ volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
#else
  volatile char* const out = static_cast<volatile char*>(to);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(value);
#endif
}

}  // namespace xpu_sim::rt
