#include "apply_penalties.cuh"

#include "ops.h"
#include "row_launch.cuh"

namespace specdec::cuda {
namespace {

template <class L>
struct Tag {};

}  // namespace

void apply_penalties(const ApplyPenaltiesArgs& a, cudaStream_t stream) {
  const int64_t rows = a.size.rows, vocabulary = a.size.vocabulary;
  if (rows == 0 || vocabulary == 0 || a.slots_in_use == 0) return;
  const PenaltyTensors tensors = {a.token_ids_all,
                                  a.prompt_lens,
                                  a.step_idx,
                                  a.draft_tokens,
                                  a.cu_seqlens_q_output,
                                  a.batch_id_per_token_output,
                                  a.repetition,
                                  a.frequency,
                                  a.presence,
                                  a.bad_tokens,
                                  a.end_tokens,
                                  a.min_dec_len,
                                  rows,
                                  vocabulary,
                                  a.row_width,
                                  a.draft_width,
                                  a.slots_in_use,
                                  a.bad_count,
                                  a.end_count};
  constexpr const char* kOp = "apply_penalties";
  const int64_t most = row_device(kOp).most_bytes / int64_t{sizeof(int32_t)};
  const unsigned windows = blocks_for(vocabulary, most);
  const int64_t window = blocks_for(vocabulary, windows);
  LaunchShape shape = {dim3(static_cast<unsigned>(rows), windows), dim3(kPenaltyThreads)};
  shape.shared_bytes = static_cast<size_t>(window) * sizeof(int32_t);
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    allow_shared<Tag<L>>(kOp, apply_penalties_kernel<L>, static_cast<int>(most * int64_t{sizeof(int32_t)}));
    launch(kOp, stream, shape, apply_penalties_kernel<L>, tensors, static_cast<typename L::Bits*>(a.logits), window);
  });
}

}  // namespace specdec::cuda
