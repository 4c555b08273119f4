// Arguments of the ops that work on rows of logits or probabilities (contract, sections 3 and 7). Pointers and sizes
// are those of the contract; logits are float32, float16 or bfloat16.
#pragma once

#include <cstdint>

namespace specdec {

enum class LogitType : int { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

// R_cap rows of V logits.
struct LogitRows {
  LogitType type;
  int64_t rows, vocabulary;
};

struct SampleTargetArgs {
  LogitRows size;
  const void* logits;
  const float *row_temperature, *row_top_p;
  const int32_t* row_top_k;
  const float* row_min_p;
  const int64_t *row_seed, *position;
  int64_t* target_tokens;
};

struct ProcessedProbsArgs {
  LogitRows size;
  const void* logits;
  const float *row_temperature, *row_top_p;
  const int32_t* row_top_k;
  const float* row_min_p;
  const int64_t* position;
  float* probs;
};

struct TopPCandidatesArgs {
  int64_t rows, vocabulary, slots, candidates;
  const float *probs, *top_p;
  const int32_t* batch_id_per_token_output;
  float* candidate_scores;
  int64_t* candidate_ids;
  int32_t* candidate_lens;
};

struct TokenLogprobsArgs {
  LogitRows size;
  int64_t slots, entries, width;
  const void* logits;
  const int32_t* rows;
  const int64_t* token_ids;
  const int32_t* cu_batch_token_offset;
  int64_t* ids;
  float* logprobs;
  int64_t* ranks;
};

struct ApplyPenaltiesArgs {
  LogitRows size;
  int64_t slots, slots_in_use, row_width, draft_width, bad_count, end_count;
  void* logits;
  const int64_t *token_ids_all, *prompt_lens, *step_idx, *draft_tokens;
  const int32_t *cu_seqlens_q_output, *batch_id_per_token_output;
  const float *repetition, *frequency, *presence;
  const int64_t *bad_tokens, *end_tokens, *min_dec_len;
};

}  // namespace specdec
