// A row of logits or probabilities as the share of one thread block cluster: every block holds its part of the row in
// shared memory, or rereads it if that is too small; blocks communicate through distributed shared memory.
//
// The row is divided into 16-byte vectors at aligned addresses, and these into stripes of as many ids as a chunk has. A
// block owns consecutive stripes, a warp consecutive ones of those, and a lane of the warp every 32nd vector. Where the
// row begins on 16 bytes its stripes are its chunks; else up to kLength - 1 elements before a stripe's chunk stand in
// its first vector, and as many of the chunk in the next stripe.
#pragma once

#include <type_traits>

#include "cluster.cuh"
#include "specdec/row_rules.h"
#include "warp.cuh"

namespace specdec::cuda {

constexpr int kRowThreads = 384;  // two blocks on an SM, with 80 registers a thread
constexpr int kRowWarps = kRowThreads / 32;
constexpr int kRowGroups = kMaxCluster * kRowWarps;  // groups of lanes of a row, however many blocks it has
constexpr int kMaxStripes = 24;  // of a warp
static_assert(served::kV / kChunkIds + 1 <= kMaxStripes * kRowWarps, "one more than chunks where a row is not aligned");

// After the parameters of a large lambda: as a call it would have what it captures in memory.
#define SPECDEC_INLINED __attribute__((always_inline))

// -inf as a word of memory has it: what fills vectors beyond the ends of a row.
template <class L>
constexpr uint32_t kLowest = 0xFF800000u;
template <>
inline constexpr uint32_t kLowest<Float16> = 0xFC00FC00u;
template <>
inline constexpr uint32_t kLowest<BFloat16> = 0xFF80FF80u;

// Elements of a vector, and of a word of it.
template <class L>
constexpr int kVector = 16 / static_cast<int>(sizeof(typename L::Bits));
template <class L>
constexpr int kInWord = 4 / static_cast<int>(sizeof(typename L::Bits));

// The elements of a vector, widened.
template <class L>
struct Elements {
  float x[kVector<L>];

  Elements() = default;
  __device__ __forceinline__ explicit Elements(uint4 v) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kInWord<L> == 1) {
        x[i] = L::widen(__uint_as_float(words[i]));
      } else {
        x[2 * i] = L::widen(static_cast<uint16_t>(words[i]));
        x[2 * i + 1] = L::widen(static_cast<uint16_t>(words[i] >> 16));
      }
    }
  }
};

// An element that was put aside.
struct Listed {
  float value;
  int32_t id;
};

constexpr int kCountCells = 4 * kRowThreads;  // of the count of all elements of a row (row_guess.cuh)

// This block's part of a row. With kOneEach a warp has one stripe at most, which stays in shared memory.
template <class L, bool kResident, bool kOneEach_ = false>
class RowPart {
 public:
  using Type = L;
  using Bits = typename L::Bits;
  static constexpr bool kHeld = kResident, kOneEach = kOneEach_;
  static constexpr int kLength = kVector<L>;
  static constexpr int kRounds = kChunkIds / 32 / kLength;  // vectors of a lane in a stripe
  static constexpr int kStripe = 32 * kRounds;  // vectors

