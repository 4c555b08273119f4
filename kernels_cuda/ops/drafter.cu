// prepare_block_inputs: every block of threads adds up all slots, then takes its part of the rows and the slots.
// map_draft_logits: a block for a part of a row. truncate_by_confidence: a thread a slot.
#include "slot_launch.cuh"
#include "slot_scan.cuh"
#include "specdec/drafter.h"
#include "specdec/row_floats.h"
#include "specdec_ops/map_draft_logits.h"
#include "specdec_ops/prepare_block_inputs.h"
#include "specdec_ops/truncate_by_confidence.h"

namespace specdec::cuda {

template <typename Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    prepare_block_inputs_kernel(const __grid_constant__ PrepareBlockInputsArgs a) {
  __shared__ uint32_t starts[Shape::kSlots];
  wait_for_previous();
  const auto share = [&](int64_t b) {
    return block_share(a.cu_seqlens_q[b], a.cu_seqlens_q[b + 1], a.T_cap, a.num_masks, a.anchor_only);
  };
  const int slots = static_cast<int>(a.B);
  const auto rows = [&](int b) { return Sums<1>{{static_cast<uint32_t>(saturate32(share(b).rows))}}; };
  const Sums<1> total = pack_slots<Shape, 1>(a.B, starts, rows, [&](int b, const Sums<1>&, const Sums<1>& upto) {
    a.block_cu_seqlens_q[b + 1] = static_cast<int32_t>(upto.of[0]);
    a.block_seq_lens_decoder[b] = block_position(a.seq_lens_decoder[b], share(b).fed, a.anchor_only);
  });
  if (blockIdx.x == 0 && threadIdx.x == 0) a.block_cu_seqlens_q[0] = 0;

  const int64_t end = min64(total.of[0], a.F_cap), stride = int64_t{gridDim.x} * Shape::kThreads;
  for (int64_t r = int64_t{blockIdx.x} * Shape::kThreads + threadIdx.x; r < a.F_cap; r += stride) {
    int64_t id = 0, source = -1;
    int slot = -1;
    if (r < end) {
      slot = slot_of(starts, slots, static_cast<uint32_t>(r));
      source = block_source(r - starts[slot], share(slot).tokens, a.cu_seqlens_q[slot], a.cu_seqlens_q[slot + 1],
                            a.T_cap, a.anchor_only);
      id = source >= 0 ? a.ids_remove_padding[source] : a.mask_token_id;
    }
    a.block_token_ids[r] = id;
    a.block_batch_ids[r] = slot;
    a.block_source_rows[r] = static_cast<int32_t>(source);
  }
}

void prepare_block_inputs(const PrepareBlockInputsArgs& a, cudaStream_t stream) {
  with_slot_shape(a.B, [&](auto shape) {
    launch("prepare_block_inputs", stream, packed_shape("prepare_block_inputs", shape, max64(a.F_cap, a.B)),
           prepare_block_inputs_kernel<decltype(shape)>, a);
  });
}
SPECDEC_OP(prepare_block_inputs, kLimits)

constexpr unsigned kMapThreads = 256;
constexpr unsigned kMapColumns = 8;  // of a thread
constexpr unsigned kMapPart = kMapThreads * kMapColumns;

template <typename Bits>
__global__ void __launch_bounds__(kMapThreads)
    map_draft_logits_kernel(const __grid_constant__ MapDraftLogitsArgs a, Bits lacking, unsigned parts) {
  wait_for_previous();
  let_next_start();
  const int64_t r = blockIdx.x / parts, first = int64_t{blockIdx.x % parts} * kMapPart + threadIdx.x;
  const Bits* const own = static_cast<const Bits*>(a.own_logits) + r * a.V_draft;
  Bits* const row = static_cast<Bits*>(a.logits) + r * a.V;
#pragma unroll
  for (unsigned k = 0; k < kMapColumns; ++k) {
    const int64_t v = first + k * kMapThreads;
    if (v >= a.V) return;
    const int32_t column = a.target_to_draft[v];
    row[v] = column >= 0 && column < a.V_draft ? own[column] : lacking;
  }
}

void map_draft_logits(const MapDraftLogitsArgs& a, cudaStream_t stream) {
  if (a.R_cap == 0) return;
  const unsigned parts = blocks_for(a.V, kMapPart);
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch("map_draft_logits", stream, {static_cast<unsigned>(a.R_cap) * parts, kMapThreads},
           map_draft_logits_kernel<typename L::Bits>, a, L::narrow(-INFINITY), parts);
  });
}
SPECDEC_OP(map_draft_logits, kLimits)

constexpr unsigned kTrustThreads = 128;

__global__ void __launch_bounds__(kTrustThreads)
    truncate_by_confidence_kernel(const __grid_constant__ TruncateByConfidenceArgs a) {
  wait_for_previous();
  let_next_start();
  const int64_t b = int64_t{blockIdx.x} * kTrustThreads + threadIdx.x;
  if (b >= a.B) return;
  const float* const confidence = a.draft_confidence + b * (a.S - 1);
  const int32_t slt = a.seq_lens_this_time[b];
  const int32_t kept = trusted_tokens(slt, a.seq_lens_encoder[b], confidence, a.S - 1, a.min_confidence[b]);
  if (kept != slt) a.seq_lens_this_time[b] = kept;
}

void truncate_by_confidence(const TruncateByConfidenceArgs& a, cudaStream_t stream) {
  if (a.B == 0) return;
  launch("truncate_by_confidence", stream, {blocks_for(a.B, kTrustThreads), kTrustThreads},
         truncate_by_confidence_kernel, a);
}
SPECDEC_OP(truncate_by_confidence, kLimits)

}  // namespace specdec::cuda
