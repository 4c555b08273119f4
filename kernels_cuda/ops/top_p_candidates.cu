#include "top_p_candidates.cuh"

#include "ops.h"
#include "row_launch.cuh"

namespace specdec::cuda {
namespace {

struct Kernels {
  static constexpr auto resident = top_p_candidates_kernel<true>, streaming = top_p_candidates_kernel<false>;
};

}  // namespace

void top_p_candidates(const TopPCandidatesArgs& a, cudaStream_t stream) {
  if (a.rows == 0) return;
  launch_rows<Kernels>("top_p_candidates", stream, a.rows, a.vocabulary, sizeof(float), tensors_of(a));
}

}  // namespace specdec::cuda
