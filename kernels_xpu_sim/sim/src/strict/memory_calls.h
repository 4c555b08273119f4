// Slow paths of the hooks, and what kernels call in place of memcpy and its like.
#pragma once

#include <cstddef>

#include "../worker.h"

namespace xpu_sim::rt::strict {

void load_range(const char* p, size_t bytes, const void* pc);
void store_range(char* p, size_t bytes, const void* pc);

[[gnu::cold]] void lm_load_slow(Core& core, const char* p, size_t bytes, const void* pc);
[[gnu::cold]] void lm_store_slow(Core& core, const char* p, size_t bytes, const void* pc);
// A load where stores of different widths have written. At an instruction, or a copy's line.
[[gnu::cold]] void narrow_load(Core& core, const char* p, size_t bytes, const void* pc, Site site);
[[gnu::cold]] void unaligned(Core& core, const char* p, size_t bytes, const void* pc);

}  // namespace xpu_sim::rt::strict
