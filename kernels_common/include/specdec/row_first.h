// The first elements of a row, in order.
#pragma once

#include "specdec/row_select.h"

namespace specdec {

struct NoMass {
  SPECDEC_HD uint64_t operator()(float) const { return 0; }
};

// Counts of a rank's elements by bucket.
template <class L, class Shared>
struct CountVisitor {
  Shared& s;
  int rank;
  KeyGrid grid;

  struct Work {
    KeyGrid grid;
    Wide<uint32_t, kBuckets> count;

    SPECDEC_HD explicit Work(const CountVisitor& v) : grid(v.grid) {
      for (int b = 0; b < kBuckets; ++b) count[b] = 0;
    }
    SPECDEC_HD bool chunk(const Chunk& value, int64_t, int n) {
      Wide<int32_t, kChunk> bucket;
      int32_t all = kBuckets - 1;
      for (int j = 0; j < kChunk; ++j) bucket[j] = grid.bucket(order_key(value[j]));
      for (int j = 0; j < kChunk; ++j) all &= bucket[j];
      if (all == kBuckets - 1) {
        count[kBuckets - 1] += static_cast<uint32_t>(n);
      } else {
        for (int j = 0; j < n; ++j) count.at[bucket[j]] += 1;
      }
      return true;
    }
    SPECDEC_HD void finish(CountVisitor& v) const {
      for (int b = 0; b < kBuckets; b += kBlock) {
        Wide<uint32_t, kBlock> sum;
        sum.load(v.s.count[1][v.rank] + b);
        for (int j = 0; j < kBlock; ++j) sum[j] += count[b + j];
        sum.store(v.s.count[1][v.rank] + b);
      }
    }
  };

  SPECDEC_HD CountVisitor(Shared& shared, int team_rank, const KeyGrid& of) : s(shared), rank(team_rank), grid(of) {
    clear_histogram(s, 1, rank);
    s.above[rank] = 0;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// A guess at where a row's largest logits are: 32 buckets an octave are right for logits of usual size, and only slower
// for others.
SPECDEC_HD KeyGrid logit_grid(int32_t top) { return {top, 18}; }

// Puts this rank's elements of the list among the first `want` in order into s.sorted_value and s.sorted_id: every
// ranks-th from `rank` on. The list has up to N.
template <int N, class Shared>
SPECDEC_VECTOR void sort_list(Shared& s, int rank, int ranks, int want) {
  Wide<int32_t, N> keys;
  const int size = s.list_size;
  keys.load(s.list_key, size);
  for (int i = rank; i < size; i += ranks) {
    // The elements that come before this one: the larger, and of equals the earlier.
    const int32_t key = keys[i];
    int32_t place = 0;
    for (int j = 0; j < N; ++j) {
      place += static_cast<int32_t>(keys[j] > key - static_cast<int32_t>(j < i)) & static_cast<int32_t>(j < size);
    }
    if (place < want) {
      s.sorted_value[place] = s.list_value[i];
      s.sorted_id[place] = s.list_id[i];
    }
  }
}

// The elements from a key on, kept at this rank's own place as offset << 32 | float, as many as it has room for.
template <class L, class Shared>
struct FloorVisitor {
  Shared& s;
  int rank;
  int32_t floor;
  int64_t begin;
  uint32_t count;

  SPECDEC_HD KeyRange wanted() const { return {floor, kKeyInf}; }
  SPECDEC_HD void element(int32_t, int64_t id, float value) {
    if (count < kRoom) s.mass[1][rank][count] = static_cast<uint64_t>(id - begin) << 32 | f32_bits(value);
    ++count;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count_of_tile) {
    visit_wanted<L>(*this, x, first, count_of_tile);
    return true;
  }
};

// A key that at least `want` elements reach, and seldom many more: as many lanes do. kKeyNan: none is known.
template <class Shared>
SPECDEC_APART int32_t lane_floor(const Shared& s, int ranks, int want, KeyGrid grid) {
  Wide<uint32_t, kBuckets> count;
  for (int b = 0; b < kBuckets; ++b) count[b] = 0;
  for (int r = 0; r < ranks; ++r) {
    Wide<float, kLanes> lane;
    lane.load(s.lane[r]);
    for (int j = 0; j < kLanes; ++j) count.at[grid.bucket(order_key(lane[j]))] += 1;
  }
  uint32_t reached = 0;
  for (int b = 0; b < kBuckets - 1; ++b) {
    reached += count[b];
    if (reached >= static_cast<uint32_t>(want)) return KeyRange{-kKeyInf, kKeyInf}.cell(grid, b).low;
  }
  return kKeyNan;
}

// Lists the elements from such a key on, in one look at the row, whose lanes row_top has found. False on all ranks if
// none is known, or there are too many.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART bool list_from_floor(Team& team, Row& row, Shared& s, int want, KeyGrid grid) {
  static_assert(kRoom <= kBuckets, "a rank's masses have room for its part");
  const int rank = team.rank(), ranks = team.size();
  if (rank == 0) s.floor = lane_floor(s, ranks, want, grid);
  team.sync();
  const int32_t floor = s.floor;
  if (floor == kKeyNan) return false;
  FloorVisitor<L, Shared> v{s, rank, floor, rank_begin(row.size(), rank, ranks), 0};
  row.visit(v);
  s.above[rank] = v.count;
  team.sync();
  uint64_t before = 0, size = 0;
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) before = size;
    size += s.above[r];
  }
  const bool fits = size <= kRoom;
  for (uint32_t i = 0; fits && i < v.count; ++i) {
    const uint64_t element = s.mass[1][rank][i];
    const float value = f32_from_bits(static_cast<uint32_t>(element));
    s.list_key[before + i] = order_key(value);
    s.list_id[before + i] = v.begin + static_cast<int64_t>(element >> 32);
    s.list_value[before + i] = value;
  }
  if (fits && rank == 0) s.list_size = static_cast<int>(size);
  team.sync();
  return fits;
}

