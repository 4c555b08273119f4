// Masks of allowed tokens (contract, section 10): bits of neighbouring tokens, and the drafts that rows verify.
#pragma once

#include "specdec/integers.h"

namespace specdec {

// Tokens covered by a mask of `words` words.
SPECDEC_HD int64_t mask_size(int64_t vocab_size, int64_t words) {
  return min64(vocab_size, 32 * min64(words, vocab_size));
}

// The mask of an output row in `numbers`, -1 for none. There are `rows` output rows and `masks` masks.
template <typename Numbers>
SPECDEC_HD int64_t mask_of_row(Numbers& numbers, int64_t rows, int64_t masks, int64_t row) {
  if (row < 0 || row >= rows) return -1;
  const int64_t number = numbers[row];
  return number < 0 || number >= masks ? -1 : number;
}

// Word q of a mask of `size` tokens, without bits beyond them.
template <typename Words, typename Int>
SPECDEC_HD uint32_t mask_word(Words& words, Int size, Int q) {
  const Int left = size - 32 * q;
  if (q < 0 || left <= 0) return 0;
  const auto word = static_cast<uint32_t>(words[q]);
  return left >= 32 ? word : word & ((1u << left) - 1u);
}

template <typename Words>
SPECDEC_HD bool mask_allows(Words& words, int64_t size, int64_t token) {
  return token >= 0 && token < size && (mask_word(words, size, token / 32) >> (token % 32) & 1u) != 0;
}

// Bit i: whether the mask forbids token first + i, first >= -32.
template <typename Words, typename Int>
SPECDEC_HD uint32_t forbidden_tokens(Words& words, Int size, Int first) {
  const Int q = (first + 32) / 32 - 1, shift = (first + 32) % 32;
  uint32_t allowed = mask_word(words, size, q) >> shift;
  if (shift != 0) allowed |= mask_word(words, size, q + 1) << (32 - shift);
  return ~allowed;
}

// Bit i: whether a row of `width` columns has column first + i, first >= -32.
template <typename Int>
SPECDEC_HD uint32_t columns_of_row(Int first, Int width) {
  const Int left = width - first;
  if (left <= 0) return 0;
  const uint32_t inside = left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1u;
  return first >= 0 ? inside : first <= -32 ? 0 : inside & 0xFFFFFFFFu << -first;
}

// Drafts of a slot that rows verify, draft i by the slot's row i.
SPECDEC_HD int64_t verified_drafts(int32_t slt, int32_t enc, int64_t width) {
  return enc > 0 ? 0 : clamp64(slt, 1, max64(width, 1)) - 1;
}

}  // namespace specdec
