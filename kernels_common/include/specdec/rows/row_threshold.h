// The threshold in the order of a row, without sorting: histograms of counts and masses over narrowing ranges of keys,
// then a short list. Exact, since nothing is rounded. Ranks know the largest logit of each of their chunks (read_row),
// and look only at chunks that reach into the range.
#pragma once

#include "specdec/rows/row_team.h"

namespace specdec {

// Buckets of equal width in t down to `floor`; the last takes what is below. With kCeiling, the first takes what is
// above `ceiling`; else that is 0. A larger logit is never in a later bucket, because rounding never reverses an order.
template <bool kCeiling>
struct SoftmaxGrid {
  static constexpr int kLast = kBuckets - 1;

  Softmax softmax;
  float floor, ceiling, slope;

  SPECDEC_HD SoftmaxGrid(const Softmax& of, float deepest, float highest = 0.0f)
      : softmax(of),
        floor(deepest),
        ceiling(highest),
        slope(div_rn(static_cast<float>(kLast), sub_rn(floor, ceiling))) {}

  SPECDEC_HD int bucket_of(float t) const {
    const uint32_t inside = 0u - static_cast<uint32_t>(t > floor);
    uint32_t placed = inside;
    if (kCeiling) placed &= 0u - static_cast<uint32_t>(t < ceiling);
    const float place = mul_rn(kCeiling ? sub_rn(t, ceiling) : t, slope);
    const int32_t b = static_cast<int32_t>(f32_from_bits(f32_bits(place) & placed));
    return b | static_cast<int32_t>(static_cast<uint32_t>(kLast) & ~inside);
  }
  // The keys of a bucket that is not the last.
  SPECDEC_HD KeyRange range(int bucket) const {
    return {first_key(bucket), bucket == 0 ? order_key(softmax.row_max) : first_key(bucket - 1) - 1};
  }

