// Sampling from one row of logits (contract, section 3): which tokens are kept, their masses, and the draw.
#pragma once

#include "specdec/draw.h"
#include "specdec/philox.h"
#include "specdec/row_select.h"

namespace specdec {

struct SamplingParams {
  float temperature, top_p, min_p;
  int32_t top_k;
};

// Masses of a row's logits, given its largest.
struct Softmax {
  float row_max, inv_temperature;

  SPECDEC_HD float t(float logit) const { return softmax_t(logit, row_max, inv_temperature); }
  SPECDEC_HD uint64_t operator()(float logit) const { return exp2_mass(t(logit)); }
};

// Exponents and masses of up to kChunk logits; the loops over whole chunks become vector code.
struct SoftmaxChunk {
  float logit[kChunk], t[kChunk];
  uint64_t mass[kChunk];

  template <class L>
  SPECDEC_HD int load(const Softmax& softmax, const typename L::Bits* x, int left) {
    const int count = left < kChunk ? left : kChunk;
    if (count == kChunk) {
      for (int j = 0; j < kChunk; ++j) logit[j] = L::widen(x[j]);
    } else {
      for (int j = 0; j < kChunk; ++j) logit[j] = L::widen(x[j < count ? j : 0]);
    }
    float p[kChunk], n[kChunk];
    for (int j = 0; j < kChunk; ++j) t[j] = softmax.t(logit[j]);
    for (int j = 0; j < kChunk; ++j) p[j] = exp2_split(t[j], &n[j]);
    for (int j = 0; j < kChunk; ++j) p[j] = split_scaled(p[j], n[j]);
    for (int j = 0; j < kChunk; ++j) mass[j] = f32_to_u64(p[j]);
    return count;
  }
};

// Buckets of equal width in t down to t = -42, below which masses are 0; the last takes what is below. A larger logit
// is never in a later bucket, because rounding never reverses an order.
struct SoftmaxGrid {
  Softmax softmax;

  static SPECDEC_HD int bucket_of(float t) { return t > -42.0f ? static_cast<int>(t * -3.0f) : kBuckets - 1; }
  SPECDEC_HD int bucket(int32_t key) const { return bucket_of(softmax.t(key_value(key))); }

  // The keys of one bucket, by bisection.
  SPECDEC_HD KeyRange cell(int bucket) const {
    return {first_key(bucket), bucket == 0 ? order_key(softmax.row_max) : first_key(bucket - 1) - 1};
  }

 private:
  // The smallest key that is in `bucket` or an earlier one.
  SPECDEC_HD int32_t first_key(int bucket) const {
    int64_t low = -kKeyInf, high = order_key(softmax.row_max);  // the answer is in [low, high]
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

// The distribution that is drawn from: a token's mass is 0 outside the cut, and where it is below `least`.
struct KeptMasses {
  Softmax softmax;
  Cut cut;
  uint64_t least;

  // Nothing is cut off.
  SPECDEC_HD bool everything() const { return cut.key == keep_all().key && least == 0; }

  // `mass`, or 0 if the token is not kept; without branches.
  SPECDEC_HD uint64_t of(int32_t key, int64_t id, uint64_t mass) const {
    const bool kept = (key > cut.key) | ((key == cut.key) & (id <= cut.id));
    return mass & (uint64_t{0} - static_cast<uint64_t>(kept & (mass >= least)));
  }
};

// Goes through the kept masses of a tile, v.kept's: v.masses(masses, first, count), at most kChunk at a time, until it
// returns false. Chunks without any are left out.
template <class L, class Visitor>
SPECDEC_HD bool visit_kept(Visitor& v, const typename L::Bits* x, int64_t first, int count) {
  const KeptMasses kept = v.kept;
  SoftmaxChunk chunk;
  for (int i = 0; i < count; i += kChunk) {
    const int n = count - i < kChunk ? count - i : kChunk;
    if (kept.everything()) {
      chunk.load<L>(kept.softmax, x + i, n);
    } else {
      int32_t keys[kChunk];
      if (n == kChunk) {
        if (!chunk_keys<L>(x + i, {kept.cut.key, kKeyInf}, keys)) continue;
      } else {
        for (int j = 0; j < n; ++j) keys[j] = order_key(L::widen(x[i + j]));
      }
      chunk.load<L>(kept.softmax, x + i, n);
      for (int j = 0; j < n; ++j) chunk.mass[j] = kept.of(keys[j], first + i + j, chunk.mass[j]);
    }
    if (!v.masses(chunk.mass, first + i, n)) return false;
  }
  return true;
}

template <class L, class Shared>
struct SoftmaxVisitor {
  Shared& s;
  int rank;
  Softmax softmax;

  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t, int count) {
    SoftmaxChunk chunk;
    for (int i = 0; i < count; i += kChunk) {
      const int n = chunk.load<L>(softmax, x + i, count - i);
      for (int j = 0; j < n; ++j) {
        const int b = SoftmaxGrid::bucket_of(chunk.t[j]);
        s.count[0][rank][b] += 1;
        s.mass[rank][b] += chunk.mass[j];
      }
    }
    return true;
  }
};

template <class L>
struct KeptSumVisitor {
  KeptMasses kept;
  uint64_t total;

  SPECDEC_HD bool masses(const uint64_t* mass, int64_t, int count) {
    for (int j = 0; j < count; ++j) total += mass[j];
    return true;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_kept<L>(*this, x, first, count);
  }
};

// The first id whose inclusive prefix sum exceeds `point`, where `below` is the mass of the ids before.
template <class L>
struct DrawVisitor {
  KeptMasses kept;
  uint64_t point, below;
  int64_t found;

