// GM of a launch; and GM that outlives launches: allocations with red zones, and memory of the caller's.
#include "gm.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "forks.h"
#include "xpu_sim/gm.h"

namespace xpu_sim::rt {

Span span_of(const GmSpan& given) {
  Span span;
  span.begin = reinterpret_cast<uintptr_t>(given.data);
  span.end = span.begin + given.bytes;
  span.name = given.name;
  span.element = std::max(1u, given.element);
  span.read_only = given.access == GmAccess::read_only;
  return span;
}

void GmTable::add(const Span& span, std::shared_ptr<const std::string> name) {
  if (name) names_.push_back(std::move(name));
  const auto at = std::upper_bound(spans_.begin(), spans_.end(), span.begin,
                                   [](uintptr_t begin, const Span& s) { return begin < s.begin; });
  size_t i = static_cast<size_t>(at - spans_.begin());
  spans_.insert(at, span);
  for (; i < spans_.size(); ++i) {
    spans_[i].reach = i ? std::max(spans_[i - 1].reach, spans_[i].end) : spans_[i].end;
  }
}

const Span* GmTable::find(uintptr_t address, size_t bytes) const {
  // Branch-free over the few spans of a launch.
  size_t low = 0;
  for (size_t n = spans_.size(); n > 0;) {
    const size_t half = (n + 1) / 2;
    low += spans_[low + half - 1].begin <= address ? half : 0;
    n -= half;
  }
  const Span* found = nullptr;
  for (size_t i = low; i-- > 0;) {
    const Span& s = spans_[i];
    if (s.reach < address + bytes) break;
    if (s.end < address + bytes) continue;
    found = &s;
    if (!s.read_only) break;
  }
  return found;
}

const Span* GmTable::nearest(uintptr_t address) const {
  const Span* best = nullptr;
  uintptr_t distance = 0;
  for (const Span& s : spans_) {
    const uintptr_t d = address < s.begin ? s.begin - address : address >= s.end ? address - s.end : 0;
    if (!best || d < distance) {
      best = &s;
      distance = d;
    }
  }
  return best;
}

}  // namespace xpu_sim::rt

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
}

namespace xpu_sim {

namespace {

constexpr unsigned char kRedZone = 0xFD, kFresh = 0xA5;
constexpr long long kZone = 64;  // bytes on either side, at least

struct Entry {
  std::shared_ptr<const std::string> name;
  rt::Span span;
  char* mapping = nullptr;  // allocated here; nullptr: the caller's
  size_t mapped = 0;
};

std::atomic<uint64_t> generation{1};

// The latest allocations that were freed: address space without memory, which no access goes unnoticed in.
std::deque<Entry>& freed() {
  static auto* const entries = new std::deque<Entry>;
  return *entries;
}
constexpr size_t kFreed = 256, kFreedBytes = size_t{1} << 40;

void retire(const Entry& entry) {
  static size_t held = 0;
  constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  if (mmap(entry.mapping, entry.mapped, PROT_NONE, kNothing, -1, 0) == MAP_FAILED) throw std::bad_alloc();
  freed().push_back(entry);
  held += entry.mapped;
  while (freed().size() > kFreed || held > kFreedBytes) {
    munmap(freed().front().mapping, freed().front().mapped);
    held -= freed().front().mapped;
    freed().pop_front();
  }
}

// Never destroyed: a program may free GM from destructors of its own globals. Under the lock, when first made too.
std::vector<Entry>& registry() {
  static auto* const entries = new std::vector<Entry>;
  return *entries;
}

size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

void add(const GmSpan& given, std::string name, char* mapping = nullptr, size_t mapped = 0) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::gm));
  Entry& e = registry().emplace_back();
  e.name = std::make_shared<std::string>(std::move(name));
  e.span = rt::span_of(given);
  e.span.name = e.name->c_str();
  e.mapping = mapping;
  e.mapped = mapped;
  ++generation;
}

