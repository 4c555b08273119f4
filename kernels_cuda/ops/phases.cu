// limit_thinking: one lane of a warp per slot, to avoid divergence between slots. reasoning_constraint: a block per
// slot, which masks its rows if needed, once per request.
#include "launch.cuh"
#include "ops.h"
#include "register_tokens.cuh"
#include "specdec/phases.h"
#include "specdec/row_floats.h"
#include "specdec_ops/limit_thinking.h"
#include "specdec_ops/reasoning_constraint.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kLimitThreads = 128;

__global__ void __launch_bounds__(kLimitThreads) limit_thinking_kernel(const __grid_constant__ LimitThinkingArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * (kLimitThreads / kWarp) + warp_id();
  if (b >= a.M || lane_id() != 0) return;
  int64_t* tokens = a.accept_tokens + b * a.S;
  const RegisterTokens<> accepted(tokens, a.S);
  const RegisterTokens<2> ends(a.end_tokens, a.E);
  const ThinkingLimits limits = {a.think_end_id, a.J, a.E, a.max_think_lens[b], a.max_reply_lens[b], a.fastdeploy};
  const int64_t count = clamp64(a.accept_num[b], 0, a.S), step = a.step_idx[b];
  int32_t status = a.limit_status[b], max_reply = limits.max_reply;
  if (a.stop_flags[b] || !limits.any() || count == 0) return;
  const int64_t* inject = a.inject_token_ids;
  const Replacement replaced = limit_thinking_slot(&status, &max_reply, limits, step, count, accepted, ends, inject);
  a.limit_status[b] = status;
  if (max_reply != limits.max_reply) a.max_reply_lens[b] = max_reply;
  if (replaced.at == count) return;
  tokens[replaced.at] = replaced.token;
  for (int64_t i = replaced.at + 1; i < a.S && !a.keep_tail; ++i) tokens[i] = -1;
  a.accept_num[b] = static_cast<int32_t>(replaced.at + 1);
}

constexpr unsigned kMaskThreads = 512;
static_assert(served::kS <= 32, "a bit for each row of a slot");

// Masks rows of logits, whose bits are set, but for the allowed tokens. All threads of the block; `allowed` is token
// threadIdx.x % H of them. The allowed logits are kept in registers while rows are overwritten; testing every token
// takes H loads each and is only used for many allowed tokens.
template <typename Bits>
__device__ __forceinline__ void mask_rows(const ReasoningConstraintArgs& a, Bits* logits, uint32_t rows, Bits masked,
                                          int64_t allowed) {
  if ((32 - __clz(static_cast<int>(rows))) * a.H > kMaskThreads) {
    for (uint32_t left = rows; left != 0; left &= left - 1) {
      Bits* row = logits + (__ffs(static_cast<int>(left)) - 1) * a.V;
      for (int64_t v = threadIdx.x; v < a.V; v += kMaskThreads) {
        if (!specdec::contains(a.allowed_tokens, a.H, v)) row[v] = masked;
      }
    }
    return;
  }
  const unsigned own = threadIdx.x / static_cast<unsigned>(a.H);  // the row of this thread's logit
  const bool keeps = own < 32 && (rows >> own & 1) != 0 && allowed >= 0 && allowed < a.V;
  Bits* cell = logits + own * a.V + allowed;
  const Bits kept = keeps ? *cell : masked;
  __syncthreads();
  for (uint32_t left = rows; left != 0; left &= left - 1) {
    Bits* row = logits + (__ffs(static_cast<int>(left)) - 1) * a.V;
    for (int64_t v = threadIdx.x; v < a.V; v += kMaskThreads) row[v] = masked;
  }
  __syncthreads();
  if (keeps) *cell = kept;
}

template <class L>
__global__ void __launch_bounds__(kMaskThreads)
    reasoning_constraint_kernel(const __grid_constant__ ReasoningConstraintArgs a, typename L::Bits masked) {
  wait_for_previous();
  let_next_start();
  const int64_t b = blockIdx.x, first = a.cu_seqlens_q_output[b], stop = a.cu_seqlens_q_output[b + 1];
  const int64_t allowed = a.H > 0 ? a.allowed_tokens[threadIdx.x % static_cast<uint64_t>(a.H)] : -1;
  const int32_t enc = a.seq_lens_encoder[b];
  int32_t status = a.reasoning_status[b];
  const ReasoningSlot slot = {a.enable_thinking[b], enc, history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]),
                              a.think_end_id, a.line_break_id};
  const bool every_row = a.draft_tokens != nullptr && enc <= 0;
  const SlotText text = {a.token_ids_all + b * a.L, every_row ? a.draft_tokens + b * a.S + 1 : nullptr,
                         slot.history.end};
  const int64_t known = a.reasoning_seen == nullptr ? 0 : a.reasoning_seen[b];
  if (a.stop_flags[b] || first >= stop) return;
  status = a.reasoning_seen == nullptr ? slot.move(status, slot.generated(), text) : slot.follow(status, known, text);
  __syncthreads();  // all have read the status
  if (threadIdx.x == 0) {
    a.reasoning_status[b] = status;
    if (a.reasoning_seen != nullptr) a.reasoning_seen[b] = slot.generated();
  }
  const int64_t rows = every_row ? min64(stop - first, a.S) : 1;
  uint32_t constrained = 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (i > 0) status = slot.move(status, slot.generated() + i, text);
    const int64_t row = first + i;
    constrained |= static_cast<uint32_t>(status == kConstrained && row >= 0 && row < a.R_cap) << i;
  }
  if (constrained == 0 || a.H == 0) return;
  mask_rows(a, static_cast<typename L::Bits*>(a.logits) + first * a.V, constrained, masked, allowed);
}

void limit_thinking(const LimitThinkingArgs& a, cudaStream_t stream) {
  launch("limit_thinking", stream, {blocks_for(a.M, kLimitThreads / kWarp), kLimitThreads}, limit_thinking_kernel, a);
}
SPECDEC_OP(limit_thinking, kLimits)

void reasoning_constraint(const ReasoningConstraintArgs& a, cudaStream_t stream) {
  if (a.B == 0) return;
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("reasoning_constraint", stream, {blocks_for(a.B, 1), kMaskThreads}, reasoning_constraint_kernel<L>, a,
           L::narrow(masked_logit(a.logits_type)));
  });
}
SPECDEC_OP(reasoning_constraint, kLimits)

}  // namespace specdec::cuda
