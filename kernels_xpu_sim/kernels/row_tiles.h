// A cluster as a team that shares a row (see specdec/row_select.h): its cores stream their parts of the row from global
// memory, and publish what they find in SM.
#pragma once

#include "tiles.h"

#include "specdec/row_select.h"

namespace specdec {

using ClusterShared = RowShared<kMostCores>;

struct ClusterTeam {
  __device__ int rank() const { return core_id(); }
  __device__ int size() const { return core_num(); }
  __device__ bool leads() const { return core_id() == 0; }
  __device__ void sync() {
    mfence_sm();
    sync_cluster();
  }
};

// This core's part of a row. A part that fits the tile is fetched once.
template <class L>
class GmRow {
 public:
  using Bits = typename L::Bits;
  static constexpr int64_t kTile = 1024;

  __device__ GmRow(const Bits* gm, int64_t size)
      : gm_(gm),
        size_(size),
        begin_(rank_begin(size, core_id(), core_num())),
        end_(rank_begin(size, core_id() + 1, core_num())),
        held_(-1) {}

  __device__ int64_t size() const { return size_; }
  __device__ int64_t begin() const { return begin_; }
  __device__ int64_t end() const { return end_; }

  template <class Visitor>
  __device__ void visit(Visitor& v) {
    for (int64_t at = begin_; at < end_; at += kTile) {
      const int64_t count = min64(kTile, end_ - at);
      if (at != held_) GM2LM(gm_ + at, tile_, count * static_cast<int64_t>(sizeof(Bits)));
      held_ = at;
      if (!v.tile(tile_, at, static_cast<int>(count))) return;
    }
  }

 private:
  const Bits* gm_;
  int64_t size_, begin_, end_, held_;
  __simd__ Bits tile_[kTile];
};

}  // namespace specdec
