// Finding where the order (value descending, id ascending) of a row is to be cut, without sorting: histograms of counts
// and integer masses over ranges of keys that become narrower, then a short list. Exact, since nothing is rounded.
//
// A row is shared by the ranks of a team (cores of a cluster, threads of a block, 1 on a host). Rank r owns the r-th of
// consecutive ranges of ids. What every function here takes:
//   Team    rank(), size(); sync(): what all ranks stored in Shared before is seen by all ranks after.
//   Row     size(); visit(v): v.tile(bits, first_id, count) for the rank's own range, in order, until it returns false.
//   Shared  a RowShared<most ranks>, one per team.
// All ranks call the same functions in the same order, and all get the same result.
#pragma once

#include "specdec/integers.h"
#include "specdec/mass.h"
#include "specdec/row_floats.h"

namespace specdec {

constexpr int kBuckets = 128;
constexpr int kListed = 64;  // elements of the short list
constexpr int kChunk = 32;   // elements looked at together: enough for loops to become vector code

// A cut in the order of a row: kept are all larger keys, and of those equal the ids up to `id`.
struct Cut {
  int32_t key;
  int64_t id;

  SPECDEC_HD bool keeps(int32_t other, int64_t other_id) const {
    return other > key || (other == key && other_id <= id);
  }
};
SPECDEC_HD Cut keep_none() { return {kKeyNan, -1}; }  // of a row without NaN
SPECDEC_HD Cut keep_all() { return {-kKeyNan, 0}; }

// Keys in buckets of 2^shift, from `top` down; the outer buckets take what lies beyond.
struct KeyGrid {
  int32_t top;
  int shift;

  SPECDEC_HD int bucket(int32_t key) const {
    if (key >= top) return 0;
    const uint32_t b = (static_cast<uint32_t>(top) - static_cast<uint32_t>(key)) >> shift;
    return b < kBuckets ? static_cast<int>(b) : kBuckets - 1;
  }
};

// Inclusive range of keys.
struct KeyRange {
  int32_t low, high;

  SPECDEC_HD bool has(int32_t key) const { return key >= low && key <= high; }

  // The part of this range in one bucket of a grid.
  SPECDEC_HD KeyRange cell(const KeyGrid& grid, int bucket) const {
    const int64_t first = int64_t{grid.top} - (int64_t{bucket} << grid.shift);
    const int64_t last = first - (int64_t{1} << grid.shift) + 1;
    return {bucket == kBuckets - 1 ? low : static_cast<int32_t>(max64(last, low)),
            bucket == 0 ? high : static_cast<int32_t>(min64(first, high))};
  }

  // The finest grid that covers this range.
  SPECDEC_HD KeyGrid grid() const {
    const uint32_t width = static_cast<uint32_t>(high) - static_cast<uint32_t>(low);
    int shift = 0;
    while (width >> shift >= static_cast<uint32_t>(kBuckets)) ++shift;
    return {high, shift};
  }
};

// What a cut is to reach, counted from the top of the order.
enum class Goal : int { kCount = 0, kMass = 1 };

struct Weight {
  uint64_t count, mass;

  SPECDEC_HD uint64_t of(Goal goal) const { return goal == Goal::kCount ? count : mass; }
  SPECDEC_HD Weight plus(Weight other) const { return {count + other.count, mass + other.mass}; }
};

// A search for the shortest beginning of the order that reaches `need` (1 or more, and not more than there is).
struct Search {
  enum Next : int { kNarrow, kList, kTies };

  Goal goal;
  uint64_t need;
  KeyRange range;  // the cut is in here
  KeyGrid grid;    // for the next histogram
  Weight above;    // of the elements above `range`
  Weight inside;   // of the elements in `range`
  int set, bucket;  // where the counts of `range` by rank are: see RowShared::count
  Next next;
  Cut cut;         // the result
  Weight kept;     // and the weight of what it keeps
};

template <int Ranks>
struct RowShared {
  static constexpr int kRanks = Ranks;

  // Histograms of each rank, and their sums. Set 0 is the first of a row, which stays; set 1 the later ones.
  uint32_t count[2][Ranks][kBuckets];
  uint64_t mass[Ranks][kBuckets];
  Weight sum[2][kBuckets];
  uint32_t above[Ranks];  // elements above a histogram's range (top lists only)
  Search search;

  // The short list, by ascending id, and a part of it in the row's order.
  int32_t list_key[kListed];
  float list_value[kListed];
  int64_t list_id[kListed];
  uint64_t list_mass[kListed];
  float sorted_value[kListed];
  int64_t sorted_id[kListed];
  int list_size;

