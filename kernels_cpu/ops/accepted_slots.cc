// write_accepted, clear_accept_num.
#include "../op.h"
#include "specdec/schedule.h"
#include "specdec_ops/clear_accept_num.h"
#include "specdec_ops/write_accepted.h"

namespace specdec::cpu {

void write_accepted(const WriteAcceptedArgs& a, Context) {
  for (int64_t b = 0; b < a.B; ++b) {
    if (a.stop_flags[b] || (a.seq_lens_encoder[b] <= 0 && a.seq_lens_decoder[b] <= 0)) continue;
    const WrittenTokens tokens =
        written_tokens(a.prompt_lens[b], a.step_idx[b], a.accept_num[b], a.last_index, a.S, a.L);
    std::copy_n(a.accept_tokens + b * a.S + tokens.first, max64(tokens.end - tokens.first, 0),
                a.token_ids_all + b * a.L + tokens.start + tokens.first);
  }
}
SPECDEC_OP(write_accepted, kUnlimited)

void clear_accept_num(const ClearAcceptNumArgs& a, Context) {
  for (int64_t b = 0; b < a.M; ++b) {
    if (a.seq_lens_decoder[b] <= 0) a.accept_num[b] = 0;
  }
}
SPECDEC_OP(clear_accept_num, kUnlimited)

}  // namespace specdec::cpu