  // The block's dynamic shared memory has its vectors, if they are resident, then lists.
  __device__ RowPart(const Bits* row, int size, int blocks = Cluster::size()) : row_(row), size_(size) {
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16 / sizeof(Bits));
    const int vectors = (lead + size + kLength - 1) / kLength;
    const int stripes = ((vectors + kStripe - 1) / kStripe + blocks - 1) / blocks;
    const int share = stripes * kStripe, first = Cluster::rank() * share;
    first_id_ = static_cast<int>(ptx::recomputed(static_cast<uint32_t>(first * kLength - lead)));
    if (threadIdx.x == 0) {
      extent() = {share, max(min(vectors - first, share), 0), (stripes + kRowWarps - 1) / kRowWarps, blocks};
    }
    __syncthreads();
  }

  __device__ int size() const { return size_; }
  // Of the row.
  __device__ int blocks() const { return extent().blocks; }
  // Vectors of a lane, at most; the same in all warps of all blocks.
  __device__ int rounds() const { return stripes_each() * kRounds; }
  // A warp's vectors [begin, end), as the block counts them, and its stripes.
  __device__ int begin(int warp) const {
    return min(static_cast<int>(ptx::recomputed(static_cast<uint32_t>(warp * stripes_each() * kStripe))),
               extent().count);
  }
  __device__ int end(int warp) const { return min((warp + 1) * stripes_each() * kStripe, extent().count); }
  __device__ int stripes(int warp) const { return (end(warp) - begin(warp) + kStripe - 1) / kStripe; }
  // A warp's stripe `at`: its vectors [begin, end).
  __device__ int begin(int warp, int at) const { return begin(warp) + at * kStripe; }
  __device__ int end(int warp, int at) const { return min(begin(warp, at) + kStripe, end(warp)); }
  // The id of a vector's first element, which may lie up to kLength - 1 before the row.
  __device__ int id(int vector) const { return first_id_ + vector * kLength; }
  __device__ bool has(int id) const { return static_cast<uint32_t>(id) < static_cast<uint32_t>(size_); }
  __device__ bool whole(int vector) const {
    return static_cast<uint32_t>(id(vector)) < static_cast<uint32_t>(max(size_ - kLength + 1, 0));
  }
  // Elements of a stripe that belong to the chunk before.
  __device__ int lead() const {
    return static_cast<int>(ptx::recomputed(static_cast<uint32_t>(-first_id_ & (kLength - 1))));
  }

  // The stripes of this warp whose bits are set, kAhead vectors of a lane at a time.
  template <bool kBackwards, int kAhead>
  struct Reader {
    uint4 x[kAhead] = {};  // the vectors of `round` and on of `stripe`
    int stripe = -1, round = 0;

    __device__ __forceinline__ Reader(const RowPart& of, uint32_t wanted)
        : part(of), first(of.begin(static_cast<int>(warp_id()))) {
      if constexpr (!kBackwards) policy = ptx::evict_first();
      left = wanted & ((1u << of.stripes(static_cast<int>(warp_id()))) - 1u);
      step();
#pragma unroll
      for (int k = 0; k < kAhead; ++k) ahead(k);
    }
    // Goes on to the next vectors; false if there are none.
    __device__ __forceinline__ bool go() {
      stripe = next;
      round = next_round;
      if (stripe < 0) return false;
      if (!next_whole) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) x[k] = part.fetch(vector(k));
      }
      step();
      return true;
    }
    __device__ __forceinline__ int vector(int k) const {
      return first + stripe * kStripe + (round + k) * 32 + static_cast<int>(lane_id());
    }
    // Vector k of what `go` has read. With kOneEach from shared memory, so that a loop need not be written out.
    __device__ __forceinline__ uint4 get(int k) const {
      if constexpr (!kOneEach) return x[k];
      const uint4 own = held()[vector(k)];
      return k == 0 && lane_id() == 0 ? without_first(own, part.lead()) : own;
    }
    // To be called when vector k is no longer needed: reads the next in its place ahead.
    __device__ __forceinline__ void used(int k) {
      if constexpr (!kOneEach) ahead(k);
    }

   private:
    __device__ __forceinline__ void ahead(int k) {
      const int id = part.id(first + next * kStripe + (next_round + k) * 32 + static_cast<int>(lane_id()));
      const uint4* from = reinterpret_cast<const uint4*>(part.row_ + id);
      if constexpr (kBackwards) {
        ptx::load_ahead(x[k], from, next_whole);
      } else {
        ptx::load_ahead(x[k], from, next_whole, policy);
      }
    }
    __device__ __forceinline__ void step() {
      constexpr int kLast = kRounds - kAhead;
      if (next >= 0 && next_round != (kBackwards ? 0 : kLast)) {
        next_round += kBackwards ? -kAhead : kAhead;
        return;
      }
      next_round = kBackwards ? kLast : 0;
      next = left == 0 ? -1 : kBackwards ? 31 - __clz(static_cast<int>(left)) : __ffs(static_cast<int>(left)) - 1;
      if (next >= 0) left ^= 1u << next;
      const int id = part.id(first + next * kStripe);
      next_whole = next >= 0 && id >= 0 && id <= part.size_ - kChunkIds;
    }

    const RowPart part;  // not a reference: it would be kept in memory
    int first, next = -1, next_round = 0;
    uint32_t left;  // stripes after the next
    bool next_whole;  // others are not read ahead
    ptx::CachePolicy policy = {};  // forwards
  };
  using Chunk = Reader<false, kRounds>;

  // Goes through this warp's stripes for the first time, in all lanes together. Calls by_vector(vector, elements) for
  // each vector of a lane, and by_chunk(chunk, edge) for each chunk. A chunk's elements are those of the lanes' vectors
  // chunk.x, and `edge`; chunk.used(k) must be called for each. What is not the row's is -inf. `chunk`: a reader of all
  // stripes.
  template <class ByVector, class ByChunk>
  __device__ __forceinline__ void load(ByVector by_vector, ByChunk& by_chunk, Chunk& chunk,
                                       int count = extent().count) {
    while (chunk.go()) {
      float edge = -INFINITY;
      if (lead() > 0) {
        const int behind = id(chunk.vector(0) + kStripe) - static_cast<int>(lane_id()) * (kLength - 1);
        if (static_cast<int>(lane_id()) < lead() && has(behind)) edge = value(behind);
      }
#pragma unroll
      for (int k = 0; k < kRounds; ++k) {
        if (kResident && (kOneEach || chunk.vector(k) < count)) held()[chunk.vector(k)] = chunk.x[k];
        by_vector(chunk.vector(k), Elements<L>(chunk.x[k]));
      }
      if (lead() > 0 && lane_id() == 0) chunk.x[0] = without_first(chunk.x[0], lead());
      by_chunk(chunk, edge);
      if (kOneEach) break;
    }
  }
  template <class ByVector, class ByChunk>
  __device__ __forceinline__ void load(ByVector by_vector, ByChunk& by_chunk) {
    const int count = extent().count;
    Chunk chunk(*this, ~0u);
    load(by_vector, by_chunk, chunk, count);
  }
  // By chunks alone.
  struct NoVectors {
    __device__ void operator()(int, const Elements<L>&) const {}
  };
  template <class ByChunk>
  __device__ __forceinline__ void load(ByChunk& by_chunk) {
    load(NoVectors(), by_chunk);
  }

  struct Never {
    __device__ void operator()(int) const {}
  };
  // Goes through the stripes of this warp whose bits are set, after `load`: backwards, since what was read last is in
  // the cache. In all lanes together f(vector, elements, whether they are the row's), and after a stripe done(stripe).
  // `kAhead`: vectors of a lane that are read ahead; on some devices the compiler has no registers left for more.
