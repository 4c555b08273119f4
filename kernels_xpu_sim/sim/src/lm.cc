#include "lm.h"

#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <stdexcept>

#include "forks.h"
#include "report.h"
#include "worker.h"
#include "xpu_sim/kernel/qualifiers.h"

namespace xpu_sim::rt {

char* block_space = nullptr;
Core nobody;

namespace {

constexpr size_t kShare = kStacksPerWorker * kBlockBytes;  // of a worker

enum class Share : uint8_t { free, taken, left };  // left: by a thread of the process that this one was forked from
Share shares[kMaxThreads];                        // guarded by the lock
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
  for (size_t i = 0; i < kMaxThreads; ++i) {
    if (shares[i] == Share::taken) continue;
    if (shares[i] == Share::left) clean(block_space + i * kShare);
    shares[i] = Share::taken;
    return own = block_space + i * kShare;
  }
  throw std::runtime_error("xpu_sim: at most 64 threads may launch kernels; end one of them first");
}

void give_back_share(char* low) {
  const std::lock_guard<std::mutex> guard(lock());
  clean(low);
  shares[static_cast<size_t>(low - block_space) / kShare] = Share::free;
  own = nullptr;
}

// The pages of so many bytes.
void make_usable(char* begin, size_t bytes) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) & ~(kPageBytes - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(begin) + bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  if (mprotect(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
}

}  // namespace

void keep_only_own_stacks() {
  for (size_t i = 0; i < kMaxThreads; ++i) {
    if (shares[i] == Share::taken && block_space + i * kShare != own) shares[i] = Share::left;
  }
}

Stacks::Stacks() : low_(take_share()), fibers_(kStacksPerWorker) {
  for (int i = 0; i < kStacksPerWorker; ++i) {
    Fiber& f = fibers_[static_cast<size_t>(i)];
    char* const block = low_ + kBlockBytes * static_cast<size_t>(i);
    f.index = i;
    char* const top = block + kBlockBytes - kAboveStack;
    f.low = top - kStackBytes;
    make_usable(f.low, kStackBytes);
    // Also of what lies just below the stack: there the access itself shall fault.
    make_usable(f.low - kShadowDistance - kUpperGuardBytes, kUpperGuardBytes + kStackBytes + kAboveStack);
    make_usable(block + kBlockBytes - kPageBytes, kPageBytes);
    // Stacks that end at the same offset in a page compete for the same cache sets: spread them.
    f.high = top - 64 - static_cast<size_t>(i % 16) * 256;
    *owner_slot(block) = &nobody;
  }
  forget_stacks(this);  // frames of threads that a fork has left
}

Stacks::~Stacks() { give_back_share(low_); }

Fiber* Stacks::owner(const void* address) {
  const size_t offset = static_cast<size_t>(static_cast<const char*>(address) - low_);
  return offset < bytes() ? &fibers_[offset / kBlockBytes] : nullptr;
}

}  // namespace xpu_sim::rt

extern "C" {
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
}

namespace xpu_sim::rt {

void poison_lm(Core* core) {
  // Called on the stack that it fills, hence the distance to what is in use.
  constexpr size_t kInUse = 512;
  char* const top = static_cast<char*>(__builtin_frame_address(0)) - kInUse;
  raw_fill(top - core->launch->lm_limit, static_cast<unsigned char>(core->launch->options->poison),
           core->launch->lm_limit);
}

void poison_sm(Worker& worker) {
  const Options& options = *worker.launch()->options;
  for (const Symbol* object : worker.launch()->kernel->sm_objects) {
    raw_fill(worker.sm() + object->begin, static_cast<unsigned char>(options.poison), object->bytes);
  }
}

void forget_stacks(Stacks* stacks) {
  // AddressSanitizer would take the frames that were left for live ones.
  if (__asan_unpoison_memory_region) {
    for (int i = 0; i <= kFaultStack; ++i) {
      const Fiber& f = *stacks->fiber(i);
      __asan_unpoison_memory_region(f.low, static_cast<size_t>(f.high - f.low));
    }
  }
}

namespace {

void complain(const Core& core, const std::string& message, const char* flag = nullptr) {
  if (core.launch->lm_reported.exchange(true)) return;
  Finding f = finding_at(Check::lm_budget, core, core.lm_at, message);
  report(Check::lm_budget, core, flag ? depending(std::move(f), flag) : std::move(f));
}

// Objects of a loop, or of calls one after the other, may have had the same memory.
size_t group_shared_bytes(const Core& core) {
  auto ranges = core.group_shared;
  std::sort(ranges.begin(), ranges.end());
  size_t bytes = 0;
  char* end = nullptr;
  for (const auto& [first, last] : ranges) {
    if (last <= end) continue;
    bytes += static_cast<size_t>(last - std::max(first, end));
    end = last;
  }
  return bytes;
}

}  // namespace

void check_lm(const Core& core, size_t used) {
  const size_t all = core.launch->lm_limit;
  if (used > all) {
    return complain(core, text("%zu bytes of LM in use, call stack included; a core has %zu", used, all));
  }
  const size_t shared = group_shared_bytes(core), stack = used - shared;
  const size_t most = static_cast<size_t>(core.launch->options->model.gsm_stack_bytes);
  if (stack <= most && shared <= all - most) return;
  complain(core,
           text("%zu bytes of group-shared memory and %zu of other LM in use, call stack included; with 16 cores "
                "the limits are %zu and %zu",
                shared, stack, all - most, most),
           "gsm_stack_bytes");
}

}  // namespace xpu_sim::rt

namespace xpu_sim::detail {

using namespace xpu_sim::rt;

void group_shared_was_used(char* object, size_t bytes) {
  Core* const core = current();
  if (!core->worker || core->launch->options->model.gsm_stack_bytes == 0 || core->launch->cores != kGroups) return;
  if (bytes > kGroupLmBytes) return;  // of a size that the compiler does not know
  core->lm_low = std::min(core->lm_low, object);
  const std::pair<char*, char*> range(object, object + bytes);
  auto& known = core->group_shared;
  if (std::find(known.begin(), known.end(), range) == known.end()) known.push_back(range);
}

}  // namespace xpu_sim::detail
