#include "lm_shadow.h"

#include <sys/mman.h>

#include <new>

#include "../worker.h"

namespace xpu_sim::rt::strict {

namespace {
constexpr size_t kPrepared = 64 * 1024;  // of a stack, when it is first used: twice what a core may use
constexpr size_t kRuntime = 2 * 1024;    // that the runtime's own calls may use below the kernel
}

LmShadow::LmShadow(const Stacks& stacks) : low_(stacks.low()), bytes_(stacks.bytes()), lowest_(kMaxCores + 1) {
  void* const p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  shadow_ = static_cast<uint8_t*>(p);
}

LmShadow::~LmShadow() { munmap(shadow_, bytes_); }

char* LmShadow::clear(const Fiber& fiber) {
  char*& lowest = lowest_[static_cast<size_t>(fiber.index)];
  char* from = lowest ? lowest : fiber.high - kPrepared;
  from -= reinterpret_cast<uintptr_t>(from) & 63;
  if (from < fiber.low) from = fiber.low;
  std::memset(of(from), 0, static_cast<size_t>(fiber.high - from));
  lowest = fiber.high;
  return from;
}

void LmShadow::used(const Fiber& fiber, char* lowest, bool deeply) {
  char*& known = lowest_[static_cast<size_t>(fiber.index)];
  lowest = deeply ? fiber.high - kPrepared : lowest - kRuntime;
  if (!known || lowest < known) known = lowest;
}

void LmShadow::forget() { lowest_.assign(lowest_.size(), nullptr); }

// Words are compared as a whole: a single byte may have the value by chance.
bool LmShadow::untouched(const char* word) const {
  uint32_t bits, content, unused;
  std::memcpy(&bits, of(word), sizeof bits);
  std::memcpy(&content, word, sizeof content);
  std::memcpy(&unused, reinterpret_cast<const char*>(&kUnused) + (reinterpret_cast<uintptr_t>(word) & 4), sizeof unused);
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

}  // namespace xpu_sim::rt::strict
