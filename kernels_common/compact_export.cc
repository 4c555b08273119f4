// The compact n-gram index on the host, for its tests.
#include <tvm/ffi/function.h>

#include "specdec/ngram_compact.h"
#include "specdec_ffi/operands.h"

namespace {

using specdec::ffi::Operands;
using specdec::ffi::TensorView;
using namespace specdec;

struct Table {
  uint64_t* entries;

  void load(uint32_t bucket, uint64_t (&words)[kCompactBucket]) const {
    for (int i = 0; i < kCompactBucket; ++i) words[i] = entries[int64_t{bucket} * kCompactBucket + i];
  }
  bool swap(int64_t at, uint64_t old, uint64_t next) const {
    if (entries[at] != old) return false;
    entries[at] = next;
    return true;
  }
};

int64_t compact_entries(int64_t row_width, int64_t min_size, int64_t max_size) {
  const CompactLayout layout(row_width, static_cast<int>(min_size), static_cast<int>(max_size));
  return int64_t{layout.buckets} * kCompactBucket;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(compact_entries, compact_entries)

// Enters the places in the order given. How many were entered before the index was spoilt.
int64_t compact_enter(TensorView entries, TensorView text, TensorView places, int64_t prompt_end, int64_t row_width,
                      int64_t min_size, int64_t max_size) {
  Operands op("compact_enter");
  const CompactLayout layout(row_width, static_cast<int>(min_size), static_cast<int>(max_size));
  Table table{op.data<uint64_t>("entries", entries, {int64_t{layout.buckets} * kCompactBucket})};
  const int64_t length = op.extent(text, 0), count = op.extent(places, 0);
  const auto* tokens = op.data<int64_t>("text", text, {length});
  const auto* order = op.data<int64_t>("places", places, {count});
  for (int64_t i = 0; i < count; ++i) {
    const bool entered = compact_insert(layout, table, tokens, static_cast<Place>(prompt_end),
                                        static_cast<Place>(length), static_cast<Place>(order[i]), layout.min_size);
    if (!entered) return i;
  }
  return count;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(compact_enter, compact_enter)

// found: size and place of the match of the text's end, as the index knows it.
void compact_search(TensorView entries, TensorView text, TensorView found, int64_t prompt_end, int64_t row_width,
                    int64_t min_size, int64_t max_size, int64_t match_policy) {
  Operands op("compact_search");
  const CompactLayout layout(row_width, static_cast<int>(min_size), static_cast<int>(max_size));
  const Table table{op.data<uint64_t>("entries", entries, {int64_t{layout.buckets} * kCompactBucket})};
  const int64_t length = op.extent(text, 0);
  const auto* tokens = op.data<int64_t>("text", text, {length});
  auto* out = op.data<int64_t>("found", found, {2});
  const auto policy = static_cast<MatchPolicy>(match_policy);
  const NgramQuery query(policy, layout.max_size, layout.min_size, prompt_end, length, false, tokens);
  NgramMatch best = no_match();
  for (int size = query.least; size <= query.most; ++size) {
    const CompactKey key = compact_query_key(layout, query, size);
    uint64_t words[kCompactBucket];
    table.load(key.bucket, words);
    const CompactBits bits(layout, words, key.label);
    const NgramMatch match =
        compact_look_up(layout, table, tokens, query, static_cast<Place>(length), size, key, words, bits);
    if (preferred(policy, match, best)) best = match;
  }
  out[0] = best.size;
  out[1] = best.after;
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(compact_search, compact_search)

}  // namespace
