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
  const int64_t rows = a.size.rows, vocabulary = a.size.vocabulary;
  if (rows == 0) return;
  const SamplingTensors params = {a.row_temperature, a.row_top_p, a.row_min_p, a.row_top_k,
                                  a.row_seed,        a.position,  rows,        vocabulary};
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch_rows<Kernels<L>>("sample_target", stream, rows, vocabulary, sizeof(typename L::Bits), params,
                            static_cast<const typename L::Bits*>(a.logits), a.target_tokens);
  });
}

}  // namespace specdec::cuda
