// eagle_get_hidden_states, eagle_gather_hidden_states, eagle_get_self_hidden_states.
#include "rows.h"
#include "specdec/draft_model.h"
#include "specdec_ops/eagle_gather_hidden_states.h"
#include "specdec_ops/eagle_get_hidden_states.h"
#include "specdec_ops/eagle_get_self_hidden_states.h"

namespace specdec::cpu {
namespace {

// The last rows of the slots that are active, one after the other, then zeros.
template <class Args, class Active>
void pack_last_rows(const Args& a, Context threads, Active active) {
  Sources sources(static_cast<size_t>(a.B), -1);
  size_t count = 0;
  for (int64_t b = 0; b < a.B; ++b) {
    if (active(b)) sources[count++] = last_row(a.cu_seqlens_q[b], a.cu_seqlens_q[b + 1], a.T_cap);
  }
  move_rows(threads, a.x, a.last_hidden, a.x_row_bytes, sources);
  *a.output_token_num = saturate32(static_cast<int64_t>(count));
}

}  // namespace

void eagle_get_hidden_states(const EagleGetHiddenStatesArgs& a, Context threads) {
  Sources sources(static_cast<size_t>(a.T_cap), -1);
  for (int64_t r = 0; r < a.T_cap; ++r) {
    const int64_t b = a.batch_id_per_token[r];
    if (b < 0 || b >= a.B) continue;
    sources[static_cast<size_t>(r)] =
        base_row(r, a.cu_seqlens_q[b], a.base_model_cu_seqlens_q[b], a.base_model_cu_seqlens_q[b + 1], a.T_cap);
  }
  move_rows(threads, a.x, a.out, a.x_row_bytes, sources);
}
SPECDEC_OP(eagle_get_hidden_states, kUnlimited)

void eagle_gather_hidden_states(const EagleGatherHiddenStatesArgs& a, Context threads) {
  pack_last_rows(a, threads, [&](int64_t b) { return a.cu_seqlens_q[b + 1] > a.cu_seqlens_q[b]; });
}
SPECDEC_OP(eagle_gather_hidden_states, kUnlimited)

void eagle_get_self_hidden_states(const EagleGetSelfHiddenStatesArgs& a, Context threads) {
  pack_last_rows(a, threads, [&](int64_t b) { return a.seq_lens_this_time[b] > 0; });
}
SPECDEC_OP(eagle_get_self_hidden_states, kUnlimited)

}  // namespace specdec::cpu
