// What the AddressSanitizer build adds, and what it uses of that library.
#pragma once

#include <cstddef>
#include <vector>

#include "../dma_queue.h"
#include "../worker.h"

extern "C" {
void __asan_poison_memory_region(const volatile void*, size_t);
void __asan_unpoison_memory_region(const volatile void*, size_t);
void* __asan_region_is_poisoned(void*, size_t);
const char* __asan_locate_address(void*, char*, size_t, void**, size_t*);
void __asan_report_error(void* pc, void* bp, void* sp, void* address, int write, size_t bytes, unsigned);
}

namespace xpu_sim::rt::asan {

struct State {
  std::vector<Copy> in_flight[kMaxCores];  // destinations in LM and SM are poisoned
};

// A forbidden access of the core's: at an instruction, or of a builtin at a source line.
void report_access(const Core& core, const char* address, size_t bytes, bool write, const void* pc, Site site);

}  // namespace xpu_sim::rt::asan
