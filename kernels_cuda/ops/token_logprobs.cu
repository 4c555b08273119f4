#include "token_logprobs.cuh"

#include "ops.h"
#include "row_launch.cuh"

namespace specdec::cuda {
namespace {

template <class L>
struct Kernels {
  static constexpr auto resident = token_logprobs_kernel<L, true>, streaming = token_logprobs_kernel<L, false>;
};

}  // namespace

void token_logprobs(const TokenLogprobsArgs& a, cudaStream_t stream) {
  if (a.entries == 0) return;
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch_rows<Kernels<L>>("token_logprobs", stream, a.entries, a.size.vocabulary, sizeof(typename L::Bits),
                            tensors_of(a), static_cast<const typename L::Bits*>(a.logits));
  });
}

}  // namespace specdec::cuda
