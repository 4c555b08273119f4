// Sampling from one row of logits (contract, section 3): which tokens are kept, their masses, and the draw.
#pragma once

#include "specdec/draw.h"
#include "specdec/philox.h"
#include "specdec/row_first.h"

namespace specdec {

// Buckets of equal width in t down to `floor`; the last takes what is below. A larger logit is never in a later bucket,
// because rounding never reverses an order.
struct SoftmaxGrid {
  Softmax softmax;
  float floor, slope;
  static constexpr int kLast = kBuckets - 1;

  SPECDEC_HD int bucket_of(float t) const {
    const uint32_t inside = 0u - static_cast<uint32_t>(t > floor);
    const int32_t b = static_cast<int32_t>(f32_from_bits(f32_bits(mul_rn(t, slope)) & inside));
    return b | static_cast<int32_t>(static_cast<uint32_t>(kLast) & ~inside);
  }
  SPECDEC_HD int bucket(int32_t key) const { return bucket_of(softmax.t(key_value(key))); }

  // The keys of one bucket, by bisection.
  SPECDEC_HD KeyRange cell(int bucket) const {
    return {first_key(bucket), bucket == 0 ? order_key(softmax.row_max) : first_key(bucket - 1) - 1};
  }

 private:
  // The smallest key that is in `bucket` or an earlier one.
  SPECDEC_HD int32_t first_key(int bucket) const {
    int64_t low = -kKeyInf, high = order_key(softmax.row_max);  // the answer is in [low, high]
    // Most often it is close to where the bucket would end without rounding.
    constexpr int kClose = 64;
    const float below = div_rn(div_rn(static_cast<float>(bucket + 1), slope), mul_rn(softmax.inv_temperature, kLog2E));
    const int64_t guess = order_key(add_rn(softmax.row_max, below));
    if (guess - kClose > low && guess + kClose < high) {
      if (this->bucket(static_cast<int32_t>(guess - kClose)) > bucket) low = guess - kClose + 1;
      if (this->bucket(static_cast<int32_t>(guess + kClose)) <= bucket) high = guess + kClose;
    }
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (this->bucket(static_cast<int32_t>(middle)) <= bucket) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return static_cast<int32_t>(low);
  }
};

// Down to where masses are 0.
SPECDEC_HD SoftmaxGrid full_grid(const Softmax& softmax) { return {softmax, -42.0f, -3.0f}; }

// Down to where no token can be among the first that reach the fraction top_p < 1 of the mass: those at t <= floor
// weigh less than 2^(40 + floor) * size together, and no more than (1 - top_p) of 2^40, which the largest has. A power
// of two less makes up for rounding.
SPECDEC_HD SoftmaxGrid nucleus_grid(const Softmax& softmax, float top_p, int64_t size) {
  const int rest = static_cast<int>(f32_bits(sub_rn(1.0f, top_p)) >> 23) - 127;
  const int rows = 64 - count_leading_zeros(static_cast<uint64_t>(size));
  const int floor = static_cast<int>(clamp64(rest, -24, 0)) - rows - 1;
  if (floor <= -42) return full_grid(softmax);
  const float deepest = static_cast<float>(floor);
  return {softmax, deepest, div_rn(static_cast<float>(SoftmaxGrid::kLast), deepest)};
}

// All bits for those of a chunk that a cut keeps; false if there are none.
SPECDEC_HD bool inside_cut(const KeptMasses& kept, const Chunk& logit, int64_t first, Wide<uint32_t, kChunk>& inside) {
  if (kept.uncut()) {
    for (int j = 0; j < kChunk; ++j) inside[j] = ~0u;
    return true;
  }
  const float low = key_value(kept.cut.key);
  const int last = static_cast<int>(clamp64(kept.cut.id - first, -1, kChunk));
  uint32_t any = 0;
  for (int j = 0; j < kChunk; ++j) {
    const uint32_t above = static_cast<uint32_t>(logit[j] > low), at = static_cast<uint32_t>(logit[j] == low);
    inside[j] = 0u - (above | (at & static_cast<uint32_t>(j <= last)));
    any |= inside[j];
  }
  return any != 0;
}

// Loads the masses of a chunk that are kept, 0 for the others; false if there are none, and then all of it is void.
SPECDEC_HD bool load_kept(const KeptMasses& kept, const Chunk& logit, int64_t first, SoftmaxChunk& chunk) {
  if (kept.everything()) {
    chunk.load(kept.softmax, logit);
    return true;
  }
  Wide<uint32_t, kChunk> inside;
  if (!inside_cut(kept, logit, first, inside)) return false;
  chunk.load_t(kept.softmax, logit);
  const float least = u64_to_f32(kept.least);  // exact: 24 bits
  if (kept.least > 0) {
    const float deepest = kept.deepest();
    uint32_t any = 0;
    for (int j = 0; j < kChunk; ++j) any |= inside[j] & static_cast<uint32_t>(chunk.t[j] >= deepest);
    if (any == 0) return false;
  }
  chunk.load_scaled();
  for (int j = 0; j < kChunk; ++j) {
    const uint32_t counts = 0u - static_cast<uint32_t>(chunk.scaled[j] >= least);
    chunk.scaled[j] = f32_from_bits(f32_bits(chunk.scaled[j]) & inside[j] & counts);
  }
  return true;
}

// Counts and masses of a rank's logits by bucket. While they are counted both are in one word.
template <class L, class Shared>
struct SoftmaxVisitor {
  static constexpr int kCountShift = 52, kMost = (1 << (64 - kCountShift)) - kChunk;  // counted in a word

