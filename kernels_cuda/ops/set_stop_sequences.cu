// set_stop_sequences: a warp a slot. A lane looks for one sequence behind one emitted token; lanes take these pairs in
// order of the tokens, so that the lowest lane that finds a sequence has the first token.
#include "launch.cuh"
#include "ops.h"
#include "specdec/schedule.h"
#include "specdec_ops/set_stop_sequences.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kStopThreads = 128;
constexpr int kTogether = 8;  // tokens of a sequence

__global__ void __launch_bounds__(kStopThreads)
    set_stop_sequences_kernel(const __grid_constant__ SetStopSequencesArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * (kStopThreads / kWarp) + warp_id();
  if (b >= a.M || a.Q == 0) return;
  const EmittedTokens emitted(a.prompt_lens[b], a.step_idx[b], a.min_dec_len[b], a.accept_num[b], a.L, a.S);
  int64_t* accepted = a.accept_tokens + b * a.S;
  const SlotText text = {a.token_ids_all + b * a.L + emitted.prompt_end, accepted, emitted.step};
  const int64_t pairs = (emitted.count - emitted.first) * a.Q;
  for (int64_t low = 0;; low += kWarp) {
    // Loaded before it is known whether there are so many pairs, and so together with the state of the slot.
    const int64_t pair = low + lane_id(), at = b * a.Q + pair % a.Q;
    const int64_t size = clamp64(a.stop_seqs_lens[at], 0, a.Z);
    if (low >= pairs) return;
    const int64_t i = emitted.first + pair / a.Q;
    const int64_t* sequence = a.stop_seqs + at * a.Z;
    const bool found = pair < pairs && ends_with<kTogether>(text, emitted.generated(i), sequence, size);
    const uint32_t lanes = __ballot_sync(kAllLanes, found);
    if (lanes == 0) continue;
    const int64_t stop = emitted.first + (low + __ffs(static_cast<int>(lanes)) - 1) / a.Q;
    for (int64_t k = stop + 1 + lane_id(); k < a.S; k += kWarp) accepted[k] = -1;
    if (lane_id() == 0) {
      a.accept_num[b] = static_cast<int32_t>(stop + 1);
      a.max_dec_len[b] = emitted.generated(stop);
      if (a.end_at_stop && a.E > 0) accepted[stop] = a.end_tokens[0];
    }
    return;
  }
}

void set_stop_sequences(const SetStopSequencesArgs& a, cudaStream_t stream) {
  launch("set_stop_sequences", stream, {blocks_for(a.M, kStopThreads / kWarp), kStopThreads}, set_stop_sequences_kernel,
         a);
}
SPECDEC_OP(set_stop_sequences, kLimits)

}  // namespace specdec::cuda
