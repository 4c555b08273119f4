// limit_thinking: one lane of a warp per slot, to avoid divergence between slots. reasoning_constraint: a block per
// slot, whose first warp finds the rows to mask; the block masks them, once per request.
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

// Moves a slot's status, and returns which of its rows are constrained, from `first` on. All lanes of a warp: each
// looks at a token, and the status passes through all moves in registers.
__device__ __forceinline__ uint32_t move_status(const ReasoningConstraintArgs& a, int64_t b, int64_t first,
                                                int64_t stop) {
  constexpr int kMoves = int{kWarp} - NewestTokens::kCount + 1;  // whose newest tokens the lanes have
  const bool thinks = ptx::recomputed(a.enable_thinking[b]) != 0;  // opaque, to be loaded here
  const int32_t enc = a.seq_lens_encoder[b];
  int32_t status = a.reasoning_status[b];
  const ReasoningSlot slot = {thinks, enc, history_bounds(a.L, a.prompt_lens[b], a.step_idx[b]), a.think_end_id,
                              a.line_break_id};
  const int64_t known = a.reasoning_seen == nullptr ? slot.generated() - 1 : a.reasoning_seen[b];
  const bool moves = !a.stop_flags[b] && first < stop;  // without a branch, loads do not wait for others
  const bool every_row = a.draft_tokens != nullptr && enc <= 0;
  const SlotText text = {a.token_ids_all + b * a.L, every_row ? a.draft_tokens + b * a.S + 1 : nullptr,
                         slot.history.end};
  const auto generated = static_cast<int>(slot.generated());
  const int rows = every_row ? static_cast<int>(min64(stop - first, a.S)) : 1;
  const int last = moves ? generated + rows - 1 : -1;
  int32_t kept = status;  // after the generated tokens
  uint32_t constrained = 0;
  auto count = static_cast<int>(slot.first_move(known));
  if (moves && count > generated && status == kConstrained) constrained = 1;
  while (count <= last) {
    const int own = count - NewestTokens::kCount + static_cast<int>(lane_id());  // after the prompt
    const int64_t token = own >= 0 && own < last ? text[slot.history.prompt_end + own] : -1;
    uint32_t ends = __ballot_sync(kAllLanes, own >= 0 && token == a.think_end_id);
    uint32_t breaks = __ballot_sync(kAllLanes, own >= 0 && token == a.line_break_id);
    const int upto = min(last, count + kMoves - 1);
    for (; count <= upto; ++count, ends >>= 1, breaks >>= 1) {
      const int32_t next = slot.next(status, count, {ends & 0xFu, breaks & 0xFu});
      const bool final = next == status && !follows_text(status);
      status = next;
      if (count <= generated) kept = status;
      if (count >= generated && status == kConstrained) constrained |= 1u << (count - generated);
      if (final) count = last;
    }
  }
  __syncwarp();  // all have read the status
  if (moves && lane_id() == 0) {
    a.reasoning_status[b] = kept;
    if (a.reasoning_seen != nullptr) a.reasoning_seen[b] = generated;
  }
  // Rows in [0, R_cap).
  if (first < 0) constrained = first > -32 ? constrained & 0xFFFFFFFFu << -first : 0;
  return a.R_cap - first < 32 ? constrained & ((1u << max64(a.R_cap - first, 0)) - 1u) : constrained;
}

template <class L>
__global__ void __launch_bounds__(kMaskThreads)
    reasoning_constraint_kernel(const __grid_constant__ ReasoningConstraintArgs a, typename L::Bits masked) {
  __shared__ uint32_t shared_rows;
  wait_for_previous();
  let_next_start();
  const int64_t b = blockIdx.x, first = a.cu_seqlens_q_output[b];
  if (warp_id() == 0) {
    const uint32_t constrained = move_status(a, b, first, a.cu_seqlens_q_output[b + 1]);
    if (lane_id() == 0) shared_rows = constrained;
  }
  __syncthreads();
  const uint32_t constrained = shared_rows;
  if (constrained == 0 || a.H == 0) return;
  const int64_t allowed = a.allowed_tokens[threadIdx.x % static_cast<unsigned>(a.H)];
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