  Shared& s;
  int rank;
  SoftmaxGrid grid;

  struct Work {
    SoftmaxGrid grid;
    Wide<uint64_t, kBuckets> table;

    SPECDEC_HD explicit Work(const SoftmaxVisitor& v) : grid(v.grid) {
      for (int b = 0; b < kBuckets; ++b) table[b] = 0;
    }
    SPECDEC_HD bool chunk(const Chunk& logit, int64_t, int n) {
      constexpr uint64_t kOne = uint64_t{1} << kCountShift;
      SoftmaxChunk masses;
      Wide<int32_t, kChunk> bucket;
      masses.load(grid.softmax, logit);
      int32_t all = SoftmaxGrid::kLast;
      for (int j = 0; j < kChunk; ++j) bucket[j] = grid.bucket_of(masses.t[j]);
      for (int j = 0; j < kChunk; ++j) all &= bucket[j];
      if (all == SoftmaxGrid::kLast) {
        table[SoftmaxGrid::kLast] += scaled_sum(masses.scaled) + static_cast<uint64_t>(n) * kOne;
      } else {
        for (int j = 0; j < n; ++j) table.at[bucket[j]] += f32_to_u64(masses.scaled[j]) + kOne;
      }
      return true;
    }
    SPECDEC_HD void finish(SoftmaxVisitor& v) const {
      constexpr uint64_t kMass = (uint64_t{1} << kCountShift) - 1;
      for (int b = 0; b < kBuckets; b += kBlock) {
        Wide<uint32_t, kBlock> count;
        Wide<uint64_t, kBlock> mass;
        count.load(v.s.count[0][v.rank] + b);
        mass.load(v.s.mass[0][v.rank] + b);
        for (int j = 0; j < kBlock; ++j) count[j] += static_cast<uint32_t>(table[b + j] >> kCountShift);
        for (int j = 0; j < kBlock; ++j) mass[j] += table[b + j] & kMass;
        count.store(v.s.count[0][v.rank] + b);
        mass.store(v.s.mass[0][v.rank] + b);
      }
    }
  };

  SPECDEC_HD SoftmaxVisitor(Shared& shared, int team_rank, const SoftmaxGrid& of)
      : s(shared), rank(team_rank), grid(of) {
    clear_histogram(s, 0, rank);
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    for (int at = 0; at < count; at += kMost) {
      visit_chunks<L>(*this, x + at, first + at, count - at < kMost ? count - at : kMost);
    }
    return true;
  }
};

template <class L>
struct KeptSumVisitor {
  KeptMasses kept;
  uint64_t total;

  struct Work : OwnWork<KeptSumVisitor> {
    LaneBits lanes;

