// A row of logits or probabilities as the share of one thread block cluster: every block holds its part of the row in
// shared memory (or reads it again where that is too small), and the blocks meet in distributed shared memory.
//
// The row is cut into 16-byte vectors at aligned addresses. A block owns consecutive vectors, a warp consecutive ones
// of those, and a lane of the warp every 32nd.
//
// A cluster goes through several rows where there are more of them than clusters. What a lane owns lies in the same
// place for every row, so that in the last pass over a row each vector makes room for the next row's as soon as it has
// been looked at: memory is busy while a pass computes.
#pragma once

#include <type_traits>

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

// Vectors in the shared memory of a block that has a part of `share`: whole rounds of a warp.
__host__ __device__ constexpr int held_vectors_of(int share) { return (share + 31) / 32 * 32; }

// This block's part of a row, and of the next.
template <class L, bool kResident>
class RowPart {
 public:
  using Type = L;
  using Bits = typename L::Bits;
  static constexpr int kLength = kVector<L>;

  // For rows of `size` elements. `dynamic`: the block's dynamic shared memory: its vectors, if they are resident, then
  // lists.
  __device__ RowPart(int size, uint4* dynamic) : size_(size), held_(dynamic) {
    // Of as many vectors as there can be, wherever a row begins.
    const int most = (size + 2 * (kLength - 1)) / kLength, blocks = Cluster::size();
    share_ = (most + blocks - 1) / blocks;
    warp_share_ = (share_ + kRowThreads - 1) / kRowThreads * 32;
  }

  // Goes on to a row, after a barrier behind all that was done with the one before. `next`: the row that the following
  // call will name; null if there is none, or if it is not known.
  __device__ void begin(const Bits* row, const Bits* next) {
    row_ = row;
    next_ = next;
    first_id_ = first_id_of(row);
    count_ = max(min((size_ + kLength - 1 - first_id_) / kLength, share_), 0);
    if (kResident && !given_) fill(incoming(row));
    given_ = false;
  }

  __device__ int size() const { return size_; }
  // Vectors of a lane, at most; the same in all warps of all blocks.
  __device__ int rounds() const { return warp_share_ / 32; }
  // A warp's vectors [begin, end), as the block counts them.
  __device__ int begin(int warp) const { return min(warp * warp_share_, count_); }
  __device__ int end(int warp) const { return min((warp + 1) * warp_share_, count_); }
  // The id of a vector's first element, which may lie up to kLength - 1 before the row.
  __device__ int id(int vector) const { return first_id_ + vector * kLength; }
  __device__ bool has(int id) const { return static_cast<uint32_t>(id) < static_cast<uint32_t>(size_); }
  __device__ bool whole(int vector) const {
    return static_cast<uint32_t>(id(vector)) < static_cast<uint32_t>(max(size_ - kLength + 1, 0));
  }

  // Goes through this lane's vectors for the first time: f(vector, elements, whether they are the row's); -inf where it
  // does not reach. `last`: the next row takes this one's place, so that only `again` can be used after it.
  template <class F>
  __device__ __forceinline__ void load(F f, bool last = false) {
    if constexpr (kResident) {
      fill_edges();
      ptx::wait_copies();
      given_ = last && next_ != nullptr;
      sweep_held<4>(f, given_ ? incoming(next_) : Incoming{});
    } else {
      sweep_memory<false, 4>([&](int v, uint4 x, bool real) { f(v, Elements<L>(x), real); });
    }
  }

  // Goes through this warp's vectors after `load`; backwards where they are read again, since what was read last is in
  // the cache: in all lanes together f(vector, elements, whether they are the row's).
  template <int kAhead = sizeof(Bits) == 4 ? 3 : 2, class F>
  __device__ __forceinline__ void sweep(F f) const {
    if constexpr (kResident) {
      sweep_held<1>(f, Incoming{});
    } else {
      sweep_memory<true, kAhead>([&](int v, uint4 x, bool real) { f(v, Elements<L>(x), real); });
    }
  }
  // The same; `last` as in `load`.
  template <int kAhead = sizeof(Bits) == 4 ? 3 : 2, class F>
  __device__ __forceinline__ void sweep(F f, bool last) {
    if constexpr (kResident) {
      given_ = last && next_ != nullptr;
      sweep_held<(kAhead + 1) / 2>(f, given_ ? incoming(next_) : Incoming{});
    } else {
      sweep<kAhead>(f);
    }
  }

  // The row is needed no more, but for `again`: what a last pass does, without a pass. After a barrier behind the last
  // use of [].
  __device__ void give() {
    if (!kResident || given_ || next_ == nullptr) return;
    given_ = true;
    fill(incoming(next_));
  }

