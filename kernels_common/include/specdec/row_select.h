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

#include "specdec/row_chunks.h"

namespace specdec {

constexpr int kBuckets = 128;
constexpr int kListed = 64;  // elements of the short list
constexpr int kRoom = 2 * kListed;  // it has room for, since a guess at its length may be wrong

constexpr int kBlock = 16;  // buckets looked at together

// Keys in buckets of 2^shift, from `top` down; the outer buckets take what lies beyond.
struct KeyGrid {
  int32_t top;
  int shift;

  SPECDEC_HD int bucket(int32_t key) const {
    const uint32_t b = (static_cast<uint32_t>(top) - static_cast<uint32_t>(key)) >> shift;
    const uint32_t below = 0u - static_cast<uint32_t>(key < top);
    return static_cast<int>((b < kBuckets ? b : kBuckets - 1u) & below);
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
  KeyGrid grid;  // for the next histogram
  Weight above;  // of the elements above `range`
  Weight inside;  // of the elements in `range`
  int set, bucket;  // where the counts of `range` by rank are: see RowShared::count
  Next next;
  Cut cut;  // the result
  Weight kept;  // and the weight of what it keeps
};

template <int Ranks>
struct RowShared {
  static constexpr int kRanks = Ranks;

  // Histograms of each rank, and their sums. Set 0 is the first of a row, which stays; set 1 the later ones.
  uint32_t count[2][Ranks][kBuckets];
  uint64_t mass[2][Ranks][kBuckets];
  uint64_t sum_count[2][kBuckets], sum_mass[2][kBuckets];
  uint32_t above[Ranks];  // elements above a histogram's range (top lists only)
  Search search;

  // The short list, by ascending id, and a part of it in the row's order.
  int32_t list_key[kRoom];
  float list_value[kRoom];
  int64_t list_id[kRoom];
  uint64_t list_mass[kListed];
  float sorted_value[kListed];
  int64_t sorted_id[kListed];
  int list_size;

  // One value of each rank; two sets in turns, so that one sync a reduction is enough.
  int32_t rank_key[2][Ranks];
  float lane[Ranks][kLanes];  // see LargestVisitor
  int32_t floor;
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

// Calls v.element(key, id, value) for every element whose key is in v.wanted(). Most chunks have none.
template <class Visitor>
struct WantedChunks {
  Visitor& v;
  float low, high;

  struct Work {
    Visitor& v;
    float low, high;
    LaneBits lanes;