#if __CUDA_ARCH__ >= 1000
  static constexpr int kSweepAhead = kRounds / 4;
#else
  static constexpr int kSweepAhead = kRounds / 2;
#endif
  template <int kAhead = kSweepAhead, class F, class Done = Never>
  __device__ __forceinline__ void sweep(uint32_t wanted, F f, Done done = Done()) const {
    const int count = extent().count;
    if constexpr (kResident) {
      const int warp = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id());
#pragma unroll 1
      for (int at = stripes(warp) - 1; at >= 0; --at) {
        if ((wanted >> at & 1) == 0) continue;
#pragma unroll 1
        for (int v = begin(warp, at) + lane; v - lane < end(warp, at); v += 32) {
          f(v, Elements<L>(v < count ? held()[v] : nothing()), v < count);
        }
        done(at);
      }
    } else {
      Reader<true, kAhead> vectors(*this, wanted);
      while (vectors.go()) {
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          f(vectors.vector(k), Elements<L>(vectors.x[k]), vectors.vector(k) < count);
          vectors.used(k);
        }
        if (vectors.round == 0) done(vectors.stripe);
      }
    }
  }
  // Stripes of the row, of each of its blocks (of the last ones fewer), and the number of this block's first; its warp
  // w has those from w * stripes_each() on.
  __device__ int row_stripes() const { return (lead() + size_ + kChunkIds - 1) / kChunkIds; }
  __device__ int block_stripes() const { return extent().share / kStripe; }
  __device__ int first_stripe() const { return Cluster::rank() * block_stripes(); }
  __device__ int stripes_each() const { return kOneEach ? 1 : extent().stripes; }
  // That of an element of this block.
  __device__ int stripe_of(int id) const { return (id - first_id_) / kChunkIds; }
  // Which of a lane's vectors in its stripe it is.
  __device__ int round_of(int vector) const { return vector / 32 % kRounds; }
  // The stripes of a warp that may hold elements of the chunks whose bits are set.
  __device__ __forceinline__ uint32_t stripes_of(uint32_t chunks) const {
    return lead() == 0 ? chunks : chunks | chunks << 1 | 1u;
  }

  // Any vector of the block after `load` and a barrier.
  __device__ __forceinline__ Elements<L> operator[](int vector) const {
    return Elements<L>(kResident ? held()[vector] : fetch(vector));
  }
  __device__ __forceinline__ float value(int id) const { return L::widen(row_[id]); }
  // The same, of an element of this block.
  __device__ __forceinline__ float own_value(int id) const {
    return kResident ? L::widen(reinterpret_cast<const Bits*>(held())[id - first_id_]) : value(id);
  }

  // Elements that the block puts aside, list_room() at most.
  __device__ Listed* list() const { return reinterpret_cast<Listed*>(held() + held_vectors() + kCellVectors); }
  __device__ int list_room() const {
    return (static_cast<int>(ptx::dynamic_shared_bytes()) - (held_vectors() + kCellVectors) * 16) /
           static_cast<int>(sizeof(Listed));
  }
  // With kOneEach: kCountCells counts, four of each thread.
  __device__ uint4* cells() const { return held() + held_vectors(); }
  // Vectors of this block.
  __device__ int vectors() const { return extent().count; }

 private:
  // Vectors of a block, at most; of this one; stripes of a warp, at most. In shared memory: registers are what passes
  // over a row need most.
  struct Extent {
    int share, count, stripes, blocks;
  };
  static constexpr int kCellVectors = kOneEach ? kCountCells / 4 : 0;
  static __device__ __forceinline__ Extent& extent() {
    __shared__ Extent own;
    return own;
  }

  __device__ __forceinline__ static uint4* held() { return ptx::dynamic_shared<uint4>(); }
  // As large in all blocks, and enough for any.
  __device__ int held_vectors() const { return kResident ? extent().share : 0; }

  // A vector of -inf.
  static __device__ __forceinline__ uint4 nothing() { return {kLowest<L>, kLowest<L>, kLowest<L>, kLowest<L>}; }
  // `x` with -inf in place of its first n elements, which are not all.
  static __device__ __forceinline__ uint4 without_first(uint4 x, int n) {
    uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int taken = n - i * kInWord<L>;
      const uint32_t mask = taken <= 0 ? 0u : taken >= kInWord<L> ? ~0u : 0xFFFFu;
      words[i] = (words[i] & ~mask) | (kLowest<L> & mask);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  __device__ __forceinline__ uint4 fetch(int vector) const {
    return whole(vector) ? __ldg(reinterpret_cast<const uint4*>(row_ + id(vector)))
                         : fetch_edge(row_, size_, id(vector));
  }
  static __device__ __forceinline__ uint32_t word_of(float x) { return __float_as_uint(x); }
  static __device__ __forceinline__ uint32_t word_of(uint16_t x) { return x; }
  // A partial vector. Not members, which calls would keep in memory.
  static __device__ __noinline__ uint4 fetch_edge(const Bits* row, int size, int first) {
    const auto bits = [&](int id) {
      return static_cast<uint32_t>(id) < static_cast<uint32_t>(size) ? word_of(row[id]) : kLowest<L>;
    };
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kInWord<L> == 1) {
        words[i] = bits(first + i);
      } else {
        words[i] = (bits(first + 2 * i) & 0xFFFFu) | bits(first + 2 * i + 1) << 16;
      }
    }
    return {words[0], words[1], words[2], words[3]};
  }

  const Bits* row_;
  int size_, first_id_;
};

// `kCount` vectors of a part, vector(0) and on, which are all loaded before any is looked at.
template <class Part, int kCount>
struct VectorBatch {
  Elements<typename Part::Type> of[kCount];

  template <class F>
  __device__ __forceinline__ explicit VectorBatch(F vector) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) of[k] = vector(k);
  }
};

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

template <bool kBefore = true, typename T>
__device__ __forceinline__ Published gather(const T* own) {
  const int warps = Cluster::size() * kRowWarps, self = Cluster::rank() * kRowWarps + static_cast<int>(warp_id());
  Published sums = {0, 0};
  for (int w = static_cast<int>(lane_id()); w < warps; w += 32) {
    const uint64_t value = own[w];
    sums.total += value;
    if (kBefore && w < self) sums.before += value;
  }
  return {kBefore ? warp_sum(sums.before) : 0, warp_sum(sums.total)};
}

// Both, with a Cluster::sync() between.
__device__ __forceinline__ Published meet_sums(uint64_t* own, uint64_t value) {
  publish(own, value);
  Cluster::sync();
  return gather(own);
}

}  // namespace specdec::cuda