  // Any vector of the block after `load` and a barrier; of the lane's own, without.
  __device__ __forceinline__ Elements<L> operator[](int vector) const {
    return Elements<L>(kResident ? held_[vector] : fetch(vector));
  }
  // The same, even if the next row has taken its place.
  __device__ __forceinline__ Elements<L> again(int vector) const {
    return Elements<L>(kResident && !given_ ? held_[vector] : fetch(vector));
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
  // Vectors that a lane copies: those of its vectors v, as the block counts them, for which 0 <= v - from < count.
  struct Incoming {
    const uint4* row = nullptr;
    int from = 0;
    uint32_t count = 0;

    __device__ __forceinline__ void copy(uint4* to, int v) const {
      if (static_cast<uint32_t>(v - from) < count) ptx::copy_async(to, row + v);
    }
  };

  // Of this warp, all of a row's but those at its ends that are not whole.
  __device__ __forceinline__ Incoming incoming(const Bits* row) const {
    const int first_id = first_id_of(row), first = static_cast<int>(warp_id()) * warp_share_;
    const int from = max(first, first_id < 0 ? 1 : 0);
    const int to = min(min(first + warp_share_, share_), (size_ - first_id) / kLength);
    return {reinterpret_cast<const uint4*>(row + first_id), from, static_cast<uint32_t>(max(to - from, 0))};
  }
  __device__ __forceinline__ void fill(const Incoming& incoming) {
    int v = static_cast<int>(warp_id()) * warp_share_ + static_cast<int>(lane_id());
#pragma unroll 4
    for (int i = 0; i < rounds(); ++i, v += 32) incoming.copy(held_ + v, v);
  }
  // What does not come by copies, by the lanes that own it: vectors that are not whole, and -inf in the rest of the
  // warp's last round.
  __device__ __forceinline__ void fill_edges() {
    const int first = begin(static_cast<int>(warp_id())), last = end(static_cast<int>(warp_id()));
    const int lane = static_cast<int>(lane_id());
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int v = i == 0 ? 0 : (size_ - 1 - first_id_) / kLength;
      if (v >= first && v < last && (v - first) % 32 == lane && !whole(v)) held_[v] = fetch_edge(id(v));
    }
    const int rest = first + (last - first) / 32 * 32 + lane;
    if ((last - first) % 32 != 0 && rest >= last) held_[rest] = nothing();
  }
  template <int kAtOnce, class F>
  __device__ __forceinline__ void sweep_held(F f, const Incoming& incoming) const {
    const int last = end(static_cast<int>(warp_id())), lane = static_cast<int>(lane_id());
    int v = begin(static_cast<int>(warp_id())) + lane;
    uint4* held = held_ + v;
    const auto rounds = [&](auto count) {
      constexpr int kCount = decltype(count)::value;
#pragma unroll 1
      for (; v - lane + (kCount - 1) * 32 < last; v += 32 * kCount, held += 32 * kCount) {
        uint4 x[kCount];
#pragma unroll
        for (int k = 0; k < kCount; ++k) x[k] = held[k * 32];
#pragma unroll
        for (int k = 0; k < kCount; ++k) f(v + k * 32, Elements<L>(x[k]), v + k * 32 < last);
#pragma unroll
        for (int k = 0; k < kCount; ++k) incoming.copy(held + k * 32, v + k * 32);
      }
    };
    if constexpr (kAtOnce > 1) rounds(std::integral_constant<int, kAtOnce>());
    rounds(std::integral_constant<int, 1>());
  }

  // The id of the first element of the block's first vector.
  __device__ __forceinline__ int first_id_of(const Bits* row) const {
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Bits));
    return Cluster::rank() * share_ * kLength - lead;
  }

  // As large in all blocks, and enough for any.
  __device__ int held_vectors() const { return kResident ? held_vectors_of(share_) : 0; }

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

  const Bits *row_, *next_;
  int size_, first_id_, count_, share_, warp_share_;
  bool given_ = false;  // the place of the row to the next
  uint4* held_;
};

// body(row, next): a cluster's rows, one after the other; next is -1 behind the last.
template <class Body>
__device__ __forceinline__ void each_row(int64_t rows, Body body) {
  for (int64_t row = Cluster::index();;) {
    const int64_t next = row + Cluster::count();
    body(row, next < rows ? next : -1);
    if (next >= rows) return;
    row = next;
    __syncthreads();  // all have read what the next row overwrites
  }
}

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