  SPECDEC_HD bool masses(const uint64_t* mass, int64_t first, int count) {
    for (int j = 0; j < count; ++j) {
      below += mass[j];
      if (below > point) {
        found = first + j;
        return false;
      }
    }
    return true;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    return visit_kept<L>(*this, x, first, count);
  }
};

// Cuts the row's first histogram (set 0) at a goal; leaves the cut and what it keeps in s.search, in every rank's
// sight.
template <class L, class Team, class Row, class Shared>
SPECDEC_HD void cut_softmax(Team& team, Row& row, Shared& s, Softmax softmax, Goal goal, uint64_t need) {
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
    if (b < kBuckets - 1) {
      search.range = SoftmaxGrid{softmax}.cell(b);
      plan_search(search, kListed);
    }
  }
  team.sync();
  if (s.search.bucket < kBuckets - 1 || s.search.set != 0) find_cut<L>(team, row, s, softmax);
}

// What a row keeps under the sampling parameters; false if the row has no distribution.
template <class L, class Team, class Row, class Shared>
SPECDEC_HD bool keep_masses(Team& team, Row& row, Shared& s, const SamplingParams& params, TopElement top,
                            KeptMasses* kept) {
  if (top.key == kKeyNan || top.key == -kKeyInf) return false;
  kept->softmax = {key_value(top.key), 1.0f};
  kept->least = 0;
  kept->cut = {top.key, top.id};
  if (!(params.temperature > 0.0f)) return true;
  const Softmax softmax{key_value(top.key), div_rn(1.0f, params.temperature)};
  kept->softmax = softmax;
  kept->least = threshold(params.min_p, kMassOne);
  kept->cut = keep_all();
  const bool by_count = params.top_k > 0 && params.top_k < row.size(), by_mass = params.top_p < 1.0f;
  if (!by_count && !by_mass) return true;
  clear_histogram(s, 0, team.rank());
  SoftmaxVisitor<L, Shared> v{s, team.rank(), softmax};
  row.visit(v);
  sum_histograms(team, s, 0);
  uint64_t total = 0;
  if (by_count) {
    cut_softmax<L>(team, row, s, softmax, Goal::kCount, static_cast<uint64_t>(params.top_k));
    kept->cut = s.search.cut;
    total = s.search.kept.mass;
  }
  if (by_mass) {
    if (!by_count) {
      for (int b = 0; b < kBuckets; ++b) total += s.sum[0][b].mass;
    }
    team.sync();  // all have read the search before it is used again
    const uint64_t need = threshold(params.top_p, total);
    cut_softmax<L>(team, row, s, softmax, Goal::kMass, need > 0 ? need : 1);
    kept->cut = s.search.cut;
  }
  return true;
}

// Total of the kept masses, and of those of the ranks before this one.
struct KeptTotal {
  uint64_t before, own, total;
};

template <class L, class Team, class Row, class Shared>
SPECDEC_HD KeptTotal kept_total(Team& team, Row& row, Shared& s, int turn, const KeptMasses& kept) {
  KeptSumVisitor<L> v{kept, 0};
  row.visit(v);
  s.rank_mass[turn][team.rank()] = v.total;
  team.sync();
  KeptTotal sums{0, v.total, 0};
  for (int r = 0; r < team.size(); ++r) {
    if (r == team.rank()) sums.before = sums.total;
    sums.total += s.rank_mass[turn][r];
  }
  return sums;
}

// Draws the row's token. Exactly one rank gets it and calls sink.token(); -1 comes from rank 0. `params` and `seed` are
// not read before the team's first sync, so rank 0 may still be fetching them for all.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD void sample_row(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params,
                           const int64_t& seed, int64_t position, Sink& sink) {
  const TopElement top = row_top<L>(team, row, s, turn);
  KeptMasses kept;
  const bool defined = keep_masses<L>(team, row, s, params, top, &kept);
  if (!defined || !(params.temperature > 0.0f)) {
    if (team.rank() == 0) sink.token(defined ? top.id : -1);
    return;
  }
  const KeptTotal sums = kept_total<L>(team, row, s, turn, kept);
  const uint64_t point = draw_point(philox_words(seed, position, Purpose::kSample).u64(), sums.total);
  if (point < sums.before || point - sums.before >= sums.own) return;
  DrawVisitor<L> draw{kept, point, sums.before, -1};
  row.visit(draw);
  sink.token(draw.found);
}

template <class L, class Sink>
struct ProbsVisitor {
  Sink& sink;
  KeptMasses kept;
  uint64_t total;

  SPECDEC_HD bool masses(const uint64_t* mass, int64_t first, int count) {
    for (int j = 0; j < count; ++j) {
      if (mass[j] != 0) sink.put(first + j, mass_ratio(mass[j], total));
    }
    return true;
  }
  SPECDEC_HD bool tile(const typename L::Bits* x, int64_t first, int count) {
    sink.begin(first, count);
    visit_kept<L>(*this, x, first, count);
    sink.end();
    return true;
  }
};

// Writes the row's probabilities, each rank its own range, tile by tile: sink.begin(first, count), whose values are 0
// until sink.put(id, probability), and sink.end(). Returns false, and writes nothing, if the row has no distribution.
// `params` as in sample_row.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD bool row_probs(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params, Sink& sink) {
  const TopElement top = row_top<L>(team, row, s, turn);
  KeptMasses kept;
  if (!keep_masses<L>(team, row, s, params, top, &kept)) return false;
  const KeptTotal sums = kept_total<L>(team, row, s, turn, kept);
  ProbsVisitor<L, Sink> v{sink, kept, sums.total};
  row.visit(v);
  return true;
}

}  // namespace specdec
