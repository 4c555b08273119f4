// A row of logits or probabilities as the share of one thread block cluster: every block holds its part of the row in
// shared memory (or reads it again where that is too small), and the blocks meet in distributed shared memory.
//
// The row is cut into 16-byte vectors at aligned addresses. A block owns consecutive vectors, a warp consecutive ones
// of those, and a lane of the warp every 32nd.
#pragma once

#include "cluster.cuh"
#include "specdec/row_floats.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kRowThreads = 320;  // two blocks on a processor, with 96 registers a thread
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kRowGroups = kMostCluster * kRowWarps;  // groups of lanes of a row, however many blocks it has

// -inf as it stands in memory: what fills vectors beyond the ends of a row.
template <class L>
struct Lowest;
template <>
struct Lowest<Float32> {
  static __device__ float bits() { return __uint_as_float(0xFF800000u); }
};
template <>
struct Lowest<Probability> : Lowest<Float32> {};
template <>
struct Lowest<Float16> {
  static __device__ uint16_t bits() { return 0xFC00u; }
};
template <>
struct Lowest<BFloat16> {
  static __device__ uint16_t bits() { return 0xFF80u; }
};

// Elements of a vector.
template <class L>
constexpr int kVector = 16 / static_cast<int>(sizeof(typename L::Bits));

// The elements of a vector, widened.
template <class L>
struct Elements {
  float x[kVector<L>];

  __device__ __forceinline__ explicit Elements(uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(typename L::Bits) == 4) {
        x[i] = L::widen(__uint_as_float(words[i]));
      } else {
        x[2 * i] = L::widen(static_cast<uint16_t>(words[i]));
        x[2 * i + 1] = L::widen(static_cast<uint16_t>(words[i] >> 16));
      }
    }
  }
};

// This block's part of a row.
template <class L, bool kResident>
class RowPart {
 public:
  using Type = L;
  using Bits = typename L::Bits;
  static constexpr int kLength = kVector<L>;

  // `dynamic`: the block's dynamic shared memory: its vectors, if they are resident, then lists.
  __device__ RowPart(const Bits* row, int size, uint4* dynamic) : row_(row), size_(size), held_(dynamic) {
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Bits));
    const int vectors = (lead + size + kLength - 1) / kLength, blocks = Cluster::size();
    const int share = (vectors + blocks - 1) / blocks, first = Cluster::rank() * share;
    first_id_ = first * kLength - lead;
    count_ = max(min(vectors - first, share), 0);
    warp_share_ = (share + kRowWarps - 1) / kRowWarps;
  }

  __device__ int size() const { return size_; }
  // Vectors of a lane, at most; the same in all warps of all blocks.
  __device__ int rounds() const { return (warp_share_ + 31) / 32; }
  // A warp's vectors [begin, end), as the block counts them.
  __device__ int begin(int warp) const { return min(warp * warp_share_, count_); }
  __device__ int end(int warp) const { return min((warp + 1) * warp_share_, count_); }
  // The id of a vector's first element, which may lie up to kLength - 1 before the row.
  __device__ int id(int vector) const { return first_id_ + vector * kLength; }
  __device__ bool has(int id) const { return static_cast<uint32_t>(id) < static_cast<uint32_t>(size_); }
  __device__ bool whole(int vector) const {
    const int first = id(vector);
    return first >= 0 && first + kLength <= size_;
  }

  // Goes through this lane's vectors for the first time: f(vector, elements, whether they are the row's); -inf where it
  // does not reach.
  template <class F>
  __device__ __forceinline__ void load(F f) {
    sweep_memory<false, 4>([&](int v, uint4 x, bool real) {
      if (kResident && real) held_[v] = x;
      f(v, Elements<L>(x), real);
    });
  }

  // Goes through this warp's vectors after `load`, backwards, since what was read last is in the cache: in all lanes
  // together f(vector, elements, whether they are the row's).
  template <int kAhead = sizeof(Bits) == 4 ? 3 : 2, class F>
  __device__ __forceinline__ void sweep(F f) const {
    if constexpr (kResident) {
      const int last = end(static_cast<int>(warp_id()));
#pragma unroll 1
      for (int at = begin(static_cast<int>(warp_id())); at < last; at += 32) {
        const int v = at + static_cast<int>(lane_id());
        f(v, Elements<L>(v < last ? held_[v] : nothing()), v < last);
      }
    } else {
      sweep_memory<true, kAhead>([&](int v, uint4 x, bool real) { f(v, Elements<L>(x), real); });
    }
  }

  // Any vector of the block after `load` and a barrier.
  __device__ __forceinline__ Elements<L> operator[](int vector) const {
    return Elements<L>(kResident ? held_[vector] : fetch(vector));
  }
  __device__ __forceinline__ float value(int id) const { return L::widen(row_[id]); }

  // The list of elements that this warp puts aside, list_room() at most: their values, and which of the warp's they
  // are.
  __device__ float* list_values() const {
    return reinterpret_cast<float*>(held_ + held_vectors()) + static_cast<int>(warp_id()) * list_room();
  }
  __device__ uint16_t* list_places() const {
    return reinterpret_cast<uint16_t*>(reinterpret_cast<float*>(held_ + held_vectors()) + kRowWarps * list_room()) +
           static_cast<int>(warp_id()) * list_room();
  }
  __device__ int list_room() const {
    return (static_cast<int>(ptx::dynamic_shared_bytes()) - held_vectors() * 16) / (kRowWarps * 6);
  }
  // The place of a vector's first element among those of its warp, and the id at a place of this warp's.
  __device__ int place(int vector) const { return (vector - begin(static_cast<int>(warp_id()))) * kLength; }
  __device__ int id_at(int place) const { return id(begin(static_cast<int>(warp_id()))) + place; }

 private:
  // As large in all blocks, and enough for any.
  __device__ int held_vectors() const { return kResident ? warp_share_ * kRowWarps : 0; }

  // A vector of -inf.
  static __device__ __forceinline__ uint4 nothing() {
    uint32_t word;
    if constexpr (sizeof(Bits) == 4) {
      word = __float_as_uint(Lowest<L>::bits());
    } else {
      word = Lowest<L>::bits() * 0x10001u;
    }
    return {word, word, word, word};
  }
  __device__ __forceinline__ uint4 read(int vector) const {
    return __ldg(reinterpret_cast<const uint4*>(row_ + id(vector)));
  }

  // f(vector, its 16 bytes, whether they are the row's) in all lanes of the warp together; kAhead loads are under way
  // at once. Vectors at the row's ends come last.
  template <bool kBackwards, int kAhead, class F>
  __device__ __forceinline__ void sweep_memory(F f) const {
    const int first = begin(static_cast<int>(warp_id())), last = end(static_cast<int>(warp_id()));
    const int to = min(last, (size_ - first_id_) / kLength);  // whole vectors end here
    const bool ragged = first_id_ < 0 && first == 0;          // the first is not whole: its round is by itself
    const int from = ragged ? first + 32 : first;
    const int batches = max(to - from, 0) / (32 * kAhead), lane = static_cast<int>(lane_id());
#pragma unroll 1
    for (int i = 0; i < batches; ++i) {
      const int v = from + lane + (kBackwards ? batches - 1 - i : i) * (32 * kAhead);
      const uint4* at = reinterpret_cast<const uint4*>(row_ + id(v));
      uint4 x[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) x[k] = __ldg(at + k * 32);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) f(v + k * 32, x[k], true);
    }
    const int rest = from + batches * (32 * kAhead), singles = (max(to - rest, 0) + 31) / 32;
