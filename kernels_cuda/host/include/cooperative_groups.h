#pragma once
#include "../simt.h"
namespace cooperative_groups {
struct ClusterGroup {
  unsigned block_rank() const { return simt::self().rank; }
  unsigned num_blocks() const { return simt::self().cluster_size; }
  void sync() const {
    simt::arrive_cluster();
    simt::wait_cluster();
  }
  template <typename T>
  T* map_shared_rank(T* own, unsigned rank) const {
    return static_cast<T*>(simt::shared_of(own, rank));
  }
};
inline ClusterGroup this_cluster() { return {}; }
}  // namespace cooperative_groups
