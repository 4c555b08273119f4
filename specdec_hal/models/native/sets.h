// Instruction sets that the code is compiled for, slowest first: portable, AVX2, AVX-512. Each has bits of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specdec {

// Number of them that this machine has.
int64_t instruction_sets();

// An argument `set` as an index; a ValueError if this machine has fewer.
size_t checked_set(const char* function, int64_t set);

}  // namespace specdec
