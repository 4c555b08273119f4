// The first elements of a row, in order.
#pragma once

#include "specdec/rows/row_threshold.h"

namespace specdec {

// Keys of a bucket, as a power of two, for a guess at where a row's largest elements are: 32 buckets an octave are
// right for logits of usual size, 4 for probabilities; for others they are only slower.
constexpr int kLogitShift = 18, kProbabilityShift = 21;

// A key that at least `want` elements reach, and seldom many more: as many lanes (read_row) do. kKeyNan: none is known.
template <class Shared>
SPECDEC_APART int32_t lane_floor(const Shared& s, int sets, int want, const KeyRange& range, const KeyGrid& grid) {
  Wide<uint32_t, kBuckets> count;
  for (int b = 0; b < kBuckets; ++b) count[b] = 0;
  for (int k = 0; k < sets; ++k) {
    Wide<float, kLanes> lane;
    lane.load(s.lane[k]);
    for (int j = 0; j < kLanes; ++j) count.at[grid.bucket(order_key(lane[j]))] += 1;
  }
  uint32_t reached = 0;
  for (int b = 0; b < kBuckets - 1; ++b) {
    reached += count[b];
    if (reached >= static_cast<uint32_t>(want)) return range.cell(grid, b).low;
  }
  return kKeyNan;
}

// Lists this rank's elements with keys from `low` on that `from` does not keep and `threshold` does. Their number over
// all ranks, or -1 if they do not fit. In every rank's sight.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART int list_above(Team& team, Row& row, Shared& s, int32_t low, Threshold from, Threshold threshold) {
  static_assert(kRoom <= kBuckets, "a rank's masses have room for its part");
  const int rank = team.rank(), ranks = team.size();
  const int64_t begin = int64_t{row.begin()} << kChunkBits;
  uint32_t own = 0;
  each_after<L>(row, s, {low, kKeyInf}, from, [&](int32_t key, int64_t id, float value) {
    if (!threshold.keeps(key, id)) return;
    if (own < kRoom) s.mass[rank][own] = static_cast<uint64_t>(id - begin) << 32 | f32_bits(value);
    ++own;
  });
  s.count[rank][0] = own;
  team.sync();
  uint64_t before = 0, size = 0;
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) before = size;
    size += s.count[r][0];
  }
  const bool fits = size <= kRoom;
  for (uint32_t i = 0; fits && i < own; ++i) {
    const uint64_t element = s.mass[rank][i];
    const float value = f32_from_bits(static_cast<uint32_t>(element));
    s.list_key[before + i] = order_key(value);
    s.list_id[before + i] = begin + static_cast<int64_t>(element >> 32);
    s.list_value[before + i] = value;
  }
  team.sync();
  return fits ? static_cast<int>(size) : -1;
}

// Puts this rank's elements of the list among the first `want` in order into s.sorted_value and s.sorted_id: every
// ranks-th from `rank` on. The list has up to N.
template <int N, class Shared>
SPECDEC_VECTOR void sort_list(Shared& s, int size, int rank, int ranks, int want) {
  Wide<int32_t, N> keys;
  keys.load(s.list_key, size);
  for (int i = rank; i < size; i += ranks) {
    // The elements that come before this one: the larger, and of equals the earlier.
    const int32_t key = keys[i];
    int32_t before = 0;
    for (int j = 0; j < N; ++j) {
      before += static_cast<int32_t>(keys[j] > key - static_cast<int32_t>(j < i)) & static_cast<int32_t>(j < size);
    }
    if (before < want) {
      s.sorted_value[before] = s.list_value[i];
      s.sorted_id[before] = s.list_id[i];
    }
  }
}

// Puts the `want` (1 .. kListed, and not more than there are) first elements after `from` into s.sorted_value and
// s.sorted_id, in order and in every rank's sight; returns the last of them. Without `from`, follows read_row.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART Threshold list_first(Team& team, Row& row, Shared& s, int32_t top, int shift, Threshold from, int want) {
  const int rank = team.rank(), ranks = team.size();
  const KeyRange range{-kKeyInf, from.key < top ? from.key : top};
  const KeyGrid grid{range.high, shift};
  int size = -1;
  if (from.key == keep_none().key) {
    if (rank == 0) s.floor = lane_floor(s, ranks * Shared::kSets, want, range, grid);
    team.sync();
    const int32_t floor = s.floor;
    if (floor != kKeyNan) size = list_above<L>(team, row, s, floor, from, keep_all());
  }
  if (size < 0) {
    Search search{Goal::kCount, static_cast<uint64_t>(want)};
    range_histogram<L>(team, row, s, range, grid, from, NoMass{});
    find_bucket(team, s, search);
    bucket_threshold<L>(team, row, s, search, range.cell(grid, search.bucket), from, NoMass{});
    size = list_above<L>(team, row, s, search.threshold.key, from, search.threshold);
  }
  if (size <= kListed) {
    sort_list<kListed>(s, size, rank, ranks, want);
  } else {
    sort_list<kRoom>(s, size, rank, ranks, want);
  }
  team.sync();
  return {order_key(s.sorted_value[want - 1]), s.sorted_id[want - 1]};
}

// After read_row, the first `count` elements in stretches: emit(at, n) on rank 0, with elements at .. at + n - 1 in
// s.sorted_value and s.sorted_id.
template <class L, class Team, class Row, class Shared, class Emit>
SPECDEC_HD void list_row(Team& team, Row& row, Shared& s, int32_t top, int shift, int64_t count, Emit emit) {
  Threshold threshold = keep_none();
  for (int64_t at = 0; at < count; at += kListed) {
    const int n = static_cast<int>(min64(count - at, kListed));
    threshold = list_first<L>(team, row, s, top, shift, threshold, n);
    if (team.rank() == 0) emit(at, n);
  }
}

}  // namespace specdec
