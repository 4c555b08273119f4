// gather_accepted: every block sums all slots, then processes its part of the packed tokens and slots.
#include "slot_launch.cuh"
#include "slot_scan.cuh"
#include "specdec_ops/gather_accepted.h"

namespace specdec::cuda {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    gather_accepted_kernel(const __grid_constant__ GatherAcceptedArgs a) {
  __shared__ uint32_t starts[Shape::kSlots];
  wait_for_previous();
  const int slots = static_cast<int>(a.B);
  const auto share = [&](int b) {
    return Sums<1>{{static_cast<uint32_t>(accepted_share(a.accept_num[b], a.seq_lens_this_time[b], a.S))}};
  };
  const Sums<1> total = pack_slots<Shape, 1>(a.B, starts, share, [&](int b, const Sums<1>&, const Sums<1>& upto) {
    a.cu_batch_token_offset[b + 1] = static_cast<int32_t>(upto.of[0]);
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) a.cu_batch_token_offset[0] = 0;

  const int64_t stride = int64_t{gridDim.x} * Shape::kThreads;
  for (int64_t k = int64_t{blockIdx.x} * Shape::kThreads + threadIdx.x; k < a.A_cap; k += stride) {
    int64_t token = -1;
    int32_t row = -1;
    if (k < total.of[0]) {
      const int b = slot_of(starts, slots, static_cast<uint32_t>(k));
      const int64_t i = k - starts[b];
      token = a.accept_tokens[b * a.S + i];
      row = accepted_row(a.cu_seqlens_q_output[b], a.seq_lens_encoder[b], i, a.R_cap);
    }
    a.token_ids[k] = token;
    a.rows[k] = row;
  }
}

void gather_accepted(const GatherAcceptedArgs& a, cudaStream_t stream) {
  with_slot_shape(a.B, [&](auto shape) {
    launch("gather_accepted", stream, packed_shape("gather_accepted", shape, max64(a.A_cap, a.B)),
           gather_accepted_kernel<decltype(shape)>, a);
  });
}
SPECDEC_OP(gather_accepted, kLimits)

}  // namespace specdec::cuda
