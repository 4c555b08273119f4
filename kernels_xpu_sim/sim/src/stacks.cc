#include "stacks.h"

#include <sys/mman.h>

#include <mutex>
#include <stdexcept>
#include <vector>

#include "worker.h"

namespace xpu_sim::rt {

char* block_space = nullptr;
size_t block_space_bytes = 0;
Core nobody;

namespace {

// Address space for the blocks of this many workers. Reserved, not used.
constexpr size_t kMostWorkers = 64;

struct Space {
  std::mutex mutex;
  size_t share = 0;  // bytes of a worker
  bool taken[kMostWorkers] = {};
};

Space& space() {
  static Space* const s = new Space;
  return *s;
}

char* take_share(size_t bytes) {
  Space& s = space();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!block_space) {
    const size_t all = bytes * kMostWorkers;
    void* const p = mmap(nullptr, all + kBlockBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(p) + kBlockBytes - 1) & ~(kBlockBytes - 1);
    s.share = bytes;
    block_space_bytes = all;
    block_space = reinterpret_cast<char*>(aligned);
  }
  for (size_t i = 0; i < kMostWorkers; ++i) {
    if (s.taken[i]) continue;
    s.taken[i] = true;
    return block_space + i * s.share;
  }
  throw std::runtime_error("xpu_sim: expected at most 64 threads that launch kernels, got another; end one of them");
}

void give_back_share(char* low) {
  Space& s = space();
  const std::lock_guard<std::mutex> lock(s.mutex);
  madvise(low, s.share, MADV_DONTNEED);
  mprotect(low, s.share, PROT_NONE);
  s.taken[static_cast<size_t>(low - block_space) / s.share] = false;
}

}  // namespace

Stacks::Stacks(int most) : low_(take_share(kBlockBytes * static_cast<size_t>(most))), fibers_(static_cast<size_t>(most)) {
  for (int i = 0; i < most; ++i) {
    Fiber& f = fibers_[static_cast<size_t>(i)];
    char* const block = low_ + kBlockBytes * static_cast<size_t>(i);
    if (mprotect(block + kGuardBytes, kBlockBytes - kGuardBytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    f.index = i;
    f.low = block + kGuardBytes;
    // Stacks that end at the same offset in a page compete for the same cache sets: spread them.
    f.high = block + kBlockBytes - 64 - static_cast<size_t>(i % 16) * 256;
    *owner_slot(block) = &nobody;
  }
}

Stacks::~Stacks() { give_back_share(low_); }

Fiber* Stacks::owner(const void* address) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - low_);
  return offset < bytes() ? &fibers_[offset / kBlockBytes] : nullptr;
}

}  // namespace xpu_sim::rt