// Erases the entry that is_it(entry) picks, after f(entry). Throws std::invalid_argument(complaint): there is none.
template <class P, class F>
void remove(P is_it, F f, const char* complaint) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::gm));
  std::vector<Entry>& entries = registry();
  const auto at = std::find_if(entries.begin(), entries.end(), is_it);
  if (at == entries.end()) throw std::invalid_argument(complaint);
  f(*at);
  entries.erase(at);
  ++generation;
}

}  // namespace

// The data ends at the end of a page, up to alignment, and a page without access follows: a loop that runs too far by
// more than the red zone stops at once.
void* gm_alloc_bytes(size_t bytes, const char* name, unsigned element, GmAccess access) {
  const size_t inner = (bytes + 2 * kZone + page() - 1) / page() * page();
  const size_t mapped = inner + 2 * page();
  void* const p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  char* const mapping = static_cast<char*>(p);
  mprotect(mapping, page(), PROT_NONE);
  mprotect(mapping + page() + inner, page(), PROT_NONE);
  char* const low = mapping + page();
  char* const data = low + (inner - kZone - bytes) / 64 * 64;
  std::memset(low, kRedZone, inner);
  std::memset(data, kFresh, bytes);
  if (__asan_poison_memory_region) {
    __asan_poison_memory_region(low, inner);
    __asan_unpoison_memory_region(data, bytes);
  }
  add({data, bytes, "", access, element}, name && *name ? name : "gm_alloc(" + std::to_string(bytes) + ")", mapping,
      mapped);
  return data;
}

void gm_free(void* p) {
  if (!p) return;
  remove([p](const Entry& e) { return e.mapping && e.span.begin == reinterpret_cast<uintptr_t>(p); },
         [](const Entry& e) {
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(e.mapping + page(), e.mapped - 2 * page());
    retire(e);
  }, "gm_free: expected an address from gm_alloc, got another");
}

void register_gm(const GmSpan& span) { add(span, span.name ? span.name : ""); }

void register_gm(const void* data, size_t bytes, const char* name) {
  GmSpan span;
  span.data = data;
  span.bytes = bytes;
  span.name = name;
  register_gm(span);
}

void unregister_gm(const void* data, size_t bytes) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  remove([&](const Entry& e) { return !e.mapping && e.span.begin == begin && e.span.bytes() == bytes; },
         [](const Entry&) {}, "unregister_gm: expected an address and size given to register_gm, got others");
}

size_t gm_room(const void* p) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  size_t room = 0;
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::gm));
  for (const Entry& e : registry()) {
    if (at >= e.span.begin && at < e.span.end) room = std::max<size_t>(room, e.span.end - at);
  }
  return room;
}

namespace rt {

std::string freed_gm(const void* p, long long* offset) {
  const char* const at = static_cast<const char*>(p);
  const std::lock_guard<std::mutex> lock(lock_of(Shared::gm));
  for (const Entry& e : freed()) {
    if (at < e.mapping || at >= e.mapping + e.mapped) continue;
    *offset = at - reinterpret_cast<const char*>(e.span.begin);
    return *e.name;
  }
  return "";
}

uint64_t registry_generation() { return generation.load(std::memory_order_acquire); }

uint64_t copy_registry(GmTable* table) {
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::gm));
  table->clear();
  for (const Entry& e : registry()) table->add(e.span, e.name);
  return generation.load();
}

std::vector<Damage> check_red_zones() {
  std::vector<Damage> damages;
  const std::lock_guard<std::mutex> lock(rt::lock_of(rt::Shared::gm));
  if (__asan_poison_memory_region) return damages;  // reported when it happens
  for (const Entry& e : registry()) {
    if (!e.mapping) continue;
    char* const data = reinterpret_cast<char*>(e.span.begin);
    const long long bytes = static_cast<long long>(e.span.bytes());
    for (const long long first : {-kZone, bytes}) {
      char* const zone = data + first;
      const char* const hit =
          std::find_if(zone, zone + kZone, [](char c) { return static_cast<unsigned char>(c) != kRedZone; });
      if (hit == zone + kZone) continue;
      damages.push_back({*e.name, e.span.bytes(), hit - data});
      std::memset(zone, kRedZone, kZone);  // reported once
    }
  }
  return damages;
}

}  // namespace rt
}  // namespace xpu_sim
