#include "processed_probs.cuh"

#include "ops.h"
#include "row_launch.cuh"

namespace specdec::cuda {
namespace {

template <class L>
struct Kernels {
  static constexpr auto resident = processed_probs_kernel<L, true>, streaming = processed_probs_kernel<L, false>;
};

}  // namespace

void processed_probs(const ProcessedProbsArgs& a, cudaStream_t stream) {
  if (a.size.rows == 0) return;
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch_rows<Kernels<L>>("processed_probs", stream, a.size.rows, a.size.vocabulary, sizeof(typename L::Bits),
                            tensors_of(a), static_cast<const typename L::Bits*>(a.logits), a.probs);
  });
}

}  // namespace specdec::cuda
