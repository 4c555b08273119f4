// Penalties of a slot's rows by tiles of ids, for histories that cover so much of the vocabulary that whole rows are
// moved. One core owns a tile and scans the whole history for it.
#pragma once

#include "specdec/penalty.h"
#include "specdec/rows/wide.h"

namespace specdec {

constexpr int kPenaltyTile = 1024;                   // ids
constexpr int kPenaltyPart = kPenaltyTile / 2;       // of a row, moved at a time
constexpr int kPenaltyLanes = 4;                     // logits that are penalised together
constexpr uint16_t kTileInPrompt = 1 << 15;          // see kInPrompt
constexpr int64_t kMaxTileTallies = kTileInPrompt - 1;

// Whether a history justifies moving whole rows and is short enough to scan per tile.
SPECDEC_HD bool penalized_by_tiles(int64_t vocabulary, int64_t history, int64_t draft_width) {
  return vocabulary / 8 <= history && history <= kMaxTileTallies - draft_width;
}

namespace detail {

// As vectors, since compilers do not vectorise gather and scatter here.
typedef float PenaltyFloats __attribute__((vector_size(4 * kPenaltyLanes)));
typedef int32_t PenaltyInts __attribute__((vector_size(4 * kPenaltyLanes)));
constexpr int kIdLanes = kWideBytes / 8;
typedef uint64_t PenaltyIds __attribute__((vector_size(kWideBytes), may_alias, aligned(8)));

// PenaltyParams::apply on all of them.
struct PenaltyLanes {
  PenaltyParams params;

  // Zeros with their signs: taking +0 from a logit changes nothing.
  SPECDEC_HD bool counts() const { return (f32_bits(params.frequency) | f32_bits(params.presence)) != 0; }

  SPECDEC_HD PenaltyFloats repeated(PenaltyFloats logit) const {
    return chosen(logit > 0.0f, logit / params.repetition, logit * params.repetition);
  }
  SPECDEC_HD PenaltyFloats counted(PenaltyFloats l, PenaltyInts generated) const {
    const PenaltyFloats taken = __builtin_convertvector(generated, PenaltyFloats) * params.frequency;
    return chosen(generated == 0, l, l - taken - params.presence);
  }

 private:
  static SPECDEC_HD PenaltyFloats chosen(PenaltyInts first, PenaltyFloats a, PenaltyFloats b) {
    return reinterpret_cast<PenaltyFloats>((reinterpret_cast<PenaltyInts>(a) & first) |
                                           (reinterpret_cast<PenaltyInts>(b) & ~first));
  }
};

// Tallies of ids [first, first + size), where `first` is a multiple of kPenaltyTile, and lists of those that are not 0:
// the first part's from the front of `listed`, the second part's from its end.
struct PenaltyTally {
  static constexpr int kLooked = 64;  // ids at a time
  static constexpr int kRoom = kPenaltyTile + 2 * kPenaltyLanes;

  int64_t first, prompt_end;
  int size, front, back;
  uint16_t tally[kPenaltyTile];
  uint16_t listed[kRoom];

  SPECDEC_HD PenaltyTally(int64_t first_id, int ids, int64_t prompt)
      : first(first_id), prompt_end(prompt), size(ids), front(0), back(0) {
    for (int i = 0; i < kPenaltyTile; ++i) tally[i] = 0;
  }

  SPECDEC_HD bool has(int64_t id) const { return static_cast<uint64_t>(id - first) < static_cast<uint64_t>(size); }

  SPECDEC_HD void add(int64_t id, int marks, int generated) {
    const int i = static_cast<int>(id - first), before = tally[i];
    const int fresh = static_cast<int>(before == 0), second = static_cast<int>(i >= kPenaltyPart);
    tally[i] = static_cast<uint16_t>((before | marks) + generated);
    listed[second ? kRoom - 1 - back : front] = static_cast<uint16_t>(i);
    front += fresh & ~second;
    back += fresh & second;
  }

  // A visitor of the history.
  SPECDEC_HD bool tile(const int64_t* ids, int64_t column, int n) {
    const int prompt = static_cast<int>(clamp64(prompt_end - column, 0, n));
    for (int at = 0, stop = prompt > 0 ? prompt : n; at < n; at = stop, stop = n) {
      const bool in_prompt = at < prompt;
      look(ids, at, stop, in_prompt ? kTileInPrompt : 0, in_prompt ? 0 : 1);
    }
    return true;
  }

