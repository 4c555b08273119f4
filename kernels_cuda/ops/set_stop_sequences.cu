// set_stop_sequences: a warp a slot. A lane looks for one sequence after one emitted token; lanes take these pairs in
// order of the tokens, so that the lowest lane that finds a sequence has the first token.
#include "launch.cuh"
#include "ops.h"
#include "specdec/schedule.h"
#include "specdec_ops/set_stop_sequences.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kStopThreads = 128;
constexpr int kTogether = 4;  // tokens of a sequence

// Pairs of a slot are counted in 32 bits.
constexpr Limit kStopLimits[] = {{"M", served::kM}, {"S", served::kS}, {"L", served::kL}, {"Q", 1 << 20}};

__global__ void __launch_bounds__(kStopThreads)
    set_stop_sequences_kernel(const __grid_constant__ SetStopSequencesArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * (kStopThreads / kWarp) + warp_id();
  if (b >= a.M || a.Q == 0) return;
  const bool ends = a.end_after_stop && a.E > 0;
  const EmittedTokens emitted(a.prompt_lens[b], a.step_idx[b], a.min_dec_len[b], a.accept_num[b], ends, a.L, a.S);
  int64_t* accepted = a.accept_tokens + b * a.S;
  const SlotText text = {a.token_ids_all + b * a.L + emitted.prompt_end, accepted, emitted.step};
  const int64_t end = ends ? a.end_tokens[0] : -1;
  const auto width = static_cast<uint32_t>(a.Q), pairs = static_cast<uint32_t>(emitted.count - emitted.first) * width;
  for (uint32_t low = 0;; low += kWarp) {
    // Loaded speculatively, together with the slot's state.
    const uint32_t pair = low + lane_id();
    const int64_t at = b * a.Q + pair % width;
    const int64_t size = clamp64(a.stop_seqs_lens[at], 0, a.Z);
    if (low >= pairs) return;
    const int64_t i = emitted.first + pair / width;
    const int64_t* sequence = a.stop_seqs + at * a.Z;
    const bool found = pair < pairs && ends_with<kTogether>(text, emitted.generated(i), sequence, size);
    const uint32_t lanes = __ballot_sync(kAllLanes, found);
    if (lanes == 0) continue;
    const int64_t stop = emitted.first + (low + __ffs(static_cast<int>(lanes)) - 1) / width;
    for (int64_t k = stop + 1 + lane_id(); k < a.S && !a.keep_tail; k += kWarp) accepted[k] = -1;
    if (lane_id() == 0) {
      a.accept_num[b] = static_cast<int32_t>(stop + 1);
      a.max_dec_len[b] = emitted.step + stop + 1;
      if (ends) accepted[stop] = end;
    }
    return;
  }
}

void set_stop_sequences(const SetStopSequencesArgs& a, cudaStream_t stream) {
  launch("set_stop_sequences", stream, {blocks_for(a.M, kStopThreads / kWarp), kStopThreads}, set_stop_sequences_kernel,
         a);
}
SPECDEC_OP(set_stop_sequences, kStopLimits)

}  // namespace specdec::cuda
