// Reading and writing global memory through small tiles in local memory. Cells are addressed by 64-bit index; all sizes
// may be zero. A core's local memory holds 8 KB with its stack, so tiles are chosen by the kernel.
#pragma once

#include <type_traits>

#include "xpu/kernel/cluster.h"
#include "xpu/kernel/cluster_partition.h"
#include "xpu/kernel/cluster_primitive.h"

#include "specdec/integers.h"
#include "specdec/platform.h"

namespace specdec {

constexpr int kMaxClusterCores = 64;  // of a cluster

// Global id and number of the cores of a launch; neighbours are in different clusters, so that small batches spread.
static inline __device__ int64_t thread_id() { return static_cast<int64_t>(core_id()) * cluster_num() + cluster_id(); }
static inline __device__ int64_t thread_num() { return static_cast<int64_t>(core_num()) * cluster_num(); }

template <typename T>
static inline __device__ T gm_get(const T* gm) {
  T value;
  GM2LM(gm, &value, sizeof(T));
  return value;
}

template <typename T>
static inline __device__ void gm_put(T* gm, T value) {
  mfence_lm();
  LM2GM(&value, gm, sizeof(T));
}

// An array of `count` cells, indexed; the tile of N cells around the last access is kept.
template <typename T, int N>
class GmReader {
 public:
  __device__ GmReader(const T* gm, int64_t count) : gm_(gm), count_(count), low_(0), high_(0) {}

  __device__ T operator[](int64_t i) {
    if (i < low_ || i >= high_) load(i);
    return tile_[i - low_];
  }

 private:
  __device__ void load(int64_t i) {
    low_ = i / N * N;
    high_ = min64(low_ + N, count_);
    GM2LM(gm_ + low_, tile_, (high_ - low_) * static_cast<int64_t>(sizeof(T)));
  }

  const T* gm_;
  int64_t count_, low_, high_;
  T tile_[N];
};

// Cells written one after the other. Call flush() at the end.
template <typename T, int N>
class GmWriter {
 public:
  explicit __device__ GmWriter(T* gm) : gm_(gm), held_(0) {}

  __device__ void append(T value) {
    if (held_ == N) flush();
    tile_[held_++] = value;
  }
  // As many cells of GM.
  __device__ void append_from(const T* gm, int64_t count) {
    while (count > 0) {
      if (held_ == N) flush();
      const int64_t taken = min64(count, N - held_);
      GM2LM(gm, tile_ + held_, taken * static_cast<int64_t>(sizeof(T)));
      held_ += static_cast<int>(taken);
      gm += taken;
      count -= taken;
    }
  }
  __device__ void flush() {
    if (held_ == 0) return;
    mfence_lm();
    LM2GM(tile_, gm_, held_ * static_cast<int64_t>(sizeof(T)));
    gm_ += held_;
    held_ = 0;
  }

 private:
  T* gm_;
  int held_;
  T tile_[N];
};

constexpr int kSlotTile = 16;  // neighbouring slots of a core, at a time

// One tensor's cells of neighbouring slots. `T` is const where the kernel only reads them.
template <typename T>
struct SlotTile {
  T* gm;
  std::remove_const_t<T> cells[kSlotTile];

  explicit __device__ SlotTile(T* gm) : gm(gm) {}
  __device__ std::remove_const_t<T>& operator[](int64_t i) { return cells[i]; }
};

// Both move `count` cells of each tile.
template <typename... T>
static inline __device__ void load(int64_t count, SlotTile<T>&... tiles) {
  (GM2LM_ASYNC(tiles.gm, tiles.cells, count * static_cast<int64_t>(sizeof(T))), ...);
  mfence_lm();
}
template <typename... T>
static inline __device__ void store(int64_t count, SlotTile<T>&... tiles) {
  mfence_lm();
  (LM2GM_ASYNC(tiles.cells, tiles.gm, count * static_cast<int64_t>(sizeof(T))), ...);
  mfence();  // before the tiles are filled again: a fence of LM alone may not wait for what they are stored to
}

// Sets `count` cells to `value`. Not inlined, like gm_copy, to keep its tile out of callers' frames.
template <typename T>
SPECDEC_APART void gm_fill(T* gm, int64_t count, T value) {
  constexpr int64_t kTile = 1024 / sizeof(T);
  T tile[kTile];
  const int64_t used = min64(count, kTile);
  for (int64_t i = 0; i < used; ++i) tile[i] = value;
  mfence_lm();
  for (int64_t done = 0; done < count; done += kTile) {
    LM2GM(tile, gm + done, min64(count - done, kTile) * static_cast<int64_t>(sizeof(T)));
  }
}

// Moves cells; the two places do not overlap.
template <typename T>
SPECDEC_APART void gm_copy(const T* from, T* to, int64_t count) {
  constexpr int64_t kTile = 2048 / sizeof(T);
  T tile[kTile];
  for (int64_t done = 0; done < count; done += kTile) {
    const int64_t bytes = min64(count - done, kTile) * static_cast<int64_t>(sizeof(T));
    GM2LM(from + done, tile, bytes);
    LM2GM(tile, to + done, bytes);
  }
}

// The part of `count` cells that is this core's, of all cores of the launch: [*low, *high).
static inline __device__ void thread_part(int64_t count, int64_t* low, int64_t* high) {
  partition(static_cast<int>(thread_id()), static_cast<int>(thread_num()), count, 1, low, high);
}

}  // namespace specdec
