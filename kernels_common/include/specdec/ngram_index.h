// An n-gram index of one slot: what a query is followed by, found without reading the history. The twin of
// backends/reference/ngram_index.py, which explains it, word for word: a row is a header (tokens seen, 3 unused words),
// then an open-addressing hash table.
#pragma once

#include "specdec/integers.h"
#include "specdec/ngram.h"

namespace specdec {

struct NgramIndexHeader {
  int32_t seen;
  int32_t unused[3];
};

// A continuation is the column of the token after the n-gram; 0: none.
struct NgramEntry {
  int32_t size;  // 0: the entry is free
  int32_t in_prompt, in_generated;  // first ones
  int32_t latest;
};

SPECDEC_HD int64_t ngram_index_capacity(int64_t row_width, int min_size, int max_size) {
  const int64_t entries = max64(row_width * (max_size - min_size + 1), 1);
  int64_t capacity = 1;
  while (capacity < 2 * entries) capacity *= 2;
  return capacity;
}

SPECDEC_HD int64_t ngram_index_bytes(int64_t row_width, int min_size, int max_size) {
  return static_cast<int64_t>(sizeof(NgramIndexHeader)) +
         static_cast<int64_t>(sizeof(NgramEntry)) * ngram_index_capacity(row_width, min_size, max_size);
}

// FNV-1a over the tokens text[start, start + size) and their number.
template <typename Text>
SPECDEC_HD uint64_t ngram_hash(Text& text, int64_t start, int size) {
  uint64_t value = 0xCBF29CE484222325u ^ static_cast<uint64_t>(size);
  for (int64_t i = start; i < start + size; ++i) value = (value ^ static_cast<uint64_t>(text[i])) * 0x100000001B3u;
  return value ^ (value >> 29);
}

// Whether the n-gram at `start` is the one that ends before column `after` of text[0, length). A negative `after`,
// which only a spoilt index has, counts from the end, as Python slices do.
template <typename Text>
SPECDEC_HD bool ngram_ends_before(Text& text, int64_t length, int64_t after, int64_t start, int size) {
  const int64_t from = after < size ? 0 : after - size, stop = after < 0 ? length + after : after;
  if (stop > length || stop - from != size) return false;
  for (int j = 0; j < size; ++j) {
    if (text[from + j] != text[start + j]) return false;
  }
  return true;
}

// The entry of the n-gram text[start, start + size), or the free one where it belongs; `length` tokens are indexed.
// `table.load(i)` reads an entry, `table.capacity` is a power of two.
template <typename Table, typename Text>
SPECDEC_HD int64_t ngram_index_find(Table& table, Text& text, int64_t length, int64_t start, int size,
                                    NgramEntry* entry) {
  const int64_t mask = table.capacity - 1;
  int64_t at = static_cast<int64_t>(ngram_hash(text, start, size)) & mask;
  for (int64_t probe = 0; probe < table.capacity; ++probe) {
    *entry = table.load(at);
    if (entry->size == 0) return at;
    if (entry->size == size && ngram_ends_before(text, length, entry->latest, start, size)) return at;
    at = (at + 1) & mask;
  }
  *entry = table.load(at);
  return at;
}

// Enter every n-gram that has got a following token since `seen`; the caller then stores `length` as seen.
template <typename Table, typename Text>
SPECDEC_HD void ngram_index_extend(Table& table, Text& text, int32_t seen, int64_t prompt_end, int64_t length,
                                   int min_size, int max_size) {
  for (int64_t after = max64(clamp64(seen, 0, length), 1); after < length; ++after) {
    for (int size = min_size; size <= max_size && size <= after; ++size) {
      const int64_t start = after - size;
      NgramEntry entry;
      const int64_t at = ngram_index_find(table, text, length, start, size, &entry);
      entry.size = size;
      entry.latest = static_cast<int32_t>(after);
      if (after < prompt_end && entry.in_prompt == 0) entry.in_prompt = entry.latest;
      if (start >= prompt_end && entry.in_generated == 0) entry.in_generated = entry.latest;
      table.store(at, entry);
    }
  }
}

// The match of the text's last `size` tokens, which lies inside its haystack whatever the index holds. The first
// `length` tokens of the text are indexed; those beyond (MTP drafts) are looked at.
template <typename Table, typename Text>
SPECDEC_HD NgramMatch ngram_index_match(Table& table, Text& text, MatchPolicy policy, int64_t prompt_end,
                                        int64_t length, int64_t text_end, int size) {
  const int64_t start = text_end - size;
  int64_t first_beyond = 0, last_beyond = 0;
  for (int64_t after = max64(length, size); after < text_end; ++after) {
    if (!ngram_ends_before(text, text_end, after, start, size)) continue;
    if (first_beyond == 0 && after - size >= prompt_end) first_beyond = after;
    last_beyond = after;
  }
  NgramEntry entry;
  ngram_index_find(table, text, length, start, size, &entry);
  if (entry.size != size) entry = {0, 0, 0, 0};
  int64_t after;
  if (policy == MatchPolicy::kLatest) {
    after = last_beyond != 0 ? last_beyond : entry.latest;
    after = after < text_end ? after : 0;
  } else if (entry.in_prompt > 0 && entry.in_prompt < prompt_end) {
    after = entry.in_prompt;
  } else {
    const bool inside = entry.in_generated > prompt_end && entry.in_generated < text_end;
    after = inside ? entry.in_generated : first_beyond;
  }
  if (after <= 0) return no_match();
  return {size, after};
}

// The longest match that the index knows.
template <typename Table, typename Text>
SPECDEC_HD NgramMatch ngram_index_search(Table& table, Text& text, const NgramQuery& query, int64_t length) {
  NgramMatch match = no_match();
  for (int size = query.most; size >= query.least && match.size == 0; --size) {
    match = ngram_index_match(table, text, query.policy, query.prompt_end, length, query.text_end, size);
  }
  return match;
}

}  // namespace specdec
