// prepare_inputs, gather_accepted, prepare_block_inputs: slots packed one after the other. build_sampling_params.
#include "../op.h"
#include "specdec/drafter.h"
#include "specdec/seeds.h"
#include "specdec/step_index.h"
#include "specdec_ops/build_sampling_params.h"
#include "specdec_ops/gather_accepted.h"
#include "specdec_ops/prepare_block_inputs.h"
#include "specdec_ops/prepare_inputs.h"

namespace specdec::cpu {

void prepare_inputs(const PrepareInputsArgs& a, Context) {
  int64_t tokens = 0, keys = 0, rows = 0;
  a.cu_seqlens_q[0] = a.cu_seqlens_k[0] = a.cu_seqlens_q_output[0] = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const int32_t enc = a.seq_lens_encoder[b];
    const StepShare share = step_share(a.seq_lens_this_time[b], enc, a.seq_lens_decoder[b], a.I_cap, a.S);
    const int64_t fits = clamp64(a.T_cap - tokens, 0, share.tokens), rows_fit = clamp64(a.R_cap - rows, 0, share.rows);
    const int64_t* row = enc > 0 ? a.input_ids + b * a.I_cap : a.draft_tokens + b * a.S;
    for (int64_t i = 0; i < fits; ++i) a.ids_remove_padding[tokens + i] = row[i];
    for (int64_t i = 0; i < fits; ++i) a.batch_id_per_token[tokens + i] = static_cast<int32_t>(b);
    for (int64_t i = 0; i < rows_fit; ++i) a.batch_id_per_token_output[rows + i] = static_cast<int32_t>(b);
    a.cu_seqlens_q[b + 1] = saturate32(tokens += share.tokens);
    a.cu_seqlens_k[b + 1] = saturate32(keys += share.keys);
    a.cu_seqlens_q_output[b + 1] = saturate32(rows += share.rows);
  }
  a.num_tokens[0] = saturate32(tokens);
  a.num_tokens[1] = saturate32(rows);
  for (int64_t t = tokens; t < a.T_cap; ++t) a.ids_remove_padding[t] = 0;
  for (int64_t t = tokens; t < a.T_cap; ++t) a.batch_id_per_token[t] = -1;
  for (int64_t r = rows; r < a.R_cap; ++r) a.batch_id_per_token_output[r] = -1;
}
SPECDEC_OP(prepare_inputs, kUnlimited)

void gather_accepted(const GatherAcceptedArgs& a, Context) {
  int64_t accepted = 0;
  a.cu_batch_token_offset[0] = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const int64_t count = accepted_share(a.accept_num[b], a.seq_lens_this_time[b], a.S);
    const int64_t fits = clamp64(a.A_cap - accepted, 0, count);
    for (int64_t i = 0; i < fits; ++i) {
      a.token_ids[accepted + i] = a.accept_tokens[b * a.S + i];
      a.rows[accepted + i] = accepted_row(a.cu_seqlens_q_output[b], a.seq_lens_encoder[b], i, a.R_cap);
    }
    a.cu_batch_token_offset[b + 1] = static_cast<int32_t>(accepted += count);
  }
  for (int64_t i = accepted; i < a.A_cap; ++i) {
    a.token_ids[i] = -1;
    a.rows[i] = -1;
  }
}
SPECDEC_OP(gather_accepted, kUnlimited)

void prepare_block_inputs(const PrepareBlockInputsArgs& a, Context) {
  int64_t rows = 0;
  a.block_cu_seqlens_q[0] = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    const int32_t start = a.cu_seqlens_q[b], end = a.cu_seqlens_q[b + 1];
    const BlockShare block = block_share(start, end, a.T_cap, a.num_masks, a.anchor_only);
    const int64_t fits = clamp64(a.F_cap - rows, 0, block.rows);
    for (int64_t i = 0; i < fits; ++i) {
      const int64_t from = block_source(i, block.tokens, start, end, a.T_cap, a.anchor_only);
      a.block_token_ids[rows + i] = from >= 0 ? a.ids_remove_padding[from] : a.mask_token_id;
      a.block_batch_ids[rows + i] = static_cast<int32_t>(b);
      a.block_source_rows[rows + i] = static_cast<int32_t>(from);
    }
    a.block_cu_seqlens_q[b + 1] = saturate32(rows += block.rows);
    a.block_seq_lens_decoder[b] = block_position(a.seq_lens_decoder[b], block.fed, a.anchor_only);
  }
  for (int64_t i = rows; i < a.F_cap; ++i) {
    a.block_token_ids[i] = 0;
    a.block_batch_ids[i] = a.block_source_rows[i] = -1;
  }
}
SPECDEC_OP(prepare_block_inputs, kUnlimited)

void build_sampling_params(const BuildSamplingParamsArgs& a, Context) {
  const bool advances = a.infer_seed != nullptr;
  for (int64_t r = 0; r < a.R_cap; ++r) {
    const int64_t b = a.batch_id_per_token_output[r];
    const bool used = b >= 0 && b < a.B;
    const int64_t i = used ? r - a.cu_seqlens_q_output[b] : 0;
    a.row_temperature[r] = used ? a.temperature[b] : 1.0f;
    a.row_top_p[r] = used ? a.top_p[b] : 1.0f;
    a.row_top_k[r] = used ? a.top_k[b] : 0;
    a.row_min_p[r] = used ? a.min_p[b] : 0.0f;
    a.row_seed[r] = !used      ? 0
                    : advances ? advanced_seed(a.infer_seed[b], a.row_seed_step, i, a.seed_modulus)
                               : a.seed[b];
    a.position[r] = used ? wrap_add(wrap_add(a.prompt_lens[b], a.step_idx[b]), i) : -1;
  }
  for (int64_t b = 0; advances && b < a.B; ++b) {
    a.infer_seed[b] = advanced_seed(a.infer_seed[b], a.seed_increment, 1, a.seed_modulus);
  }
}
SPECDEC_OP(build_sampling_params, kUnlimited)

}  // namespace specdec::cpu
