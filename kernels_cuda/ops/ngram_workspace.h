// Sizes for callers that allocate an n-gram index.
#pragma once

#include <cstdint>

namespace specdec::cuda {

// Of an index and of its rows: they are read and written in units of so many bytes.
constexpr int64_t kIndexAlignment = 16;

// A row of an index that keeps nothing: histories are searched instead.
constexpr int64_t kNoIndexBytes = kIndexAlignment;

}  // namespace specdec::cuda
