// Sampling from one row of logits (contract, section 3): filters, the draw, and the token's probability.
#pragma once

#include "specdec/philox.h"
#include "specdec/rows/row_top.h"

namespace specdec {

// The few elements kept by top_k, in order, and those of them kept by the other parameters.
struct FirstMasses {
  uint64_t mass[kListed];  // 0: not kept
  int count;  // elements up to the last that top_p keeps
  uint64_t total;
};

template <class Shared>
SPECDEC_VECTOR void load_first(const Shared& s, const SamplingParams& params, const Filters& filters,
                               const Softmax& softmax, FirstMasses* first) {
  const int most = params.top_k;
  const uint64_t least = filters.least;
  Block logit;
  SoftmaxBlock masses;
  for (int j = 0; j < kBlock; ++j) logit[j] = j < most ? s.sorted_value[j] : -detail::kFloatInf;
  masses.load(softmax, logit, 0);
  int count = most;
  if (filters.by_mass) {
    const uint64_t need = nucleus(params.top_p, masses.sum());
    uint64_t running = f32_to_u64(masses.scaled[0]);
    for (count = 1; running < need; ++count) running += f32_to_u64(masses.scaled[count]);
  }
  uint64_t total = 0;
  for (int j = 0; j < kListed; ++j) {
    const uint64_t mass = f32_to_u64(masses.scaled[j]);
    first->mass[j] = j < count && mass >= least ? mass : 0;
    total += first->mass[j];
  }
  first->count = count;
  first->total = total;
}

// Of these the one with the first id whose inclusive prefix sum exceeds `point`: its place in the row's order.
template <class Shared>
SPECDEC_VECTOR int draw_first(const Shared& s, const FirstMasses& first, uint64_t point) {
  Wide<int64_t, kListed> ids;
  Wide<uint64_t, kListed> masses;
  ids.load(s.sorted_id, first.count);
  masses.load(first.mass, first.count);
  for (int i = 0;; ++i) {
    const int64_t id = ids[i];
    uint64_t below = 0;
    for (int j = 0; j < kListed; ++j) below += masses[j] & (uint64_t{0} - static_cast<uint64_t>(ids[j] < id));
    if (point >= below && point - below < masses[i]) return i;
  }
}

// How a row's token is drawn.
enum class DrawBy : int {
  kNothing,  // it is the first of the largest
  kList,  // from what top_k keeps, which is in s.sorted_value and, where it was asked for, in RowDraw::first
  kChunks,  // nothing is filtered
  kMasses,
};

// A row's distribution under its parameters.
struct RowDraw {
  DrawBy by;
  KeptMasses kept;  // of kNothing only on the rank that has the token
  uint64_t total;  // of what is drawn from
  RankSums sums;  // the same by ranks, for kChunks and kMasses
  bool by_chunk;  // for kMasses: s.chunk has the mass that is kept of each chunk
  FirstMasses first;
};

// Whether what top_k keeps fits the short list.
SPECDEC_HD bool fits_list(const SamplingParams& params, const Filters& filters) {
  return filters.by_count && params.top_k <= kListed;
}

// 1/temperature for read_row: negative where the masses of chunks are not needed.
SPECDEC_HD float first_read(const SamplingParams& params, int64_t size) {
  const Filters filters(params, size);
  const bool needed = !filters.any() || (filters.by_mass && !filters.by_count);
  return !is_greedy(params) && needed ? inverse_temperature(params.temperature) : kNoMasses;
}

// What a row keeps, after read_row. `listing`: whether this rank needs to know it of a list.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART void filtered_row(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params,
                                const RowTop& top, bool listing, RowDraw* result) {
  const Filters filters(params, row.size());
  KeptMasses& kept = result->kept;
  kept = {{top.value(), 1.0f}, keep_all(), 0};
  if (is_greedy(params)) {
    result->by = DrawBy::kNothing;
    result->total = kMassOne;
    kept.threshold = keep_none();
    if (team.rank() != top.rank) return;
    each_chunk(row, s, top.value(), [&](const typename L::Bits* x, int count, int64_t first, const ChunkSum&) {
      kept.threshold = {top.key, first + first_equal<L>(x, count, top.value())};
      return false;
    });
    return;
  }
  kept.softmax.inv_temperature = inverse_temperature(params.temperature);
  const Softmax softmax = kept.softmax;
  if (!filters.any()) {
    result->by = DrawBy::kChunks;
    result->sums = share_mass(team, s, turn, own_shares(row, s, softmax));
    result->total = result->sums.total;
    return;
  }
  kept.least = filters.least;
  if (fits_list(params, filters)) {
    result->by = DrawBy::kList;
    list_first<L>(team, row, s, top.key, kLogitShift, keep_none(), params.top_k);
    result->total = 0;
    if (!listing) return;
    load_first(s, params, filters, softmax, &result->first);
    const int last = result->first.count - 1;
    kept.threshold = {order_key(s.sorted_value[last]), s.sorted_id[last]};
    result->total = result->first.total;
    return;
  }
  result->by = DrawBy::kMasses;
  result->by_chunk = false;
  uint64_t own = 0;  // the mass of what this rank keeps, once something is filtered
  if (filters.by_count) {
    Search search{Goal::kCount, static_cast<uint64_t>(params.top_k)};
    find_threshold<L>(team, row, s, search, softmax, kNoMassBelow);
    kept.threshold = search.threshold;
    own = search.own;
    result->total = search.kept;
  } else if (filters.by_mass) {
    result->total = share_mass(team, s, turn, own_shares(row, s, softmax)).total;
  }
  if (filters.by_mass) {
    Search search{Goal::kMass, nucleus(params.top_p, result->total)};
    if (filters.by_count) {
      find_threshold<L>(team, row, s, search, softmax, just_below(softmax.t(key_value(kept.threshold.key))), true);
    } else {
      search.total = result->total;
      const int deepest = nucleus_floor(params.top_p, search.total, row.size());
      find_threshold<L>(team, row, s, search, softmax, static_cast<float>(deepest));
    }
    kept.threshold = search.threshold;
    own = search.own;
  }
  if (kept.least > 0 && !kept.keeps_everything()) {
    // A larger logit has a larger mass, but for rounding: min_p takes nothing away if it leaves the last one kept.
    const uint64_t last = softmax(key_value(kept.threshold.key));
    if (last > kept.least + (last >> 20)) kept.least = 0;
  }
  if (kept.least > 0 || !(filters.by_count || filters.by_mass)) {
    own = 0;
    result->by_chunk = true;
    each_chunk(row, s, kept.lowest(), [&](const typename L::Bits* x, int count, int64_t first, const ChunkSum&) {
      own += s.chunk[first >> kChunkBits].mass = chunk_mass<L>(x, count, kept, first);
      return true;
    });
  }
  result->sums = share_mass(team, s, turn, own);
  result->total = result->sums.total;
}

