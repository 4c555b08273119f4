// write_accepted and clear_accept_num: a thread a slot.
#include "launch.cuh"
#include "ops.h"
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
  if (b >= a.B || a.stop_flags[b] || (a.seq_lens_encoder[b] <= 0 && a.seq_lens_decoder[b] <= 0)) return;
  const WrittenTokens tokens = written_tokens(a.prompt_lens[b], a.step_idx[b], a.accept_num[b], a.last_index, a.S, a.L);
  int64_t* row = a.token_ids_all + b * a.L;
  for (int64_t i = tokens.first; i < tokens.end; ++i) row[tokens.start + i] = a.accept_tokens[b * a.S + i];
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
