// The first elements of a row, in order.
#pragma once

#include "specdec/row_select.h"

namespace specdec {

struct NoMass {
  SPECDEC_HD uint64_t operator()(float) const { return 0; }
};

// Counts of a rank's elements by bucket, in two tables by turns, so that additions wait less for each other.
template <class L, class Shared>
struct CountVisitor {
  Shared& s;
  int rank;
  KeyGrid grid;
  uint32_t odd[kBuckets];

  SPECDEC_HD CountVisitor(Shared& shared, int team_rank, const KeyGrid& of) : s(shared), rank(team_rank), grid(of) {
    for (int b = 0; b < kBuckets; ++b) s.count[1][rank][b] = odd[b] = 0;
  }
  SPECDEC_HD void finish() {
    for (int b = 0; b < kBuckets; ++b) s.count[1][rank][b] += odd[b];
    for (int b = 0; b < kBuckets; ++b) s.mass[1][rank][b] = 0;
    s.above[rank] = 0;
  }
  SPECDEC_HD bool chunk(const float* value, int64_t, int n) {
    int32_t bucket[kChunk];
    int32_t all = kBuckets - 1;
    for (int j = 0; j < kChunk; ++j) bucket[j] = grid.bucket(order_key(value[j]));
    for (int j = 0; j < kChunk; ++j) all &= bucket[j];
    uint32_t* even = s.count[1][rank];
    if (all == kBuckets - 1) {
      even[kBuckets - 1] += static_cast<uint32_t>(n);
      return true;
    }
    for (int j = 0; j < n - 1; j += 2) {
      even[bucket[j]] += 1;
      odd[bucket[j + 1]] += 1;
    }
    if (n % 2 != 0) even[bucket[n - 1]] += 1;
    return true;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// A guess at where a row's largest logits are: 32 buckets an octave are right for logits of usual size, and only slower
// for others.
SPECDEC_HD KeyGrid logit_grid(int32_t top) { return {top, 18}; }

// Puts the `want` (1 .. kListed, and not more than there are) first elements behind `from` into s.sorted_value and
// s.sorted_id, in order and in every rank's sight; returns the last of them. `grid` is a guess at where they are.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART Cut list_first(Team& team, Row& row, Shared& s, Cut from, int want, KeyGrid grid) {
  const KeyRange everything{-kKeyInf, kKeyInf};
  const int rank = team.rank();
  if (from.key == keep_none().key) {
    CountVisitor<L, Shared> v(s, rank, grid);
    row.visit(v);
    v.finish();
    sum_histograms(team, s, 1);
  } else {
    range_histogram<L>(team, row, s, 1, everything, grid, from, NoMass{}, true);
  }
  if (rank == 0) {
    Search& search = s.search;
    search.goal = Goal::kCount;
    search.need = static_cast<uint64_t>(want);
    search.above = {0, 0};
    search.range.set(everything.cell(grid, find_bucket(s, 1, search)));
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
    ListVisitor<L, NoMass, Shared> v{s,        {search.range.low, kKeyInf}, from, NoMass{},
                                     static_cast<int64_t>(above + before), ties};
    row.visit(v);
  }
  if (rank == 0) s.list_size = static_cast<int>(search.above.count + quota);
  team.sync();
  const int ranks = team.size();
  for (int i = rank; i < s.list_size; i += ranks) {
    const int place = list_place(s, i);
    if (place < want) {
      s.sorted_value[place] = s.list_value[i];
      s.sorted_id[place] = s.list_id[i];
    }
  }
  team.sync();
  return {order_key(s.sorted_value[want - 1]), s.sorted_id[want - 1]};
}

}  // namespace specdec