  // One value of each rank; two sets in turns, so that one sync a reduction is enough.
  int32_t rank_key[2][Ranks];
  int64_t rank_id[2][Ranks];
  uint64_t rank_mass[2][Ranks];
  uint64_t rank_count[2][Ranks];
  float chosen[2];
};

// The ids [begin, end) that a rank owns.
SPECDEC_HD int64_t rank_begin(int64_t size, int rank, int ranks) {
  const int64_t chunks = (size + kChunk - 1) / kChunk;
  const int64_t share = chunks / ranks, more = chunks % ranks;
  return min64((share * rank + min64(rank, more)) * kChunk, size);
}

// The keys of a whole chunk, and whether any is in a range.
template <class L>
SPECDEC_HD bool chunk_keys(const typename L::Bits* x, KeyRange range, int32_t* keys) {
  int32_t hits = 0;
  for (int j = 0; j < kChunk; ++j) keys[j] = order_key(L::widen(x[j]));
  for (int j = 0; j < kChunk; ++j) {
    hits |= static_cast<int32_t>(keys[j] >= range.low) & static_cast<int32_t>(keys[j] <= range.high);
  }
  return hits != 0;
}

// Calls v.element(key, id, value) for every element whose key is in v.wanted(), which may shrink on the way. Most
// chunks have none.
template <class L, class Visitor>
SPECDEC_HD void visit_wanted(Visitor& v, const typename L::Bits* x, int64_t first, int count) {
  int i = 0;
  for (; i + kChunk <= count; i += kChunk) {
    int32_t keys[kChunk];
    if (!chunk_keys<L>(x + i, v.wanted(), keys)) continue;
    for (int j = 0; j < kChunk; ++j) {
      if (v.wanted().has(keys[j])) v.element(keys[j], first + i + j, L::widen(x[i + j]));
    }
  }
  for (; i < count; ++i) {
    const float value = L::widen(x[i]);
    const int32_t key = order_key(value);
    if (v.wanted().has(key)) v.element(key, first + i, value);
  }
}

// The largest key of a row and its first id.
struct TopElement {
  int32_t key;
  int64_t id;
};

template <class L>
struct TopVisitor {
  TopElement best{-kKeyNan, 0};

  SPECDEC_HD KeyRange wanted() const { return {best.key == kKeyNan ? kKeyNan : best.key + 1, kKeyNan}; }
  SPECDEC_HD void element(int32_t key, int64_t id, float) { best = {key, id}; }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    visit_wanted<L>(*this, x, first, count);
    return best.key != kKeyNan;
  }
};

template <class L, class Team, class Row, class Shared>
SPECDEC_HD TopElement row_top(Team& team, Row& row, Shared& s, int turn) {
  TopVisitor<L> own;
  row.visit(own);
  s.rank_key[turn][team.rank()] = own.best.key;
  s.rank_id[turn][team.rank()] = own.best.id;
  team.sync();
  TopElement best{-kKeyNan, 0};
  for (int r = 0; r < team.size(); ++r) {
    if (s.rank_key[turn][r] > best.key) best = {s.rank_key[turn][r], s.rank_id[turn][r]};
  }
  return best;
}

template <class Shared>
SPECDEC_HD void clear_histogram(Shared& s, int set, int rank) {
  for (int b = 0; b < kBuckets; ++b) s.count[set][rank][b] = 0;
  for (int b = 0; b < kBuckets; ++b) s.mass[rank][b] = 0;
}

// Adds up the ranks' histograms of a set; in every rank's sight afterwards.
template <class Team, class Shared>
SPECDEC_HD void sum_histograms(Team& team, Shared& s, int set) {
  team.sync();
  for (int b = team.rank(); b < kBuckets; b += team.size()) {
    Weight total{0, 0};
    for (int r = 0; r < team.size(); ++r) total = total.plus({s.count[set][r][b], s.mass[r][b]});
    s.sum[set][b] = total;
  }
  team.sync();
}

// The first bucket in which the search reaches its goal; adds what lies above to search.above.
template <class Shared>
SPECDEC_HD int find_bucket(const Shared& s, int set, Search& search) {
  int b = 0;
  for (; b < kBuckets - 1; ++b) {
    const Weight beyond = search.above.plus(s.sum[set][b]);
    if (beyond.of(search.goal) >= search.need) break;
    search.above = beyond;
  }
  search.set = set;
  search.bucket = b;
  search.inside = s.sum[set][b];
  return b;
}

// How to go on with search.range, of which `most` elements can be listed.
SPECDEC_HD void plan_search(Search& search, uint64_t most) {
  search.next = search.inside.count <= most                 ? Search::kList
                : search.range.low == search.range.high     ? Search::kTies
                                                            : Search::kNarrow;
  search.grid = search.range.grid();
}

// Histogram of the elements in a range and behind `from`, and if asked the number of those above the range; `MassOf`
// gives an element's mass.
template <class L, class MassOf, class Shared>
struct RangeVisitor {
  Shared& s;
  int set, rank;
  KeyRange range;
  KeyGrid grid;
  Cut from;
  MassOf mass_of;
  bool counts_above;
  uint32_t above;

  SPECDEC_HD KeyRange wanted() const { return {range.low, counts_above ? kKeyInf : range.high}; }
  SPECDEC_HD void element(int32_t key, int64_t id, float value) {
    if (from.keeps(key, id)) return;
    if (key > range.high) {
      ++above;
      return;
    }
    const int b = grid.bucket(key);
    s.count[set][rank][b] += 1;
    s.mass[rank][b] += mass_of(value);
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    visit_wanted<L>(*this, x, first, count);
    return true;
  }
};

