// From the arguments of the ops over rows (sampling.h) to what their kernels get: addresses and sizes; the rows
// themselves are an argument of their own where their type varies.
#pragma once

#include "specdec/row_floats.h"
#include "specdec_ops/sampling.h"

namespace specdec {

// body(Float32{} | Float16{} | BFloat16{})
template <typename Body>
void with_logit_type(LogitType type, Body body) {
  switch (type) {
    case LogitType::kFloat32:
      return body(Float32{});
    case LogitType::kFloat16:
      return body(Float16{});
    case LogitType::kBfloat16:
      return body(BFloat16{});
  }
}

struct SamplingTensors {
  const float *temperature, *top_p, *min_p;
  const int32_t* top_k;
  const int64_t* seed;  // null: not used
  const int64_t* position;
  int64_t rows, vocabulary;
};

inline SamplingTensors tensors_of(const SampleTargetArgs& a) {
  return {a.row_temperature, a.row_top_p, a.row_min_p, a.row_top_k, a.row_seed, a.position, a.size.rows,
          a.size.vocabulary};
}

inline SamplingTensors tensors_of(const ProcessedProbsArgs& a) {
  return {a.row_temperature, a.row_top_p, a.row_min_p, a.row_top_k, nullptr, a.position, a.size.rows,
          a.size.vocabulary};
}

struct CandidateTensors {
  const float *probs, *top_p;
  const int32_t* slot_of_row;
  float* scores;
  int64_t* ids;
  int32_t* lens;
  int64_t rows, vocabulary, slots, candidates;
};

inline CandidateTensors tensors_of(const TopPCandidatesArgs& a) {
  return {a.probs,          a.top_p, a.batch_id_per_token_output, a.candidate_scores, a.candidate_ids,
          a.candidate_lens, a.rows,  a.vocabulary,                a.slots,            a.candidates};
}

struct LogprobTensors {
  const int32_t* rows;
  const int64_t* token_ids;
  const int32_t* accepted;  // the last offset
  int64_t* ids;
  float* logprobs;
  int64_t* ranks;
  int64_t row_count, vocabulary, entries, width;
};

inline LogprobTensors tensors_of(const TokenLogprobsArgs& a) {
  return {a.rows,  a.token_ids, a.cu_batch_token_offset + a.slots, a.ids,     a.logprobs,
          a.ranks, a.size.rows, a.size.vocabulary,                 a.entries, a.width};
}

struct PenaltyTensors {
  const int64_t *token_ids_all, *prompt_lens, *step_idx, *draft_tokens;
  const int32_t *cu_seqlens_q_output, *slot_of_row;
  const float *repetition, *frequency, *presence;
  const int64_t *bad_tokens, *end_tokens, *min_dec_len;
  int64_t rows, vocabulary, row_width, draft_width, slots, bad_count, end_count;
};

// `slots`: those in use; a row of another one is left as it is.
inline PenaltyTensors tensors_of(const ApplyPenaltiesArgs& a) {
  return {a.token_ids_all,
          a.prompt_lens,
          a.step_idx,
          a.draft_tokens,
          a.cu_seqlens_q_output,
          a.batch_id_per_token_output,
          a.repetition,
          a.frequency,
          a.presence,
          a.bad_tokens,
          a.end_tokens,
          a.min_dec_len,
          a.size.rows,
          a.size.vocabulary,
          a.row_width,
          a.draft_width,
          a.slots_in_use,
          a.bad_count,
          a.end_count};
}

}  // namespace specdec
