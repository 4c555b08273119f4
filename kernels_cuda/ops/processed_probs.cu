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
  const int64_t rows = a.size.rows, vocabulary = a.size.vocabulary;
  if (rows == 0) return;
  const SamplingTensors params = {a.row_temperature, a.row_top_p, a.row_min_p, a.row_top_k,
                                  nullptr,           a.position,  rows,        vocabulary};
  with_logit_type(a.size.type, [&](auto type) {
    using L = decltype(type);
    launch_rows<Kernels<L>>("processed_probs", stream, rows, vocabulary, sizeof(typename L::Bits), params,
                            static_cast<const typename L::Bits*>(a.logits), a.probs);
  });
}

}  // namespace specdec::cuda
