// prepare_inputs: every block sums all slots, then processes its part of the packed tokens, slots and tails.
#include "slot_launch.cuh"
#include "slot_scan.cuh"
#include "specdec_ops/prepare_inputs.h"

namespace specdec::cuda {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads) prepare_inputs_kernel(const __grid_constant__ PrepareInputsArgs a) {
  __shared__ uint32_t starts[Shape::kSlots];
  wait_for_previous();
  const int slots = static_cast<int>(a.B);
  const auto share = [&](int b) {
    const StepShare s = step_share(a.seq_lens_this_time[b], a.seq_lens_encoder[b], a.seq_lens_decoder[b], a.I_cap, a.S);
    return Sums<3>{
        {static_cast<uint32_t>(s.tokens), static_cast<uint32_t>(saturate32(s.keys)), static_cast<uint32_t>(s.rows)}};
  };
  const auto write = [&](int b, const Sums<3>& before, const Sums<3>& upto) {
    a.cu_seqlens_q[b + 1] = static_cast<int32_t>(upto.of[0]);
    a.cu_seqlens_k[b + 1] = static_cast<int32_t>(upto.of[1]);
    a.cu_seqlens_q_output[b + 1] = static_cast<int32_t>(upto.of[2]);
    for (uint32_t i = before.of[2]; i < min64(upto.of[2], a.R_cap); ++i) a.batch_id_per_token_output[i] = b;
  };
  const Sums<3> total = pack_slots<Shape, 3>(a.B, starts, share, write);
  const int64_t tokens = min64(total.of[0], a.T_cap);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    a.cu_seqlens_q[0] = a.cu_seqlens_k[0] = a.cu_seqlens_q_output[0] = 0;
    a.num_tokens[0] = static_cast<int32_t>(total.of[0]);
    a.num_tokens[1] = static_cast<int32_t>(total.of[2]);
  }

  const int64_t stride = int64_t{gridDim.x} * Shape::kThreads;
  const int64_t thread = int64_t{blockIdx.x} * Shape::kThreads + threadIdx.x;
  for (int64_t t = thread; t < a.T_cap; t += stride) {
    int64_t id = 0;
    int32_t slot = -1;
    if (t < tokens) {
      slot = slot_of(starts, slots, static_cast<uint32_t>(t));
      const int64_t i = t - starts[slot];
      id = a.seq_lens_encoder[slot] > 0 ? a.input_ids[slot * a.I_cap + i] : a.draft_tokens[slot * a.S + i];
    }
    a.ids_remove_padding[t] = id;
    a.batch_id_per_token[t] = slot;
  }
  for (int64_t r = total.of[2] + thread; r < a.R_cap; r += stride) a.batch_id_per_token_output[r] = -1;
}

void prepare_inputs(const PrepareInputsArgs& a, cudaStream_t stream) {
  with_slot_shape(a.B, [&](auto shape) {
    launch("prepare_inputs", stream, packed_shape("prepare_inputs", shape, max64(a.T_cap, a.B)),
           prepare_inputs_kernel<decltype(shape)>, a);
  });
}
SPECDEC_OP(prepare_inputs, kLimits)

}  // namespace specdec::cuda