#pragma unroll 1
    for (int i = ragged ? -1 : 0; i < singles + 2; ++i) {
      int v = i < 0 ? lane : rest + i * 32 + lane;
      bool mine = v < to && id(v) >= 0;
      uint4 x = nothing();
      if (i < singles) {
        if (mine) x = read(v);
      } else {
        const bool front = i == singles;
        v = front ? 0 : (size_ - 1 - first_id_) / kLength;
        if (v < first || v >= last || whole(v) || front != (v == 0 && first_id_ < 0)) continue;
        mine = lane == (v - first) % 32;
        if (mine) x = fetch_edge(id(v));
        if (!mine) v = last + lane;
      }
      f(v, x, mine);
    }
  }

  __device__ __forceinline__ uint4 fetch(int vector) const {
    return whole(vector) ? read(vector) : fetch_edge(id(vector));
  }
  __device__ __noinline__ uint4 fetch_edge(int first) const {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(Bits) == 4) {
        words[i] = __float_as_uint(bits_of(first + i));
      } else {
        words[i] = bits_of(first + 2 * i) | static_cast<uint32_t>(bits_of(first + 2 * i + 1)) << 16;
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }
  __device__ Bits bits_of(int id) const { return has(id) ? row_[id] : Lowest<L>::bits(); }

  const Bits* row_;
  int size_, first_id_, count_, warp_share_;
  uint4* held_;
};

// Maximum over `lanes` neighbouring lanes, a power of two.
__device__ __forceinline__ int32_t group_max(int32_t key, int lanes) {
  for (int d = lanes / 2; d >= 1; d /= 2) key = max(key, __shfl_xor_sync(kAllLanes, key, d));
  return key;
}

// A value of every warp of the row: what each warp stored is in all blocks after the next Cluster::sync().
// `own` is the shared array of kRowGroups of this block; all lanes have the value.
template <typename T>
__device__ __forceinline__ void publish(T* own, T value) {
  const int lane = static_cast<int>(lane_id());
  if (lane < Cluster::size()) Cluster::of(own, lane)[Cluster::rank() * kRowWarps + static_cast<int>(warp_id())] = value;
}

// What the warps published: those of the warps before this one, and all.
struct Published {
  uint64_t before, total;
};

template <typename T>
__device__ __forceinline__ Published gather(const T* own) {
  const int warps = Cluster::size() * kRowWarps, self = Cluster::rank() * kRowWarps + static_cast<int>(warp_id());
  Published sums = {0, 0};
  for (int w = static_cast<int>(lane_id()); w < warps; w += 32) {
    const uint64_t value = own[w];
    sums.total += value;
    if (w < self) sums.before += value;
  }
  return {warp_sum(sums.before), warp_sum(sums.total)};
}

}  // namespace specdec::cuda