 private:
  // The smallest key that is in `bucket` or an earlier one, by bisection.
  SPECDEC_HD int32_t first_key(int bucket) const {
    int64_t low = -kKeyInf, high = order_key(softmax.row_max);  // the answer is in [low, high]
    // Usually close to the bucket's end without rounding.
    constexpr int kClose = 64;
    const float t = add_rn(div_rn(static_cast<float>(bucket + 1), slope), ceiling);
    const int64_t guess = order_key(add_rn(softmax.row_max, div_rn(t, mul_rn(softmax.inv_temperature, kLog2E))));
    if (guess - kClose > low && guess + kClose < high) {
      if (bucket_of_key(guess - kClose) > bucket) low = guess - kClose + 1;
      if (bucket_of_key(guess + kClose) <= bucket) high = guess + kClose;
    }
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (bucket_of_key(middle) <= bucket) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return static_cast<int32_t>(low);
  }
  SPECDEC_HD int bucket_of_key(int64_t key) const { return bucket_of(softmax.t(key_value(static_cast<int32_t>(key)))); }
};

constexpr int kNoMassBelow = -42;  // t of a mass that is 0, with room for rounding

// A t below t, or one without mass.
SPECDEC_HD float just_below(float t) {
  const float lower = sub_rn(mul_rn(t, 1.0f + 0x1p-18f), 0x1p-18f);
  return lower > kNoMassBelow ? lower : static_cast<float>(kNoMassBelow);
}

// A t at and below which no token is among the first that reach the fraction top_p < 1 of `total`. Those weigh less
// than 2^(40 + t) * size together, which must be at most a quarter of (1 - top_p) * total. The other quarters
// make up for what rounding, at most 2^-17 of it, makes the total by chunks differ from the sum of masses; where top_p
// is so close to 1 that they do not, all tokens are looked at.
SPECDEC_HD int nucleus_floor(float top_p, uint64_t total, int64_t size) {
  const int rest = static_cast<int>(f32_bits(sub_rn(1.0f, top_p)) >> 23) - 127;  // 2^rest <= 1 - top_p
  const int excess = 63 - kMassBits - count_leading_zeros(total);               // 2^(40 + excess) <= total
  const int bits = 64 - count_leading_zeros(static_cast<uint64_t>(size));       // size < 2^bits
  if (rest < -14) return kNoMassBelow;
  return static_cast<int>(clamp64((rest < 0 ? rest : 0) + excess - bits - 2, kNoMassBelow, -1));
}

// A search for the shortest beginning of the order that reaches `need` (1 or more); each rank has one.
struct Search {
  Goal goal;
  uint64_t need;
  uint64_t total = 0;      // the row's mass, where the goal is one: for a guess
  Weight above = {0, 0};   // of the elements above the bucket
  Weight inside = {0, 0};  // of the elements in it
  int bucket = 0;          // the threshold is in here
  uint64_t own = 0;        // mass of this rank's elements above the bucket; in the end, of those that are kept
  Threshold threshold = keep_all();    // the result
  uint64_t kept = 0;       // and the mass of what it keeps
};

template <class Shared>
SPECDEC_HD void clear_histogram(Shared& s, int rank) {
  for (int b = 0; b < kBuckets; ++b) s.count[rank][b] = 0;
  for (int b = 0; b < kBuckets; ++b) s.mass[rank][b] = 0;
}

// Adds up the ranks' histograms and finds the first bucket in which the search reaches its goal, or the last.
template <class Team, class Shared>
SPECDEC_APART void find_bucket(Team& team, Shared& s, Search& search) {
  constexpr int kPart = 16;  // buckets summed together
  team.sync();
  const int ranks = team.size();
  for (int b = kPart * team.rank(); b < kBuckets; b += kPart * ranks) {
    Wide<uint64_t, kPart> all_count, all_mass;
    for (int j = 0; j < kPart; ++j) all_count[j] = all_mass[j] = 0;
    for (int r = 0; r < ranks; ++r) {
      Wide<uint32_t, kPart> count;
      Wide<uint64_t, kPart> mass;
      count.load(s.count[r] + b);
      mass.load(s.mass[r] + b);
      for (int j = 0; j < kPart; ++j) all_count[j] += count[j];
      for (int j = 0; j < kPart; ++j) all_mass[j] += mass[j];
    }
    all_count.store(s.sum_count + b);
    all_mass.store(s.sum_mass + b);
  }
  team.sync();
  for (int b = 0;; ++b) {
    search.bucket = b;
    search.inside = {s.sum_count[b], s.sum_mass[b]};
    const Weight beyond = search.above.plus(search.inside);
    if (beyond.of(search.goal) >= search.need || b == kBuckets - 1) break;
    search.above = beyond;
    search.own += s.mass[team.rank()][b];
  }
}

// body(key, id, value) for a rank's elements of a range that `from` does not keep, by ascending id.
template <class L, class Row, class Shared, class Body>
SPECDEC_HD void each_after(Row& row, const Shared& s, const KeyRange& range, Threshold from, Body body) {
  const float low = key_value(range.low), high = key_value(range.high);
  each_chunk(row, s, low, [&](const typename L::Bits* x, int count, int64_t first, const ChunkSum&) {
    each_in_range<L>(x, count, first, low, high, from, body);
    return true;
  });
}

// Counts and masses of these by bucket.
template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_HD void range_histogram(Team& team, Row& row, Shared& s, const KeyRange& range, const KeyGrid& grid,
                                Threshold from, MassOf mass_of) {
  const int rank = team.rank();
  clear_histogram(s, rank);
  each_after<L>(row, s, range, from, [&](int32_t key, int64_t, float value) {
    const int b = grid.bucket(key);
    s.count[rank][b] += 1;
    s.mass[rank][b] += mass_of(value);
  });
}

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

// Ends a search by the list of what is in the bucket: each rank looks at its own elements, [begin, end). The threshold
// and the mass of what it keeps are left in `s` by the rank that has its element.
template <class Shared>
SPECDEC_VECTOR void list_threshold(Shared& s, Search& search, int begin, int end) {
  const int size = static_cast<int>(search.inside.count);
  const Weight above = search.above;
  Wide<int32_t, kListed> keys;
  Wide<uint64_t, kListed> masses;
  keys.load(s.list_key, size);
  masses.load(s.list_mass, size);
  for (int i = begin; i < end; ++i) {
    const Weight upto = above.plus(size <= kLanes ? listed_weight<kLanes>(keys, masses, i, size)
                                                  : listed_weight<kListed>(keys, masses, i, size));
    const uint64_t reached = upto.of(search.goal), self = search.goal == Goal::kCount ? 1 : masses[i];
    if (reached - self >= search.need) continue;
    search.own += masses[i];
    if (reached < search.need) continue;
    s.threshold.key = keys[i];  // the last one
    s.threshold.id = s.list_id[i];
    s.kept = upto.mass;
  }
}

// From a bucket, with its keys, to the threshold.
template <class L, class MassOf, class Team, class Row, class Shared>
SPECDEC_APART void bucket_threshold(Team& team, Row& row, Shared& s, Search& search, KeyRange range, Threshold from,
                                    MassOf mass_of) {
  while (search.inside.count > kListed && range.low < range.high) {
    const KeyGrid grid = range.grid();
    range_histogram<L>(team, row, s, range, grid, from, mass_of);
    find_bucket(team, s, search);
    range = range.cell(grid, search.bucket);
  }
  const int rank = team.rank();
  const uint64_t inside = s.count[rank][search.bucket];
  uint64_t before = 0;
  for (int r = 0; r < rank; ++r) before += s.count[r][search.bucket];
  const auto list = [&](auto next_entry) {
    each_after<L>(row, s, range, from, [&](int32_t key, int64_t id, float value) {
      const int entry = next_entry();
      if (entry < 0) return;
      s.list_key[entry] = key;
      s.list_id[entry] = id;
      s.list_mass[entry] = mass_of(value);
    });
  };
  if (search.inside.count <= kListed) {
    int at = static_cast<int>(before);
    if (inside > 0) list([&] { return at++; });
    team.sync();
    list_threshold(s, search, static_cast<int>(before), static_cast<int>(before + inside));
    team.sync();
    search.threshold.key = s.threshold.key;  // one by one: there is padding between them
    search.threshold.id = s.threshold.id;
    search.kept = s.kept;
    return;
  }
  // Equal keys, of which the first ids are kept: the last of them is the list.
  const uint64_t mass = mass_of(key_value(range.low)), missing = search.need - search.above.of(search.goal);
  const uint64_t wanted = ties_kept(search.goal, missing, mass);
  const uint64_t own = wanted <= before ? 0 : wanted - before < inside ? wanted - before : inside;
  uint64_t at = before;
  if (own > 0 && before + own == wanted) list([&] { return ++at == wanted ? 0 : -1; });
  team.sync();
  search.own += own * mass;
  search.kept = search.above.mass + wanted * mass;
  search.threshold.key = range.low;
  search.threshold.id = s.list_id[0];
}

// Adds counts and masses of a chunk by buckets of t. `kSparse`: few elements are expected between the first and last.
template <class L, bool kSparse>
SPECDEC_VECTOR void chunk_histogram(const typename L::Bits* x, int count, const SoftmaxGrid<kSparse>& of,
                                    uint32_t* counts, uint64_t* sums) {
  // Both in one word: 2^11 elements and less than 2^51 of mass.
  constexpr int kCountShift = 52;
  constexpr uint64_t kOne = uint64_t{1} << kCountShift;
  using Grid = SoftmaxGrid<kSparse>;
  const Grid grid = of;
  Wide<uint64_t, kBuckets> table;
  for (int b = 0; b < kBuckets; ++b) table[b] = 0;
  each_block<L>(x, count, [&](const Block& logit, int) {
    SoftmaxBlock masses;
    Wide<int32_t, kBlock> bucket;
    masses.load(grid.softmax, logit, 0);
    int32_t all = Grid::kLast;
    for (int j = 0; j < kBlock; ++j) bucket[j] = grid.bucket_of(masses.t[j]);
    for (int j = 0; j < kBlock; ++j) all &= bucket[j];
    if (all == Grid::kLast) {
      table[Grid::kLast] += masses.sum() + kBlock * kOne;
      return true;
    }
    if (kSparse) {
      BlockBits between;
      between.load(
          [&](int j) { return static_cast<int>(bucket[j] != 0) & static_cast<int>(bucket[j] != Grid::kLast); });
      between.each([&](int j) { table.at[bucket[j]] += f32_to_u64(masses.scaled[j]) + kOne; });
      for (const int32_t outer : {0, int32_t{Grid::kLast}}) {
        SoftmaxBlock part;
        int32_t size = 0;
        for (int j = 0; j < kBlock; ++j) {
          const uint32_t in_part = 0u - static_cast<uint32_t>(bucket[j] == outer);
          part.scaled[j] = f32_from_bits(f32_bits(masses.scaled[j]) & in_part);
          size -= static_cast<int32_t>(in_part);
        }
        table[outer] += part.sum() + static_cast<uint64_t>(size) * kOne;
      }
      return true;
    }
    for (int j = 0; j < kBlock; ++j) table.at[bucket[j]] += f32_to_u64(masses.scaled[j]) + kOne;
    return true;
  });
  for (int b = 0; b < kBuckets; ++b) counts[b] += static_cast<uint32_t>(table[b] >> kCountShift);
  for (int b = 0; b < kBuckets; ++b) sums[b] += table[b] & (kOne - 1);
}

// Histograms of a rank's chunks, or of the first `most` elements of each.
template <class L, bool kSparse, class Row, class Shared>
SPECDEC_HD void row_histogram(Row& row, Shared& s, int rank, const SoftmaxGrid<kSparse>& grid, int most = kChunkIds) {
  clear_histogram(s, rank);
  each_chunk(row, s, -detail::kFloatInf, [&](const typename L::Bits* x, int count, int64_t, const ChunkSum&) {
    chunk_histogram<L, kSparse>(x, count < most ? count : most, grid, s.count[rank], s.mass[rank]);
    return true;
  });
}

// A narrower grid that the threshold is probably inside of, with few elements: from a block of each chunk.
template <class L, class Row, class Shared>
SPECDEC_APART SoftmaxGrid<true> guessed_grid(Row& row, Shared& s, const Search& search,
                                             const SoftmaxGrid<false>& grid) {
  static_assert(Shared::kRanks == 1, "ranks would guess differently");
  constexpr uint64_t kShare = kChunkIds / kBlock, kWindowParts = 32;
  row_histogram<L, false>(row, s, 0, grid, kBlock);
  const uint64_t looked = static_cast<uint64_t>(chunk_count(row.size())) * kBlock;
  uint64_t count = 0, below = 0;
  for (int b = 0; b < kBuckets; ++b) below += s.mass[0][b];
  const uint64_t rest = search.total > search.need ? search.total - search.need : 0;
  int first = 0;
  for (int b = 0; b < grid.kLast; ++b) {
    // Sums of a part of the row: room for what they are off.
    if (search.goal == Goal::kMass && below * kShare > rest + rest / 16) first = b;
    count += s.count[0][b];
    below -= s.mass[0][b];
    const bool reached = search.goal == Goal::kMass ? below * kShare < rest - rest / 16
                                                    : count * kShare >= search.need + search.need / 2 + kLanes * kShare;
    if (reached && count * kWindowParts > looked) {
      return {grid.softmax, static_cast<float>(b + 1) / grid.slope, static_cast<float>(first) / grid.slope};
    }
  }
  return {grid.softmax, grid.floor};
}

// Finds the threshold at which a row's order reaches a goal, by masses. Elements at `deepest` (a t) or below are not
// looked at, and a threshold there keeps everything: they have no mass, or cannot be reached. `few`: there are few
// others.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART void find_threshold(Team& team, Row& row, Shared& s, Search& search, const Softmax& softmax,
                                  float deepest, bool few = false) {
  constexpr int64_t kWorthGuess = 16 * kChunkIds;
  const int rank = team.rank();
  const SoftmaxGrid<false> grid(softmax, deepest);
  if constexpr (Row::kInMemory) {
    if (few || row.size() >= kWorthGuess) {
      const Search before = search;
      const auto narrow = few ? SoftmaxGrid<true>(softmax, deepest) : guessed_grid<L>(row, s, search, grid);
      row_histogram<L, true>(row, s, rank, narrow);
      find_bucket(team, s, search);
      if (search.bucket < grid.kLast) {
        return bucket_threshold<L>(team, row, s, search, narrow.range(search.bucket), keep_none(), softmax);
      }
      search = before;
    }
  }
  row_histogram<L, false>(row, s, rank, grid);
  find_bucket(team, s, search);
  if (search.bucket < grid.kLast) {
    bucket_threshold<L>(team, row, s, search, grid.range(search.bucket), keep_none(), softmax);
  } else {
    search.own += s.mass[rank][search.bucket];
    search.kept = search.above.plus(search.inside).mass;
  }
}

}  // namespace specdec