    SPECDEC_HD explicit Work(const WantedChunks& chunks) : v(chunks.v), low(chunks.low), high(chunks.high) {}
    SPECDEC_HD bool chunk(const Chunk& value, int64_t first, int n) {
      uint32_t hits[kChunk / kLanes];
      for (int half = 0; half < kChunk / kLanes; ++half) {
        uint32_t bits = 0;
        for (int j = 0; j < kLanes; ++j) {
          const float x = value[half * kLanes + j];
          bits |= (0u - (static_cast<uint32_t>(x >= low) & static_cast<uint32_t>(x <= high))) & lanes.bit[j];
        }
        hits[half] = bits;
      }
      if ((hits[0] | hits[1]) == 0) return true;
      for (int half = 0; half < kChunk / kLanes; ++half) {
        for (uint32_t left = hits[half]; left != 0; left &= left - 1) {
          const int j = half * kLanes + count_trailing_ones(~left);
          if (j < n) v.element(order_key(value[j]), first + j, value[j]);
        }
      }
      return true;
    }
    SPECDEC_HD void finish(WantedChunks&) const {}
  };
};

template <class L, class Visitor>
SPECDEC_HD void visit_wanted(Visitor& v, const typename L::Bits* x, int64_t first, int count) {
  const KeyRange wanted = v.wanted();
  WantedChunks<Visitor> chunks{v, key_value(wanted.low), key_value(wanted.high)};
  visit_chunks<L>(chunks, x, first, count);
}

// The largest key of a row (of each lane, too, in s.lane), and the first rank that has it.
struct RowTop {
  int32_t key;
  int rank;
};

template <class L, class Team, class Row, class Shared>
SPECDEC_APART RowTop row_top(Team& team, Row& row, Shared& s, int turn) {
  LargestVisitor<L> own;
  row.visit(own);
  s.rank_key[turn][team.rank()] = own.key();
  own.lane.store(s.lane[team.rank()]);
  team.sync();
  RowTop top{s.rank_key[turn][0], 0};
  const int ranks = team.size();
  for (int r = 1; r < ranks; ++r) {
    if (s.rank_key[turn][r] > top.key) top = {s.rank_key[turn][r], r};
  }
  return top;
}

template <class Shared>
SPECDEC_HD void clear_histogram(Shared& s, int set, int rank) {
  Wide<uint32_t, kBlock> count;
  Wide<uint64_t, kBlock> mass;
  for (int j = 0; j < kBlock; ++j) count[j] = 0;
  for (int j = 0; j < kBlock; ++j) mass[j] = 0;
  for (int b = 0; b < kBuckets; b += kBlock) count.store(s.count[set][rank] + b);
  for (int b = 0; b < kBuckets; b += kBlock) mass.store(s.mass[set][rank] + b);
}

// Adds up the ranks' histograms of a set; in every rank's sight afterwards.
template <class Team, class Shared>
SPECDEC_APART void sum_histograms(Team& team, Shared& s, int set) {
  team.sync();
  const int ranks = team.size();
  for (int b = kBlock * team.rank(); b < kBuckets; b += kBlock * ranks) {
    Wide<uint64_t, kBlock> all_count, all_mass;
    for (int j = 0; j < kBlock; ++j) all_count[j] = all_mass[j] = 0;
    for (int r = 0; r < ranks; ++r) {
      Wide<uint32_t, kBlock> count;
      Wide<uint64_t, kBlock> mass;
      count.load(s.count[set][r] + b);
      mass.load(s.mass[set][r] + b);
      for (int j = 0; j < kBlock; ++j) all_count[j] += count[j];
      for (int j = 0; j < kBlock; ++j) all_mass[j] += mass[j];
    }
    all_count.store(s.sum_count[set] + b);
    all_mass.store(s.sum_mass[set] + b);
  }
  team.sync();
}

// The first bucket in which the search reaches its goal; adds what lies above to search.above.
template <class Shared>
SPECDEC_APART int find_bucket(const Shared& s, int set, Search& search) {
  const Goal goal = search.goal;
  const uint64_t need = search.need;
  Weight above = search.above;
  for (int block = 0;; block += kBlock) {
    Wide<uint64_t, kBlock> count, mass;
    count.load(s.sum_count[set] + block);
    mass.load(s.sum_mass[set] + block);
    for (int j = 0; j < kBlock; ++j) {
      const Weight inside{count[j], mass[j]}, beyond = above.plus(inside);
      if (beyond.of(goal) >= need || block + j == kBuckets - 1) {
        search.above = above;
        search.set = set;
        search.bucket = block + j;
        search.inside = inside;
        return block + j;
      }
      above = beyond;
    }
  }
}

// How to go on with search.range, of which `most` elements can be listed.
SPECDEC_HD void plan_search(Search& search, uint64_t most) {
  search.next = search.inside.count <= most             ? Search::kList
                : search.range.low == search.range.high ? Search::kTies
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
    s.mass[set][rank][b] += mass_of(value);
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

// Mass of a rank's elements in the first buckets of its histogram.
template <class Shared>
SPECDEC_HD uint64_t own_mass(const Shared& s, int set, int rank, int buckets) {
  uint64_t sum = 0;
  for (int b = 0; b < buckets; b += kBlock) {
    Wide<uint64_t, kBlock> mass;
    mass.load(s.mass[set][rank] + b);
    for (int j = 0; j < kBlock; ++j) sum += mass[j] & (uint64_t{0} - static_cast<uint64_t>(b + j < buckets));
  }
  return sum;
}

// Narrow histograms until search.next is something else; on entry and on return in every rank's sight. Returns the mass
// of this rank's elements that turned out to be above the range.
template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_HD uint64_t narrow(Team& team, Row& row, Shared& s, Cut from, MassOf mass_of, bool list_above) {
  uint64_t own = 0;
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
    own += own_mass(s, 1, team.rank(), s.search.bucket);
  }
  return own;
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

// What element i of a list of up to N weighs together with all that come before it in the row's order: the larger, and
// of equals the earlier.
template <int N>
SPECDEC_HD Weight listed_weight(const Wide<int32_t, kListed>& keys, const Wide<uint64_t, kListed>& masses, int i,
                                int size) {
  const int32_t key = keys[i];
  int32_t count = 0;
  uint64_t mass = 0;
  for (int j = 0; j < N; ++j) {
    const int32_t counts =
        static_cast<int32_t>(keys[j] > key - static_cast<int32_t>(j <= i)) & static_cast<int32_t>(j < size);
    count += counts;
    mass += masses[j] & (uint64_t{0} - static_cast<uint64_t>(counts));
  }
  return {static_cast<uint64_t>(count), mass};
}

// Ends a search whose next step is kList: each rank looks at its own elements of the list, [begin, end). Returns the
// mass of those that are kept.
template <class Shared>
SPECDEC_VECTOR uint64_t cut_list(Shared& s, int begin, int end) {
  const Goal goal = s.search.goal;
  const Weight above = s.search.above;
  const uint64_t need = s.search.need;
  Wide<int32_t, kListed> keys;
  Wide<uint64_t, kListed> masses;
  const int size = s.list_size;
  keys.load(s.list_key, size);
  masses.load(s.list_mass, size);
  uint64_t own = 0;
  for (int i = begin; i < end; ++i) {
    const int32_t key = keys[i];
    const Weight self{1, masses[i]};
    const Weight upto = above.plus(size <= kLanes ? listed_weight<kLanes>(keys, masses, i, size)
                                                  : listed_weight<kListed>(keys, masses, i, size));
    if (upto.of(goal) - self.of(goal) >= need) continue;
    own += self.mass;
    if (upto.of(goal) >= need) {  // the last one
      s.search.cut.key = key;
      s.search.cut.id = s.list_id[i];
      s.search.kept.count = upto.count;
      s.search.kept.mass = upto.mass;
    }
  }
  return own;
}

// From a planned search in every rank's sight to its cut in every rank's sight. `own` is the mass of this rank's
// elements above the range; s.rank_mass[turn] becomes that of each rank's elements that are kept.
template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_APART void find_cut(Team& team, Row& row, Shared& s, int turn, uint64_t own, MassOf mass_of) {
  own += narrow<L>(team, row, s, keep_none(), mass_of, false);
  const int rank = team.rank(), set = s.search.set, bucket = s.search.bucket;
  const uint64_t inside = s.count[set][rank][bucket];
  uint64_t before = 0;
  for (int r = 0; r < rank; ++r) before += s.count[set][r][bucket];
  if (s.search.next == Search::kList) {
    if (inside > 0) {
      ListVisitor<L, MassOf, Shared> v{s, s.search.range, keep_none(), mass_of, static_cast<int64_t>(before), kListed};
      row.visit(v);
    }
    if (rank == 0) s.list_size = static_cast<int>(s.search.inside.count);
    team.sync();
    own += cut_list(s, static_cast<int>(before), static_cast<int>(before + inside));
  } else {
    const int32_t key = s.search.range.low;
    const uint64_t mass = mass_of(key_value(key)), missing = s.search.need - s.search.above.of(s.search.goal);
    const uint64_t ties = s.search.goal == Goal::kCount ? missing : (missing + mass - 1) / mass;
    const uint64_t own_ties = ties <= before ? 0 : ties - before < inside ? ties - before : inside;
    own += own_ties * mass;
    if (own_ties > 0 && before + own_ties == ties) {
      TieVisitor<L> v{key, own_ties, -1};
      row.visit(v);
      s.search.cut = {key, v.found};
      s.search.kept = s.search.above.plus({ties, ties * mass});
    }
  }
  s.rank_mass[turn][rank] = own;
  team.sync();
}

}  // namespace specdec
