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
  constexpr const char* kOp = "apply_penalties";
  const RowDevice device = row_device(kOp);
  const int64_t most = device.most_bytes / int64_t{sizeof(int32_t)};
  const unsigned windows = blocks_for(vocabulary, most);
  const int64_t window = blocks_for(vocabulary, windows);
  LaunchShape shape = {dim3(static_cast<unsigned>(rows), windows), dim3(kPenaltyThreads)};
  shape.shared_bytes = static_cast<size_t>(window) * sizeof(int32_t);
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    allow_shared<Tag<L>>(kOp, device, apply_penalties_kernel<L>, static_cast<int>(most * int64_t{sizeof(int32_t)}));
    launch(kOp, stream, shape, apply_penalties_kernel<L>, tensors_of(a),
           static_cast<typename L::Bits*>(a.logits), window);
  });
}

}  // namespace specdec::cuda