    using OwnWork<KeptSumVisitor>::OwnWork;
    SPECDEC_HD bool chunk(const Chunk& logit, int64_t first, int) {
      const KeptMasses& of = this->kept;
      SoftmaxChunk masses;
      if (of.least == 0) {
        if (load_kept(of, logit, first, masses)) this->total += scaled_sum(masses.scaled);
        return true;
      }
      // Most chunks have none that is heavy enough, or few.
      Wide<uint32_t, kChunk> inside;
      if (!inside_cut(of, logit, first, inside)) return true;
      masses.load_t(of.softmax, logit);
      const float deepest = of.deepest();
      for (int half = 0; half < kChunk; half += kLanes) {
        uint32_t heavy = 0;
        for (int j = 0; j < kLanes; ++j) {
          const uint32_t may = 0u - static_cast<uint32_t>(masses.t[half + j] >= deepest);
          heavy |= inside[half + j] & may & lanes.bit[j];
        }
        for (; heavy != 0; heavy &= heavy - 1) {
          const uint64_t mass = exp2_mass(masses.t[half + count_trailing_ones(~heavy)]);
          this->total += mass >= of.least ? mass : 0;
        }
      }
      return true;
    }
  };

  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// The first id whose inclusive prefix sum exceeds `point`, where `below` is the mass of the ids before.
template <class L>
struct DrawVisitor {
  using Work = OwnWork<DrawVisitor>;

  KeptMasses kept;
  uint64_t point, below;
  int64_t found;

