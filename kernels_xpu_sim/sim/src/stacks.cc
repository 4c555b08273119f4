#include "stacks.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace xpu_sim::rt {

Stacks::Stacks(int most) : bytes_(kStride * static_cast<size_t>(most)), fibers_(static_cast<size_t>(most)) {
  void* const p = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  arena_ = static_cast<char*>(p);
  for (int i = 0; i < most; ++i) {
    Fiber& f = fibers_[static_cast<size_t>(i)];
    char* const usable = arena_ + kStride * static_cast<size_t>(i) + kGuard;
    if (mprotect(usable, kUsable, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    f.index = i;
    f.low = usable;
    // Stacks that end at the same offset in a page compete for the same cache sets: spread them.
    f.high = usable + kUsable - static_cast<size_t>(i % 16) * 256;
  }
}

Stacks::~Stacks() { munmap(arena_, bytes_); }

Fiber* Stacks::owner(const void* address) {
  const uintptr_t offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(arena_);
  return offset < bytes_ ? &fibers_[offset / kStride] : nullptr;
}

}  // namespace xpu_sim::rt
