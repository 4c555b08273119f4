// Integer helpers: clamps, arithmetic that wraps at 64 bits as NumPy's does, and a slot's place in its history row.
#pragma once

#include "specdec/platform.h"

namespace specdec {

constexpr int64_t kInt32Max = 0x7FFFFFFF;
constexpr int64_t kInt64Max = 0x7FFFFFFFFFFFFFFF;

SPECDEC_HD int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
SPECDEC_HD int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

// x in [low, high]; `high` where the range is empty.
SPECDEC_HD int64_t clamp64(int64_t x, int64_t low, int64_t high) { return min64(max64(x, low), high); }

SPECDEC_HD int64_t wrap_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
SPECDEC_HD int64_t wrap_sub(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}
SPECDEC_HD int32_t wrap_add32(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

// a - b, or the nearest int64.
SPECDEC_HD int64_t saturating_sub(int64_t a, int64_t b) {
  const int64_t wrapped = wrap_sub(a, b);
  if ((a < 0) == (b < 0) || (wrapped < 0) == (a < 0)) return wrapped;
  return a < 0 ? -kInt64Max - 1 : kInt64Max;
}

// Columns of a row of `token_ids_all`: [0, prompt_end) the prompt, [prompt_end, end) the generated tokens. Inside the
// row for any input values.
struct History {
  int64_t prompt_end, end;
};

SPECDEC_HD History history_bounds(int64_t row_width, int64_t prompt_len, int64_t step_idx) {
  const int64_t prompt_end = clamp64(prompt_len, 0, row_width);
  return {prompt_end, prompt_end + clamp64(step_idx, 0, row_width - prompt_end)};
}

// Tokens of a history row, then drafts or tokens of this step.
struct SlotText {
  const int64_t *history, *drafts;
  int64_t end;  // of the history

  SPECDEC_HD int64_t operator[](int64_t i) const { return i < end ? history[i] : drafts[i - end]; }
};

}  // namespace specdec