  SPECDEC_HD bool chunk(const Chunk& logit, int64_t first, int) {
    SoftmaxChunk masses;
    if (!load_kept(kept, logit, first, masses)) return true;
    const uint64_t sum = scaled_sum(masses.scaled);
    if (below + sum <= point) {
      below += sum;
      return true;
    }
    int j = 0;
    while ((below += f32_to_u64(masses.scaled[j])) <= point) ++j;
    found = first + j;
    return false;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// Cuts the row's first histogram (set 0) at a goal; leaves the cut and what it keeps in s.search, and what each rank
// keeps in s.rank_mass[turn], in every rank's sight.
template <class L, class Team, class Row, class Shared>
SPECDEC_HD void cut_softmax(Team& team, Row& row, Shared& s, int turn, const SoftmaxGrid& grid, Goal goal,
                            uint64_t need) {
  if (team.rank() == 0) {
    Search& search = s.search;
    search.goal = goal;
    search.need = need;
    search.above = {0, 0};
    const int b = find_bucket(s, 0, search);
    // What has no mass is never drawn: a cut among it keeps as much as none.
    search.next = Search::kTies;
    search.cut = keep_all();
    search.kept = search.above.plus(search.inside);
    if (b < SoftmaxGrid::kLast) {
      search.range = grid.cell(b);
      plan_search(search, kListed);
    }
  }
  team.sync();
  const int bucket = s.search.bucket;
  const uint64_t own = own_mass(s, 0, team.rank(), bucket);
  if (bucket < SoftmaxGrid::kLast) {
    find_cut<L>(team, row, s, turn, own, grid.softmax);
  } else {
    s.rank_mass[turn][team.rank()] = own;
    team.sync();
  }
}

// Total of the kept masses, and of those of the ranks before this one.
struct KeptTotal {
  uint64_t before, own, total;
};

// From s.rank_mass[turn], in every rank's sight.
template <class Team, class Shared>
SPECDEC_HD KeptTotal kept_total(Team& team, const Shared& s, int turn) {
  const int rank = team.rank(), ranks = team.size();
  KeptTotal sums{0, s.rank_mass[turn][rank], 0};
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) sums.before = sums.total;
    sums.total += s.rank_mass[turn][r];
  }
  return sums;
}

// Cuts the order of a row by top_k and top_p. Returns what each rank keeps.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART KeptTotal cut_row(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params,
                                const Filters& filters, const Softmax& softmax, Cut* cut) {
  const int rank = team.rank();
  const SoftmaxGrid grid = filters.by_count ? full_grid(softmax) : nucleus_grid(softmax, params.top_p, row.size());
  SoftmaxVisitor<L, Shared> v(s, rank, grid);
  row.visit(v);
  sum_histograms(team, s, 0);
  if (filters.by_count) {
    cut_softmax<L>(team, row, s, turn, grid, Goal::kCount, static_cast<uint64_t>(params.top_k));
  }
  if (filters.by_mass) {
    uint64_t need = 0;
    if (filters.by_count) {
      need = nucleus(params.top_p, s.search.kept.mass);
      team.sync();  // all have read the search before it is used again
    } else if (rank == 0) {
      uint64_t total = 0;
      for (int b = 0; b < kBuckets; ++b) total += s.sum_mass[0][b];
      need = nucleus(params.top_p, total);
    }
    cut_softmax<L>(team, row, s, turn, grid, Goal::kMass, need);
  }
  cut->key = s.search.cut.key;  // one by one: there is padding between them
  cut->id = s.search.cut.id;
  return kept_total(team, s, turn);
}

// What a row with a distribution keeps under sampling parameters with a temperature above 0.
template <class L, class Team, class Row, class Shared>
SPECDEC_HD KeptTotal keep_masses(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params,
                                 const Filters& filters, const Softmax& softmax, KeptMasses* kept) {
  *kept = {softmax, keep_all(), filters.least};
  if (filters.by_count || filters.by_mass) {
    const KeptTotal sums = cut_row<L>(team, row, s, turn, params, filters, softmax, &kept->cut);
    if (kept->least == 0) return sums;
    if (!kept->uncut()) {
      // A larger logit has a larger mass, but for rounding: min_p takes nothing away if it leaves the last one kept.
      const uint64_t last = softmax(key_value(kept->cut.key));
      if (last > kept->least + (last >> 20)) {
        kept->least = 0;
        return sums;
      }
    }
    team.sync();  // all have read the sums before they are used again
  }
  KeptSumVisitor<L> v{*kept, 0};
  row.visit(v);
  s.rank_mass[turn][team.rank()] = v.total;
  team.sync();
  return kept_total(team, s, turn);
}

// A few elements that are all that top_k keeps, in order, and what the other parameters keep of them.
struct FirstMasses {
  float scaled[kChunk];  // 0: not kept
  int count;             // elements up to the last that top_p keeps
  uint64_t total;
};

template <class Shared>
SPECDEC_VECTOR void load_first(const Shared& s, const SamplingParams& params, const Filters& filters,
                               const Softmax& softmax, FirstMasses* first) {
  static_assert(kListed <= kChunk, "a chunk holds them");
  const int most = params.top_k;
  const uint64_t least_mass = filters.least;
  Chunk logit;
  SoftmaxChunk masses;
  logit.load(s.sorted_value, most);
  for (int j = 0; j < kChunk; ++j) logit[j] = j < most ? logit[j] : kLeastFloat;
  masses.load(softmax, logit);
  int count = most;
  if (filters.by_mass) {
    const uint64_t need = nucleus(params.top_p, scaled_sum(masses.scaled));
    uint64_t running = f32_to_u64(masses.scaled[0]);
    for (count = 1; running < need; ++count) running += f32_to_u64(masses.scaled[count]);
  }
  const float least = u64_to_f32(least_mass);
  Chunk kept;
  for (int j = 0; j < kChunk; ++j) kept[j] = j < count && masses.scaled[j] >= least ? masses.scaled[j] : 0.0f;
  kept.store(first->scaled);
  first->count = count;
  first->total = scaled_sum(kept);
}

// Of these the one with the first id whose inclusive prefix sum exceeds `point`.
template <class Shared>
SPECDEC_VECTOR int64_t draw_first(const Shared& s, const FirstMasses& first, uint64_t point) {
  Chunk scaled;
  Wide<int64_t, kChunk> ids;
  Wide<uint64_t, kChunk> masses;
  scaled.load(first.scaled);
  ids.load(s.sorted_id, first.count);
  for (int j = 0; j < kChunk; ++j) masses[j] = f32_to_u64(scaled[j]);
  for (int i = 0;; ++i) {
    const int64_t id = ids[i];
    uint64_t below = 0;
    for (int j = 0; j < kChunk; ++j) below += masses[j] & (uint64_t{0} - static_cast<uint64_t>(ids[j] < id));
    if (point >= below && point - below < masses[i]) return id;
  }
}

// Whether what top_k keeps fits the short list; then puts it there.
template <class L, class Team, class Row, class Shared>
SPECDEC_HD bool list_row(Team& team, Row& row, Shared& s, const SamplingParams& params, const Filters& filters,
                         int32_t top) {
  if (!filters.by_count || params.top_k > kListed) return false;
  list_first<L>(team, row, s, keep_none(), params.top_k, logit_grid(top));
  return true;
}

// Draws the row's token. Exactly one rank gets it and calls sink.token(); -1 comes from rank 0. `params` and `seed` are
// not read before the team's first sync, so rank 0 may still be fetching them for all.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD void sample_row(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params, const int64_t& seed,
                           int64_t position, Purpose purpose, Sink& sink) {
  const RowTop top = row_top<L>(team, row, s, turn);
  if (!has_distribution(top.key)) {
    if (team.rank() == 0) sink.token(-1);
    return;
  }
  if (!(params.temperature > 0.0f)) {
    if (team.rank() != top.rank) return;
    FirstVisitor<L> first{key_value(top.key), -1};
    row.visit(first);
    sink.token(first.id);
    return;
  }
  const Softmax softmax{key_value(top.key), div_rn(1.0f, params.temperature)};
  const Filters filters(params, row.size());
  const uint64_t word = philox_words(seed, position, purpose).u64();
  if (list_row<L>(team, row, s, params, filters, top.key)) {
    if (team.rank() != 0) return;
    FirstMasses first;
    load_first(s, params, filters, softmax, &first);
    sink.token(draw_first(s, first, draw_point(word, first.total)));
    return;
  }
  KeptMasses kept;
  const KeptTotal sums = keep_masses<L>(team, row, s, turn, params, filters, softmax, &kept);
  const uint64_t point = draw_point(word, sums.total);
  if (point < sums.before || point - sums.before >= sums.own) return;
  DrawVisitor<L> draw{kept, point, sums.before, -1};
  row.visit(draw);
  sink.token(draw.found);
}

