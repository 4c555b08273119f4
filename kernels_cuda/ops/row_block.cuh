// A row of logits or probabilities as the share of one thread block cluster: every block holds its part of the row in
// shared memory (or reads it again where that is too small), and the blocks meet in distributed shared memory.
//
// The row is cut into 16-byte vectors at aligned addresses. A block owns consecutive vectors, a warp consecutive ones
// of those, and a lane of the warp every 32nd.
#pragma once

#include <type_traits>

#include "cluster.cuh"
#include "specdec/row_floats.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kRowThreads = 384;  // two blocks on a processor, with 80 registers a thread
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kStretches = 8;  // of a warp's part, at most
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

  // The block's dynamic shared memory has its vectors, if they are resident, then lists.
  __device__ RowPart(const Bits* row, int size) : row_(row), size_(size) {
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Bits));
    const int vectors = (lead + size + kLength - 1) / kLength, blocks = Cluster::size();
    const int share = (vectors + blocks - 1) / blocks, first = Cluster::rank() * share;
    first_id_ = static_cast<int>(ptx::anew(static_cast<uint32_t>(first * kLength - lead)));
    count_ = max(min(vectors - first, share), 0);
    warp_share_ = (share + kRowWarps - 1) / kRowWarps;
  }

  __device__ int size() const { return size_; }
  // Vectors of a lane, at most; the same in all warps of all blocks.
  __device__ int rounds() const { return (warp_share_ + 31) / 32; }
  // A warp's vectors [begin, end), as the block counts them.
  __device__ int begin(int warp) const {
    return min(static_cast<int>(ptx::anew(static_cast<uint32_t>(warp * warp_share_))), count_);
  }
  __device__ int end(int warp) const { return min((warp + 1) * warp_share_, count_); }
  // The id of a vector's first element, which may lie up to kLength - 1 before the row.
  __device__ int id(int vector) const { return first_id_ + vector * kLength; }
  __device__ bool has(int id) const { return static_cast<uint32_t>(id) < static_cast<uint32_t>(size_); }
  __device__ bool whole(int vector) const {
    return static_cast<uint32_t>(id(vector)) < static_cast<uint32_t>(max(size_ - kLength + 1, 0));
  }

  // Goes through this lane's vectors for the first time: f(vector, elements, whether they are the row's); -inf where it
  // does not reach. Where they would be read again, some are put aside: with `kSamples` those of the sample, else the
  // last ones of each warp, its tail.
  template <bool kSamples = false, class F>
  __device__ __forceinline__ void load(F f) {
    const int warp = static_cast<int>(warp_id()), first = begin(warp), stride = sample_stride();
    uint4* const sample = held() + threadIdx.x;
    const Batches tail = tail_of(batches_of<kSweepAhead>(warp));
    sweep_memory<false, sizeof(Bits) == 4 ? 4 : 2, false>([&](int v, uint4 x, bool real) {
      if (kResident && real) held()[v] = x;
      if (kSamples && !kResident && real) {
        const int round = (v - first) / 32, at = round / stride;
        if (round % stride == sample_phase() && at < sample_room()) sample[at * kRowThreads] = x;
      }
      if (!kSamples && !kResident && real) {
        const uint32_t at = static_cast<uint32_t>(v - tail.from);
        if (at < static_cast<uint32_t>(tail.count * (32 * kSweepAhead))) tail_vectors(warp)[at] = x;
      }
      f(v, Elements<L>(x), real);
    });
  }

  // A lane's sample of the row: every sample_stride()-th of its vectors, sample_begin() first. Of up to 128 rounds
  // nearly all of it can be put aside; in longer rows less would be too little.
  __device__ __forceinline__ int sample_stride() const {
    return rounds() <= 4 ? 1 : rounds() <= 104 ? 7 : rounds() <= 128 ? 8 : 4;
  }
  __device__ __forceinline__ int sample_begin() const {
    return begin(static_cast<int>(warp_id())) + static_cast<int>(lane_id()) + sample_phase() * 32;
  }
  static constexpr int kNotPutAside = 1 << 20;
  // The `at`-th of them, vector `v`; kNotPutAside once lists are written.
  __device__ __forceinline__ Elements<L> sampled(int at, int v) const {
    if (!kResident && at < sample_room() && whole(v)) {
      return Elements<L>(held()[at * kRowThreads + static_cast<int>(threadIdx.x)]);
    }
    return (*this)[v];
  }

  static constexpr int kSweepAhead = sizeof(Bits) == 4 ? 3 : 2;
  struct Never {
    __device__ void operator()(int) const {}
  };
  // Goes through this warp's vectors after `load`, backwards, since what was read last is in the cache: in all lanes
  // together f(vector, elements, whether they are the row's). Behind each stretch but the rest done(stretch), if the
  // warp is stretched().
  template <class F, class Done = Never>
  __device__ __forceinline__ void sweep(F f, Done done = Done()) const {
    if constexpr (kResident) {
      sweep_held(f);
    } else {
      sweep_memory<true, kSweepAhead, false>([&](int v, uint4 x, bool real) { f(v, Elements<L>(x), real); }, done);
    }
  }
  // The same where `load` may have put the tail aside; `kept`: it has, and nothing was written to lists since.
  template <class F, class Done = Never>
  __device__ __forceinline__ void sweep_tail_first(bool kept, F f, Done done = Done()) const {
    if constexpr (kResident) {
      sweep_held(f);
    } else {
      sweep_memory<true, kSweepAhead, true>([&](int v, uint4 x, bool real) { f(v, Elements<L>(x), real); }, done, kept);
    }
  }

  // A sweep goes through a warp's vectors in up to kStretches stretches of neighbours, and the rest behind these. Not
  // where they are in shared memory, nor where they begin with a vector that is not whole.
  __device__ bool stretched(int warp) const { return !kResident && !ragged(begin(warp)); }
  // Where the `at`-th begins; kStretches: the rest; kStretches + 1: its end.
  __device__ int stretch(int warp, int at) const {
    if (at > kStretches) return end(warp);
    const Batches batches = batches_of<kSweepAhead>(warp);
    return batches.from + min(at * ((batches.count + kStretches - 1) / kStretches), batches.count) * (32 * kSweepAhead);
  }

  // Any vector of the block after `load` and a barrier.
  __device__ __forceinline__ Elements<L> operator[](int vector) const {
    return Elements<L>(kResident ? held()[vector] : fetch(vector));
  }
  __device__ __forceinline__ float value(int id) const { return L::widen(row_[id]); }

  // Elements that the block puts aside, list_room() at most: their values, and which of their warp's they are.
  __device__ float* list_values() const { return reinterpret_cast<float*>(held() + held_vectors()); }
  __device__ uint16_t* list_places() const { return reinterpret_cast<uint16_t*>(list_values() + list_room()); }
  __device__ int list_room() const {
    return (static_cast<int>(ptx::dynamic_shared_bytes()) - held_vectors() * 16) / 6 / 2 * 2;
  }
  // The id at a place of this warp's, which are its elements' numbers.
  __device__ int id_at(int place) const { return id(begin(static_cast<int>(warp_id()))) + place; }

 private:
  __device__ __forceinline__ int sample_phase() const { return static_cast<int>(warp_id()) % sample_stride(); }
  // Vectors of a lane that there is room for, of its sample or of the tail.
  __device__ __forceinline__ static int sample_room() {
    return static_cast<int>(ptx::dynamic_shared_bytes()) / (kRowThreads * 16);
  }

  // Of the vectors [begin, last) of a warp: whether the first is not whole; where those that are whole end.
  __device__ __forceinline__ bool ragged(int begin) const { return first_id_ < 0 && begin == 0; }
  __device__ __forceinline__ int whole_end(int last) const { return min(last, (size_ - first_id_) / kLength); }

  // Batches of kAhead vectors a lane, all whole: `count` of them, the first begins with vector `from`.
  struct Batches {
    int from, count;
  };
  template <int kAhead>
  __device__ __forceinline__ Batches batches_of(int warp) const {
    const int first = begin(warp), from = ragged(first) ? first + 32 : first;
    return {from, max(whole_end(end(warp)) - from, 0) / (32 * kAhead)};
  }
  // The last of a warp's, as many as there is room for.
  __device__ __forceinline__ static Batches tail_of(const Batches& batches) {
    const int count = min(batches.count, sample_room() / kSweepAhead);
    return {batches.from + (batches.count - count) * (32 * kSweepAhead), count};
  }
  __device__ __forceinline__ static uint4* tail_vectors(int warp) { return held() + warp * sample_room() * 32; }

  __device__ __forceinline__ static uint4* held() { return ptx::dynamic_shared<uint4>(); }
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

  template <class F>
  __device__ __forceinline__ void sweep_held(F f) const {
    const int last = end(static_cast<int>(warp_id()));
#pragma unroll 1
    for (int at = begin(static_cast<int>(warp_id())); at < last; at += 32) {
      const int v = at + static_cast<int>(lane_id());
      f(v, Elements<L>(v < last ? held()[v] : nothing()), v < last);
    }
  }

  // f(vector, its 16 bytes, whether they are the row's) in all lanes of the warp together; kAhead loads are under way
  // at once, the next as soon as a vector has been looked at. Vectors at the row's ends come last. Forwards what is
  // read goes from the cache first: by the next time most of it has gone anyway. Backwards with kTail, and `kept`, the
  // tail comes from shared memory.
  template <bool kBackwards, int kAhead, bool kTail, class F, class Done = Never>
  __device__ __forceinline__ void sweep_memory(F f, Done done = Done(), bool kept = false) const {
    const int warp = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id());
    const int first = begin(warp), last = end(warp), to = whole_end(last);
    const bool ragged = this->ragged(first);  // the first is not whole: its round is by itself
    const Batches batches = batches_of<kAhead>(warp);
    if (batches.count > 0) {
      constexpr int kStep = (kBackwards ? -32 : 32) * kAhead;
      int v = batches.from + lane + (kBackwards ? (batches.count - 1) * (32 * kAhead) : 0);
      const uint4* at = reinterpret_cast<const uint4*>(row_ + id(v));
      const int each = (batches.count + kStretches - 1) / kStretches;
      int stretch = (batches.count - 1) / each;
      const Batches tail = kTail && kept ? tail_of(batches) : Batches{0, 0};
      const uint4* tail_at = tail_vectors(warp) + (tail.count - 1) * (32 * kAhead) + lane;
      const int front = batches.count - tail.count;
      uint4 x[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) x[k] = kTail && tail.count > 0 ? tail_at[k * 32] : __ldg(at + k * 32);
      const ptx::CachePolicy policy = ptx::evict_first();
#pragma unroll 1
      for (int left = batches.count; left > 0; --left, v += kStep) {
        at += kStep;
        if (kTail) tail_at += kStep;
        const bool more = left > 1, next_kept = kTail && left - 1 > front;
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          f(v + k * 32, x[k], true);
          if (kBackwards) {
            ptx::load_ahead(x[k], at + k * 32, more && !next_kept, tail_at + k * 32, next_kept);
          } else {
            ptx::load_ahead(x[k], at + k * 32, more, policy);
          }
        }
        if (!std::is_same<Done, Never>::value && left - 1 == stretch * each && !ragged) {
          done(stretch);
          --stretch;
        }
      }
    }
    const int first_again = static_cast<int>(ptx::anew(static_cast<uint32_t>(first)));  // saves a register meanwhile
    const int over = max(to - first_again - (ragged ? 32 : 0), 0) % (32 * kAhead);
    const int rest = to - over, singles = (over + 31) / 32;
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
};

// Vectors that a thread looks at in turn and that take 8 registers.
template <class Part>
constexpr int kBatch = 8 / Part::kLength;

// `kCount` vectors of a part, vector(0) and on, which are all loaded before any is looked at.
template <class Part, int kCount>
struct VectorBatch {
  struct {
    float x[Part::kLength];
  } of[kCount];

  template <class F>
  __device__ __forceinline__ explicit VectorBatch(F vector) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const auto elements = vector(k);
#pragma unroll
      for (int j = 0; j < Part::kLength; ++j) of[k].x[j] = elements.x[j];
    }
  }
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
