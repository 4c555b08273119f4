#include "stacks.h"

#include <sys/mman.h>

#include <mutex>
#include <new>
#include <stdexcept>

#include "forks.h"
#include "memory_image.h"
#include "worker.h"

namespace xpu_sim::rt {

char* block_space = nullptr;
Core nobody;

namespace {

constexpr size_t kShare = kStacksPerWorker * kBlockBytes;  // of a worker

enum class Share : uint8_t { free, taken, left };  // left: by a thread of the process that this one was forked from
Share shares[kMostThreads];                        // guarded by the lock
thread_local char* own = nullptr;                  // this thread's

std::mutex& lock() { return lock_of(Shared::stacks); }

void clean(char* low) {
  madvise(low, kShare, MADV_DONTNEED);
  mprotect(low, kShare, PROT_NONE);
}

char* take_share() {
  const std::lock_guard<std::mutex> guard(lock());
  if (!block_space) {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const p = mmap(nullptr, kBlockSpaceBytes + kBlockBytes, PROT_NONE, kFlags, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    const uintptr_t aligned = (reinterpret_cast<uintptr_t>(p) + kBlockBytes - 1) & ~(kBlockBytes - 1);
    block_space = reinterpret_cast<char*>(aligned);
  }
  for (size_t i = 0; i < kMostThreads; ++i) {
    if (shares[i] == Share::taken) continue;
    if (shares[i] == Share::left) clean(block_space + i * kShare);
    shares[i] = Share::taken;
    return own = block_space + i * kShare;
  }
  throw std::runtime_error("xpu_sim: expected at most 64 threads that launch kernels, got another; end one of them");
}

void give_back_share(char* low) {
  const std::lock_guard<std::mutex> guard(lock());
  clean(low);
  shares[static_cast<size_t>(low - block_space) / kShare] = Share::free;
  own = nullptr;
}

void make_usable(char* begin) {
  constexpr size_t kPage = 64 * 1024;  // the largest there are
  char* const first = begin - (reinterpret_cast<uintptr_t>(begin) & (kPage - 1));
  const size_t bytes = kStackBytes + (first == begin ? 0 : kPage);
  if (mprotect(first, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

}  // namespace

void keep_only_own_stacks() {
  for (size_t i = 0; i < kMostThreads; ++i) {
    if (shares[i] == Share::taken && block_space + i * kShare != own) shares[i] = Share::left;
  }
}

Stacks::Stacks() : low_(take_share()), fibers_(kStacksPerWorker) {
  for (int i = 0; i < kStacksPerWorker; ++i) {
    Fiber& f = fibers_[static_cast<size_t>(i)];
    char* const block = low_ + kBlockBytes * static_cast<size_t>(i);
    f.index = i;
    f.low = block + kBlockBytes - kStackBytes;
    make_usable(f.low);
    make_usable(f.low - kShadowDistance);
    // Stacks that end at the same offset in a page compete for the same cache sets: spread them.
    f.high = block + kBlockBytes - 64 - static_cast<size_t>(i % 16) * 256;
    *owner_slot(block) = &nobody;
  }
  forget_stacks(this);  // frames of threads that a fork has left behind
}

Stacks::~Stacks() { give_back_share(low_); }

Fiber* Stacks::owner(const void* address) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - low_);
  return offset < bytes() ? &fibers_[offset / kBlockBytes] : nullptr;
}

}  // namespace xpu_sim::rt
