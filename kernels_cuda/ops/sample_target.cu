#include "sample_target.cuh"

#include "ops.h"
#include "row_launch.cuh"

namespace specdec::cuda {
namespace {

template <class L>
struct Kernels {
  static constexpr auto resident = sample_target_kernel<L, true>, streaming = sample_target_kernel<L, false>;
};

}  // namespace

void sample_target(const SampleTargetArgs& a, cudaStream_t stream) {
  if (a.size.rows == 0) return;
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch_rows<Kernels<L>>("sample_target", stream, a.size.rows, a.size.vocabulary, sizeof(typename L::Bits),
                            tensors_of(a), static_cast<const typename L::Bits*>(a.logits), a.target_tokens);
  });
}

}  // namespace specdec::cuda