// The random inputs of a draw.
struct RowSeed {
  int64_t seed, position;
  Purpose purpose;

  SPECDEC_HD uint64_t word() const { return philox_words(seed, position, purpose).u64(); }
};

// A token and its logit; `id` -1 on ranks that do not have it.
struct DrawnToken {
  int64_t id;
  float logit;
};

// Draws from a row by a point in [0, from.total); exactly one rank gets the token.
template <class L, class Team, class Row, class Shared>
SPECDEC_APART DrawnToken draw_row(Team& team, Row& row, Shared& s, const RowDraw& from, uint64_t point) {
  if (from.by == DrawBy::kNothing) return {from.kept.threshold.id, from.kept.softmax.row_max};
  DrawnToken drawn{-1, 0.0f};
  if (from.by == DrawBy::kList) {
    if (team.rank() != 0) return drawn;
    const int index = draw_first(s, from.first, point);
    return {s.sorted_id[index], s.sorted_value[index]};
  }
  if (!from.sums.has(point)) return drawn;
  uint64_t below = from.sums.before;
  each_chunk(row, s, from.kept.lowest(), [&](const typename L::Bits* x, int count, int64_t first, const ChunkSum& sum) {
    int found;
    if (from.by == DrawBy::kChunks) {
      const uint64_t share = chunk_share(from.kept.softmax, sum), rest = point - below;
      below += share;
      if (rest >= share) return true;
      const Softmax inside{sum.top, from.kept.softmax.inv_temperature};
      uint64_t prefix = 0;
      found = chunk_draw<L>(x, count, inside, 0, chunk_weight(from.kept.softmax, inside.row_max), rest, &prefix);
    } else {
      if (from.by_chunk && point - below >= sum.mass) {
        below += sum.mass;
        return true;
      }
      found = chunk_draw<L>(x, count, from.kept, first, kMassOne, point, &below);
      if (found < 0) return true;
    }
    drawn = {first + found, L::widen(x[found])};
    return false;
  });
  return drawn;
}

// Requested outputs of a row besides its token.
struct AskedLogprob {
  bool logprob, rank;
  LogprobMode mode;
};

// Of a row that has no token.
template <class Sink>
SPECDEC_HD void write_undefined(const AskedLogprob& asked, float logprob, Sink& sink) {
  sink.token(-1);
  if (asked.logprob) sink.logprob(logprob);
  if (asked.rank) sink.rank(-1);
}