// mass_ratio of a chunk's masses; `total` is not 0.
SPECDEC_HD void chunk_ratios(const Chunk& scaled, uint64_t total, Chunk& ratio) {
  const float whole = u64_to_f32(total);
  for (int j = 0; j < kChunk; ++j) {
    // The integer part: floats from 2^23 on are integers.
    const uint32_t small = 0u - static_cast<uint32_t>(scaled[j] < 0x1p23f);
    const int32_t part = static_cast<int32_t>(f32_from_bits(f32_bits(scaled[j]) & small));
    const float mass = f32_from_bits((f32_bits(static_cast<float>(part)) & small) | (f32_bits(scaled[j]) & ~small));
    ratio[j] = div_rn(mass, whole);
  }
}

template <class L, class Sink>
struct ProbsVisitor {
  Sink& sink;
  KeptMasses kept;
  uint64_t total;

  struct Work {
    Sink& sink;
    KeptMasses kept;
    uint64_t total;

    SPECDEC_HD explicit Work(const ProbsVisitor& v) : sink(v.sink), kept(v.kept), total(v.total) {}
    SPECDEC_HD bool chunk(const Chunk& logit, int64_t first, int n) {
      SoftmaxChunk masses;
      Chunk probability;
      if (load_kept(kept, logit, first, masses)) {
        chunk_ratios(masses.scaled, total, probability);
      } else {
        for (int j = 0; j < kChunk; ++j) probability[j] = 0.0f;
      }
      sink.append(probability, n);
      return true;
    }
    SPECDEC_HD void finish(ProbsVisitor&) const {}
  };

  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_chunks<L>(*this, x, first, count);
  }
};

// Gives the row's probabilities to the sinks, each rank those of its own range in order: sink.append(values, count).
// Returns false, and gives nothing, if the row has no distribution. `params` as in sample_row.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD bool row_probs(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params, Sink& sink) {
  const RowTop top = row_top<L>(team, row, s, turn);
  if (!has_distribution(top.key)) return false;
  KeptMasses kept{{key_value(top.key), 1.0f}, keep_none(), 0};
  uint64_t total = kMassOne;
  if (params.temperature > 0.0f) {
    kept.softmax.inv_temperature = div_rn(1.0f, params.temperature);
    const Filters filters(params, row.size());
    if (list_row<L>(team, row, s, params, filters, top.key)) {
      FirstMasses first;
      load_first(s, params, filters, kept.softmax, &first);
      kept.cut = {order_key(s.sorted_value[first.count - 1]), s.sorted_id[first.count - 1]};
      kept.least = filters.least;
      total = first.total;
    } else {
      total = keep_masses<L>(team, row, s, turn, params, filters, kept.softmax, &kept).total;
    }
  } else if (team.rank() == top.rank) {
    FirstVisitor<L> first{key_value(top.key), -1};
    row.visit(first);
    kept.cut = {top.key, first.id};
  }
  ProbsVisitor<L, Sink> v{sink, kept, total};
  row.visit(v);
  return true;
}

}  // namespace specdec
