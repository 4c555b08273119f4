// A cluster as a team that shares a row (see specdec/row_team.h): cores copy their chunks to local memory, one at a
// time, and publish results in SM.
#pragma once

#include "tiles.h"

#include "op.h"
#include "specdec/rows/row_team.h"

namespace specdec {

using ClusterShared = RowShared<kMaxClusterCores>;

struct ClusterTeam {
  __device__ int rank() const { return core_id(); }
  __device__ int size() const { return core_num(); }
  __device__ bool leads() const { return core_id() == 0; }
  __device__ void sync() {
    mfence_sm();
    sync_cluster();
  }
};

// This core's chunks of a row. A single one is fetched once.
template <class L>
class GmRow {
 public:
  using Bits = typename L::Bits;
  static constexpr bool kInMemory = false;

  __device__ GmRow(const Bits* gm, int64_t size)
      : gm_(gm),
        size_(size),
        begin_(first_chunk(size, core_id(), core_num())),
        end_(first_chunk(size, core_id() + 1, core_num())),
        held_(-1) {}

  __device__ int64_t size() const { return size_; }
  __device__ int begin() const { return begin_; }
  __device__ int end() const { return end_; }
  // This core's elements in its chunks, and the first of them.
  __device__ int64_t first() const { return min64(int64_t{begin_} << kChunkBits, size_); }
  __device__ int64_t count() const { return min64(int64_t{end_} << kChunkBits, size_) - first(); }

  __device__ const Bits* load(int c, int* count) {
    const int64_t at = int64_t{c} << kChunkBits, left = min64(kChunkIds, size_ - at);
    if (c != held_) GM2LM(gm_ + at, tile_, left * static_cast<int64_t>(sizeof(Bits)));
    held_ = c;
    *count = static_cast<int>(left);
    return tile_;
  }

 private:
  const Bits* gm_;
  int64_t size_;
  int begin_, end_, held_;
  __simd__ Bits tile_[kChunkIds];
};

namespace xpu {

constexpr Limit kRowLimits[] = {{"V", served::kV}};

// An op on rows of logits, one row per cluster: NAME_kernel<type of logits>. `a`: the arguments.
#define SPECDEC_ROWS_OP(NAME, ARGS, ROWS)                                                \
  void NAME(const ARGS& a, const LaunchOptions& options) {                               \
    if ((ROWS) == 0) return;                                                             \
    with_float_type(a.logits_type, [&](auto type) {                                      \
      launch(options, ROWS, parts_of(a.V, kRowShare), NAME##_kernel<decltype(type)>, a); \
    });                                                                                  \
  }                                                                                      \
  SPECDEC_OP(NAME, kRowLimits)

}  // namespace xpu
}  // namespace specdec