// Of the token that one rank has: rank 0 calls sink.logprob() and sink.rank() where asked.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_APART void write_logprob(Team& team, Row& row, Shared& s, int turn, const RowDraw& from,
                                 const DrawnToken& drawn, const AskedLogprob& asked, Sink& sink) {
  if (drawn.id >= 0) s.chosen[turn] = drawn.logit;
  team.sync();
  const float chosen = s.chosen[turn];
  const Softmax& softmax = from.kept.softmax;
  const bool raw = asked.mode == LogprobMode::kRaw;
  const bool known = !raw || (from.by == DrawBy::kChunks && softmax.inv_temperature == 1.0f);
  const Softmax unit{softmax.row_max, 1.0f};
  uint64_t own_total = 0, own_count = 0;
  each_chunk(row, s, asked.logprob && !known ? -detail::kFloatInf : chosen,
             [&](const typename L::Bits* x, int count, int64_t, const ChunkSum& sum) {
    if (asked.logprob && !known) {
      own_total += chunk_share(unit, {sum.top, chunk_mass<L>(x, count, Softmax{sum.top, 1.0f}, 0)});
    }
    if (sum.top >= chosen) own_count += static_cast<uint64_t>(count_at_least<L>(x, count, chosen));
    return true;
  });
  s.rank_count[turn][team.rank()] = own_count;
  const uint64_t total = share_mass(team, s, turn, own_total).total;
  if (team.rank() != 0) return;
  if (asked.rank) sink.rank(static_cast<int64_t>(sum_ranks(team, s.rank_count[turn]).total));
  if (asked.logprob) {
    const RowLogprobs of{softmax.row_max, ln_ratio(known ? from.total : total), raw ? 1.0f : softmax.inv_temperature};
    sink.logprob(of.of(chosen));
  }
}

// Draws the row's token and reports requested outputs. Exactly one rank calls sink.token(); rank 0 reports undefined
// values (-1).
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD void sample_row(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params, const RowSeed& seed,
                           const AskedLogprob& asked, Sink& sink) {
  const RowTop top = read_row<L>(team, row, s, turn, first_read(params, row.size()));
  if (!has_distribution(top.key)) {
    if (team.rank() == 0) write_undefined(asked, kLowestLogprob, sink);
    return;
  }
  RowDraw from;
  filtered_row<L>(team, row, s, turn, params, top, team.rank() == 0, &from);
  const uint64_t point = from.by == DrawBy::kNothing ? 0 : draw_point(seed.word(), from.total);
  const DrawnToken drawn = draw_row<L>(team, row, s, from, point);
  if (drawn.id >= 0) sink.token(drawn.id);
  if (asked.logprob || asked.rank) write_logprob<L>(team, row, s, turn, from, drawn, asked, sink);
}

// Probabilities of a chunk's elements, in blocks: sink.append(values, count).
template <class L, class Sink>
SPECDEC_VECTOR void chunk_probs(const typename L::Bits* x, int count, const KeptMasses& of, int64_t first,
                                uint64_t total, Sink& sink) {
  const KeptMasses kept = of;
  const float whole = u64_to_f32(total);
  each_block<L>(x, count, [&](const Block& logit, int i) {
    SoftmaxBlock masses;
    Block ratio;
    if (masses.load(kept, logit, first + i)) {
      for (int j = 0; j < kBlock; ++j) {
        // mass_ratio of the integer part: floats from 2^23 on are integers.
        const float scaled = masses.scaled[j];
        const uint32_t small = 0u - static_cast<uint32_t>(scaled < 0x1p23f);
        const int32_t part = static_cast<int32_t>(f32_from_bits(f32_bits(scaled) & small));
        const float mass = f32_from_bits((f32_bits(static_cast<float>(part)) & small) | (f32_bits(scaled) & ~small));
        ratio[j] = div_rn(mass, whole);
      }
    } else {
      for (int j = 0; j < kBlock; ++j) ratio[j] = 0.0f;
    }
    sink.append(ratio, count - i < kBlock ? count - i : kBlock);
    return true;
  });
}

// Passes the row's probabilities to the sinks, each rank those of its chunks in order. Returns false, without output,
// if the row has no distribution.
template <class L, class Team, class Row, class Shared, class Sink>
SPECDEC_HD bool row_probs(Team& team, Row& row, Shared& s, int turn, const SamplingParams& params, Sink& sink) {
  const RowTop top = read_row<L>(team, row, s, turn, first_read(params, row.size()));
  if (!has_distribution(top.key)) return false;
  RowDraw from;
  filtered_row<L>(team, row, s, turn, params, top, true, &from);
  each_chunk(row, s, -detail::kFloatInf, [&](const typename L::Bits* x, int count, int64_t first, const ChunkSum&) {
    chunk_probs<L>(x, count, from.kept, first, from.total, sink);
    return true;
  });
  return true;
}

}  // namespace specdec
