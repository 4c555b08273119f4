// write_accepted and clear_accept_num: a thread a slot.
#include "launch.cuh"
#include "ops.h"
#include "register_tokens.cuh"
#include "specdec/schedule.h"
#include "specdec_ops/clear_accept_num.h"
#include "specdec_ops/write_accepted.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr unsigned kAcceptedThreads = 128;

__global__ void __launch_bounds__(kAcceptedThreads) write_accepted_kernel(const __grid_constant__ WriteAcceptedArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * kAcceptedThreads + threadIdx.x;
  if (b >= a.B) return;
  const RegisterTokens<> accepted(a.accept_tokens + b * a.S, a.S);
  const WrittenTokens tokens = written_tokens(a.prompt_lens[b], a.step_idx[b], a.accept_num[b], a.last_index, a.S, a.L);
  const int32_t enc = a.seq_lens_encoder[b], dec = a.seq_lens_decoder[b];
  if (a.stop_flags[b] || (enc <= 0 && dec <= 0)) return;
  int64_t* row = a.token_ids_all + b * a.L + tokens.start;
  accepted.each(tokens.first, tokens.end, [&](int64_t i, int64_t token) { row[i] = token; });
}

__global__ void __launch_bounds__(kAcceptedThreads)
    clear_accept_num_kernel(const __grid_constant__ ClearAcceptNumArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * kAcceptedThreads + threadIdx.x;
  if (b < a.M && a.seq_lens_decoder[b] <= 0) a.accept_num[b] = 0;
}

void write_accepted(const WriteAcceptedArgs& a, cudaStream_t stream) {
  launch("write_accepted", stream, {blocks_for(a.B, kAcceptedThreads), kAcceptedThreads}, write_accepted_kernel, a);
}
SPECDEC_OP(write_accepted, kLimits)

void clear_accept_num(const ClearAcceptNumArgs& a, cudaStream_t stream) {
  launch("clear_accept_num", stream, {blocks_for(a.M, kAcceptedThreads), kAcceptedThreads}, clear_accept_num_kernel, a);
}
SPECDEC_OP(clear_accept_num, kLimits)

}  // namespace specdec::cuda
