// sample_target: a cluster a row.
#include "ops.h"
#include "row_launch.cuh"
#include "sample_rows.cuh"
#include "specdec_ops/sample_target.h"

namespace specdec::cuda {

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, 2)
    sample_target_kernel(SampleTargetArgs a, const typename L::Bits* logits) {
  __shared__ RowBoard s;
  wait_for_previous();
  const int64_t position = a.position[Cluster::index()];
  // Before it is known whether they will be needed.
  const RowLook look = read_params(a, Cluster::index(), s);
  const bool leads = Cluster::rank() == 0;
  if (threadIdx.x == 0) s.random = philox_words(a.row_seed[Cluster::index()], position, a.purpose).u64();
  if (position < 0) {
    if (leads && threadIdx.x == 0) a.target_tokens[Cluster::index()] = -1;
    return;
  }
  clear_board(s);
  Cluster::arrive();
  RowPart<L, kResident> part(logits + Cluster::index() * a.V, static_cast<int>(a.V));
  const int32_t top = load_row<L>(part, s, look);
  if (top == kKeyNan || top == -kKeyInf) {
    if (leads && threadIdx.x == 0) a.target_tokens[Cluster::index()] = -1;
    return;
  }
  if (!(s.params.temperature > 0.0f)) {
    find_first(part, s, top);
    Cluster::sync();
    if (leads && threadIdx.x == 0) a.target_tokens[Cluster::index()] = s.first_id;
    return;
  }
  set_softmax(s, top);
  if (is_short_list(s.params, part.size())) {
    const int32_t pivot = pivot_key(s, s.params.top_k);
    collect_top(part, s, pivot);
    Cluster::sync();
    if (settle_top(part, s, s.params.top_k, pivot)) {
      if (leads) {
        sort_top(s, s.params.top_k);
        keep_sorted(s);
        const int id = draw_sorted(s);
        if (id >= 0) a.target_tokens[Cluster::index()] = id;
      }
      Cluster::sync();  // the leader stays until all have read its counts
      return;
    }
  }
  const RowKept kept = keep_row<L>(part, s);
  publish(s.published[3], kept.own);
  Cluster::sync();
  const int id = draw_token(part, s, kept_by(s, kept.cut), gather(s.published[3]), kept.own, s.random, kept.listed);
  if (id >= 0) a.target_tokens[Cluster::index()] = id;
}

namespace {

template <class L>
struct Kernels {
  static constexpr auto resident = sample_target_kernel<L, true>, streaming = sample_target_kernel<L, false>;
};

}  // namespace

void sample_target(const SampleTargetArgs& a, cudaStream_t stream) {
  if (a.R_cap == 0) return;
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch_rows<Kernels<L>>("sample_target", stream, a.R_cap, a.V, sizeof(typename L::Bits), a,
                            static_cast<const typename L::Bits*>(a.logits));
  });
}
SPECDEC_OP(sample_target, kLimits)

}  // namespace specdec::cuda