// Lists the `want` first elements behind `from` and perhaps others, by histograms; `grid` is a guess at where they are.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART void list_by_counts(Team& team, Row& row, Shared& s, Cut from, int want, KeyGrid grid) {
  const KeyRange everything{-kKeyInf, kKeyInf};
  const int rank = team.rank();
  if (from.key == keep_none().key) {
    CountVisitor<L, Shared> v(s, rank, grid);
    row.visit(v);
    sum_histograms(team, s, 1);
  } else {
    range_histogram<L>(team, row, s, 1, everything, grid, from, NoMass{}, true);
  }
  if (rank == 0) {
    Search& search = s.search;
    search.goal = Goal::kCount;
    search.need = static_cast<uint64_t>(want);
    search.above = {0, 0};
    search.range = everything.cell(grid, find_bucket(s, 1, search));
    plan_search(search, kListed - search.above.count);
  }
  team.sync();
  narrow<L>(team, row, s, from, NoMass{}, true);

  // Everything above the range is listed, and either all of the range or as many of its equal elements as are missing.
  const Search& search = s.search;
  const int bucket = search.bucket;
  uint32_t own_above = s.above[rank];
  for (int b = 0; b < bucket; ++b) own_above += s.count[1][rank][b];
  s.above[rank] = own_above;
  team.sync();
  uint64_t above = 0, inside = 0;
  for (int r = 0; r < rank; ++r) {
    above += s.above[r];
    inside += s.count[1][r][bucket];
  }
  const uint64_t quota = search.next == Search::kList ? search.inside.count : search.need - search.above.count;
  const uint64_t before = inside < quota ? inside : quota;
  if (own_above > 0 || (s.count[1][rank][bucket] > 0 && before < quota)) {
    const int64_t ties = search.next == Search::kList ? kListed : static_cast<int64_t>(quota - before);
    ListVisitor<L, NoMass, Shared> v{s,        {search.range.low, kKeyInf},          from,
                                     NoMass{}, static_cast<int64_t>(above + before), ties};
    row.visit(v);
  }
  if (rank == 0) s.list_size = static_cast<int>(search.above.count + quota);
  team.sync();
}

// Puts the `want` (1 .. kListed, and not more than there are) first elements behind `from` into s.sorted_value and
// s.sorted_id, in order and in every rank's sight; returns the last of them. `grid` is a guess at where they are.
// Without `from`, follows row_top.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART Cut list_first(Team& team, Row& row, Shared& s, Cut from, int want, KeyGrid grid) {
  if (from.key != keep_none().key || !list_from_floor<L>(team, row, s, want, grid)) {
    list_by_counts<L>(team, row, s, from, want, grid);
  }
  if (s.list_size <= kListed) {
    sort_list<kListed>(s, team.rank(), team.size(), want);
  } else {
    sort_list<kRoom>(s, team.rank(), team.size(), want);
  }
  team.sync();
  return {order_key(s.sorted_value[want - 1]), s.sorted_id[want - 1]};
}

}  // namespace specdec