  // Penalises the first or second part of a row.
  template <class L, bool kCounts>
  SPECDEC_HD void apply(const PenaltyLanes& lanes, typename L::Bits* x, int begin, int end) {
    for (int k = begin; k < end; k += kPenaltyLanes) {
      const int a = listed[k], b = listed[k + 1], c = listed[k + 2], d = listed[k + 3];
      typename L::Bits &at_a = x[a % kPenaltyPart], &at_b = x[b % kPenaltyPart], &at_c = x[c % kPenaltyPart],
                       &at_d = x[d % kPenaltyPart];
      PenaltyFloats l = lanes.repeated(PenaltyFloats{L::widen(at_a), L::widen(at_b), L::widen(at_c), L::widen(at_d)});
      if (kCounts) {
        l = lanes.counted(l, PenaltyInts{tally[a], tally[b], tally[c], tally[d]} & (kTileInPrompt - 1));
      }
      at_a = L::narrow(l[0]);
      at_b = L::narrow(l[1]);
      at_c = L::narrow(l[2]);
      at_d = L::narrow(l[3]);
    }
  }

  // Where in `listed` a part's ids are: whole groups, the last filled up with one of its own, which is then penalised
  // twice at once.
  SPECDEC_HD void range(int part, int* begin, int* end) {
    *begin = part == 0 ? 0 : kRoom - back;
    *end = part == 0 ? front : kRoom;
    while ((*end - *begin) % kPenaltyLanes != 0) {
      if (part == 0) {
        listed[*end] = listed[*end - 1];
        ++*end;
      } else {
        listed[*begin - 1] = listed[*begin];
        --*begin;
      }
    }
  }

 private:
  // Adds those of the ids [at, stop) that are in the tile; those that may be are found together.
  SPECDEC_HD void look(const int64_t* ids, int at, int stop, int marks, int generated) {
    constexpr uint64_t kInside = kPenaltyTile - 1;
    PenaltyIds bit;
    for (int k = 0; k < kIdLanes; ++k) bit[k] = uint64_t{1} << k;
    for (; at < stop; at += kLooked) {
      const int looked = stop - at < kLooked ? stop - at : kLooked;
      PenaltyIds near = {};
      int j = 0;
      for (; j + kIdLanes <= looked; j += kIdLanes) {
        const PenaltyIds id = *reinterpret_cast<const PenaltyIds*>(ids + at + j);
        near |= (reinterpret_cast<PenaltyIds>(((id ^ static_cast<uint64_t>(first)) & ~kInside) == 0) & bit) << j;
      }
      uint64_t hits = 0;
      for (int k = 0; k < kIdLanes; ++k) hits |= near[k];
      for (; j < looked; ++j) hits |= static_cast<uint64_t>(has(ids[at + j])) << j;
      for (; hits != 0; hits &= hits - 1) {
        const int64_t id = ids[at + __builtin_ctzll(hits)];
        if (has(id)) add(id, marks, generated);
      }
    }
  }
};

}  // namespace detail

// Penalises ids [first, first + size) of a slot's rows. `history.visit(v)` streams columns [0, end) of the history;
// `logits.load(row, id, count)` gives some of a row's, `logits.store(row, id, count)` puts them back; `drafts[j]` is
// the slot's j-th draft, from 1.
template <class L, class Text, class Logits, class Drafts>
SPECDEC_VECTOR void penalize_tile(int64_t first, int size, Text& history, int64_t prompt_end,
                                  const PenaltyParams& params, const PenaltyRows& rows, Logits& logits,
                                  Drafts& drafts) {
  detail::PenaltyTally tally(first, size, prompt_end);
  history.visit(tally);
  const detail::PenaltyLanes lanes{params};
  int64_t seen = 0;
  for (int64_t row = rows.first; row < rows.stop; ++row) {
    // The row's additional history compared with the previous row.
    for (; seen < rows.drafts(row); ++seen) {
      const int64_t draft = drafts[seen + 1];
      if (tally.has(draft)) tally.add(draft, 0, 1);
    }
    for (int part = 0; part < 2; ++part) {
      int begin, end;
      tally.range(part, &begin, &end);
      if (begin == end) continue;
      const int64_t id = first + part * kPenaltyPart;
      const int count = static_cast<int>(min64(kPenaltyPart, first + size - id));
      typename L::Bits* x = logits.load(row, id, count);
      if (lanes.counts()) {
        tally.apply<L, true>(lanes, x, begin, end);
      } else {
        tally.apply<L, false>(lanes, x, begin, end);
      }
      logits.store(row, id, count);
    }
  }
}

}  // namespace specdec
