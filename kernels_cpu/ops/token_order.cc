// adjust_batch, recover_batch, gather_next_token: packed rows in slot order and in the device's order.
#include "rows.h"
#include "specdec/step_index.h"
#include "specdec_ops/adjust_batch.h"
#include "specdec_ops/gather_next_token.h"
#include "specdec_ops/recover_batch.h"

namespace specdec::cpu {
namespace {

template <class Args>
RowRange rows_of(const Args& a, int64_t b) {
  return slot_rows(a.cu_seqlens_q[b], a.seq_lens_this_time[b], a.T_cap);
}

// body(slot-order row, its token_row) in the device's order, for rows that have one.
template <class Args, class Body>
void each_placed(const Args& a, Body body) {
  const bool prefill_first = a.token_order == TokenOrder::kPrefillFirst;
  int64_t token_row = 0;
  for (int pass = 0; pass < placement_passes(prefill_first); ++pass) {
    for (int64_t b = 0; b < a.B; ++b) {
      if (!placed_in_pass(prefill_first, pass, a.seq_lens_encoder[b])) continue;
      const RowRange rows = rows_of(a, b);
      for (int64_t row = rows.start; row < rows.stop; ++row, ++token_row) {
        if (token_row >= a.T_cap) return;
        body(row, token_row);
      }
    }
  }
}

// The token_row of each slot-order row; the last one if slots overlap.
template <class Args>
Sources token_rows(const Args& a) {
  Sources rows(static_cast<size_t>(a.T_cap), -1);
  each_placed(a, [&](int64_t row, int64_t token_row) { rows[static_cast<size_t>(row)] = token_row; });
  return rows;
}

}  // namespace

void adjust_batch(const AdjustBatchArgs& a, Context threads) {
  Sources sources(static_cast<size_t>(a.T_cap), -1);
  each_placed(a, [&](int64_t row, int64_t token_row) { sources[static_cast<size_t>(token_row)] = row; });
  move_rows(threads, a.x, a.out, a.x_row_bytes, sources);
}
SPECDEC_OP(adjust_batch, kUnlimited)

void recover_batch(const RecoverBatchArgs& a, Context threads) {
  move_rows(threads, a.x, a.out, a.x_row_bytes, token_rows(a));
}
SPECDEC_OP(recover_batch, kUnlimited)

void gather_next_token(const GatherNextTokenArgs& a, Context threads) {
  const Sources of_row = token_rows(a);
  Sources sources(static_cast<size_t>(a.is_speculative ? a.R_cap : a.B), -1);
  for (size_t r = 0; r < sources.size(); ++r) {
    const int64_t at = static_cast<int64_t>(r), b = a.is_speculative ? a.batch_id_per_token_output[r] : at;
    if (b < 0 || b >= a.B) continue;
    const RowRange rows = rows_of(a, b);
    if (rows.size() <= 0) continue;
    const int64_t i = a.is_speculative ? at - a.cu_seqlens_q_output[b] : 0;
    sources[r] = of_row[static_cast<size_t>(predicting_row(rows, a.is_speculative, a.seq_lens_encoder[b], i))];
  }
  move_rows(threads, a.x, a.out, a.x_row_bytes, sources);
}
SPECDEC_OP(gather_next_token, kUnlimited)

}  // namespace specdec::cpu