template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_HD void range_histogram(Team& team, Row& row, Shared& s, int set, KeyRange range, KeyGrid grid, Cut from,
                                MassOf mass_of, bool counts_above) {
  clear_histogram(s, set, team.rank());
  RangeVisitor<L, MassOf, Shared> v{s, set, team.rank(), range, grid, from, mass_of, counts_above, 0};
  row.visit(v);
  s.above[team.rank()] = v.above;
  sum_histograms(team, s, set);
}

// Narrow histograms until search.next is something else; on entry and on return in every rank's sight.
template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_HD void narrow(Team& team, Row& row, Shared& s, Cut from, MassOf mass_of, bool list_above) {
  while (s.search.next == Search::kNarrow) {
    const KeyRange range = s.search.range;
    range_histogram<L>(team, row, s, 1, range, s.search.grid, from, mass_of, list_above);
    if (team.rank() == 0) {
      Search& search = s.search;
      const int b = find_bucket(s, 1, search);
      search.range = range.cell(search.grid, b);
      plan_search(search, kListed - (list_above ? min64(static_cast<int64_t>(search.above.count), kListed) : 0));
    }
    team.sync();
  }
}

// Writes the elements of a range to the short list from `at` on; of the lowest key only the first `ties`.
template <class L, class MassOf, class Shared>
struct ListVisitor {
  Shared& s;
  KeyRange range;
  Cut from;
  MassOf mass_of;
  int64_t at;
  int64_t ties;

  SPECDEC_HD KeyRange wanted() const { return range; }
  SPECDEC_HD void element(int32_t key, int64_t id, float value) {
    if (from.keeps(key, id)) return;
    if (key == range.low && ties-- <= 0) return;
    s.list_key[at] = key;
    s.list_id[at] = id;
    s.list_value[at] = value;
    s.list_mass[at] = mass_of(value);
    ++at;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    visit_wanted<L>(*this, x, first, count);
    return true;
  }
};

// The id of the `missing`-th element (from 1) of one key.
template <class L>
struct TieVisitor {
  int32_t key;
  uint64_t missing;
  int64_t found;

  SPECDEC_HD KeyRange wanted() const { return {key, key}; }
  SPECDEC_HD void element(int32_t, int64_t id, float) {
    if (missing > 0 && --missing == 0) found = id;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    visit_wanted<L>(*this, x, first, count);
    return missing > 0;
  }
};

// What element i of the list, and all that come before it in the row's order, weigh.
template <class Shared>
SPECDEC_HD Weight list_weight(const Shared& s, int i) {
  const int32_t key = s.list_key[i];
  Weight sum{0, 0};
  for (int j = 0; j < s.list_size; ++j) {
    const uint64_t counts = static_cast<uint64_t>((s.list_key[j] > key) | ((s.list_key[j] == key) & (j <= i)));
    sum = sum.plus({counts, s.list_mass[j] & (uint64_t{0} - counts)});
  }
  return sum;
}

// Ends a search whose next step is kList: each rank tests some elements of the list for being the last one kept.
template <class Team, class Shared>
SPECDEC_HD void cut_list(Team& team, Shared& s) {
  const Search& search = s.search;
  for (int i = team.rank(); i < s.list_size; i += team.size()) {
    const Weight kept = search.above.plus(list_weight(s, i)), own{1, s.list_mass[i]};
    if (kept.of(search.goal) >= search.need && kept.of(search.goal) - own.of(search.goal) < search.need) {
      s.search.cut = {s.list_key[i], s.list_id[i]};
      s.search.kept = kept;
    }
  }
}

// From a planned search in every rank's sight to its cut in every rank's sight.
template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_HD void find_cut(Team& team, Row& row, Shared& s, MassOf mass_of) {
  narrow<L>(team, row, s, keep_none(), mass_of, false);
  const int rank = team.rank(), set = s.search.set, bucket = s.search.bucket;
  uint64_t before = 0;
  for (int r = 0; r < rank; ++r) before += s.count[set][r][bucket];
  if (s.search.next == Search::kList) {
    if (s.count[set][rank][bucket] > 0) {
      ListVisitor<L, MassOf, Shared> v{s,       s.search.range, keep_none(), mass_of, static_cast<int64_t>(before),
                                       kListed};
      row.visit(v);
    }
    if (rank == 0) s.list_size = static_cast<int>(s.search.inside.count);
    team.sync();
    cut_list(team, s);
  } else {
    const int32_t key = s.search.range.low;
    const uint64_t mass = mass_of(key_value(key)), missing = s.search.need - s.search.above.of(s.search.goal);
    const uint64_t ties = s.search.goal == Goal::kCount ? missing : (missing + mass - 1) / mass;
    if (ties > before && ties <= before + s.count[set][rank][bucket]) {
      TieVisitor<L> v{key, ties - before, -1};
      row.visit(v);
      s.search.cut = {key, v.found};
      s.search.kept = s.search.above.plus({ties, ties * mass});
    }
  }
  team.sync();
}

}  // namespace specdec
