// sample_target, processed_probs, top_p_candidates, token_logprobs: rows over the threads.
#include "rows.h"
#include "specdec/rows/row_draw.h"
#include "specdec/rows/row_lists.h"
#include "specdec_ops/processed_probs.h"
#include "specdec_ops/sample_target.h"
#include "specdec_ops/token_logprobs.h"
#include "specdec_ops/top_p_candidates.h"

namespace specdec::cpu {
namespace {

template <class Args>
SamplingParams params_of(const Args& a, int64_t r) {
  return {a.row_temperature[r], a.row_top_p[r], a.row_min_p[r], a.row_top_k[r]};
}

struct TokenSink {
  const SampleTargetArgs& a;
  int64_t row;

  void token(int64_t id) { a.target_tokens[row] = id; }
  void logprob(float value) { a.logprobs[row] = value; }
  void rank(int64_t value) { a.ranks[row] = value; }
};

struct ProbsSink {
  float* to;

  void append(const Block& values, int count) {
    if (count == kBlock) {
      values.store(to);
    } else {
      std::copy_n(values.at, count, to);
    }
    to += count;
  }
};

struct CandidateSink {
  float* scores;
  int64_t* ids;
  int32_t* len;

  void block(int64_t at, const float* values, const int64_t* tokens, int n) {
    std::copy_n(values, n, scores + at);
    std::copy_n(tokens, n, ids + at);
  }
  void reached(int64_t count) { *len = static_cast<int32_t>(count); }
};

// One entry of token_logprobs.
struct EntrySink {
  int64_t* ids;
  float* logprobs;
  int64_t* rank;
  int64_t width, token;

  void fill(int64_t first_id, float logprob) {
    std::fill_n(ids, width, int64_t{-1});
    ids[0] = first_id;
    std::fill_n(logprobs, width, logprob);
    *rank = -1;
  }
  void undefined() { fill(token, -FLT_MAX); }
  void chosen(float logprob, int64_t count) {
    ids[0] = token;
    logprobs[0] = logprob;
    *rank = count;
  }
  void block(int64_t at, const float* logits, const int64_t* tokens, int n, const RowLogprobs& of_row) {
    for (int i = 0; i < n; ++i) logprobs[1 + at + i] = of_row.of(logits[i]);
    std::copy_n(tokens, n, ids + 1 + at);
  }
};

// body(type, row, team, shared) for `rows` rows of V logits of the call's type.
template <class Args, class Body>
void each_row(const Args& a, Context threads, int64_t rows, Body body) {
  with_float_type(a.logits_type, [&](auto type) {
    each(threads, rows, a.V, [&](int64_t r) {
      Solo team;
      SoloShared shared;
      body(type, r, team, shared);
    });
  });
}

template <class L, class Args>
WholeRow<L> row_of(L, const Args& a, int64_t r) {
  return {static_cast<const typename L::Bits*>(a.logits) + r * a.V, a.V};
}

}  // namespace

void sample_target(const SampleTargetArgs& a, Context threads) {
  const AskedLogprob asked = {a.logprobs != nullptr, a.ranks != nullptr, a.logprob_mode};
  each_row(a, threads, a.R_cap, [&](auto type, int64_t r, Solo& team, SoloShared& shared) {
    TokenSink sink = {a, r};
    if (a.position[r] < 0) return write_undefined(asked, 0.0f, sink);
    auto row = row_of(type, a, r);
    const RowSeed seed = {a.row_seed[r], a.position[r], a.purpose};
    sample_row<decltype(type)>(team, row, shared, 0, params_of(a, r), seed, asked, sink);
  });
}
SPECDEC_OP(sample_target, kRowLimits)

void processed_probs(const ProcessedProbsArgs& a, Context threads) {
  each_row(a, threads, a.R_cap, [&](auto type, int64_t r, Solo& team, SoloShared& shared) {
    auto row = row_of(type, a, r);
    ProbsSink sink = {a.probs + r * a.V};
    if (a.position[r] >= 0 && row_probs<decltype(type)>(team, row, shared, 0, params_of(a, r), sink)) return;
    std::fill_n(a.probs + r * a.V, a.V, 0.0f);
  });
}
SPECDEC_OP(processed_probs, kRowLimits)

void top_p_candidates(const TopPCandidatesArgs& a, Context threads) {
  each(threads, a.R_cap, a.V / 2, [&](int64_t r) {
    CandidateSink sink = {a.candidate_scores + r * a.C, a.candidate_ids + r * a.C, a.candidate_lens + r};
    const int64_t b = a.batch_id_per_token_output[r];
    if (b < 0 || b >= a.M) {
      std::fill_n(sink.scores, a.C, 0.0f);
      std::fill_n(sink.ids, a.C, int64_t{-1});
      return sink.reached(0);
    }
    Solo team;
    SoloShared shared;
    WholeRow<Probability> row(a.probs + r * a.V, a.V);
    row_candidates(team, row, shared, 0, a.C, a.top_p[b], sink);
  });
}
SPECDEC_OP(top_p_candidates, kRowLimits)

void token_logprobs(const TokenLogprobsArgs& a, Context threads) {
  const int64_t accepted = clamp64(a.cu_batch_token_offset[a.B], 0, a.A_cap);
  each_row(a, threads, a.A_cap, [&](auto type, int64_t entry, Solo& team, SoloShared& shared) {
    const int64_t r = a.rows[entry], token = a.token_ids[entry];
    EntrySink sink = {a.ids + entry * a.N, a.logprobs + entry * a.N, a.ranks + entry, a.N, token};
    if (entry >= accepted || r < 0 || r >= a.R_cap || token < 0 || token >= a.V) return sink.fill(-1, 0.0f);
    using L = decltype(type);
    auto row = row_of(type, a, r);
    const float chosen = L::widen(static_cast<const typename L::Bits*>(a.logits)[r * a.V + token]);
    row_logprobs<L>(team, row, shared, 0, chosen, a.N - 1, sink);
  });
}
SPECDEC_OP(token_logprobs, kRowLimits)

}  // namespace specdec::cpu
