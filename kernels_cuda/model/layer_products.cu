// A block per multiprocessor runs through all products. One of its warps fetches weights in the order of use, as far ahead as
// shared memory reaches, also those of the next product while blocks wait for each other's results.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "../ffi/device.h"
#include "../ops/launch.cuh"
#include "../ops/warp.cuh"
#include "layer_products.cuh"
#include "tensor_core.cuh"

namespace specdec::cuda {
namespace {

// A stage of the ring: 64 outputs' weights of 128 inputs, as two boxes of 128 bytes a row, swizzled; and x, whose rows are
// apart by 16 bytes more than they have, so that eight lie in different banks.
constexpr unsigned kOutputs = 64, kDepth = 128, kBoxBytes = kOutputs * 128, kWeightBytes = 2 * kBoxBytes;
constexpr unsigned kPitch = 2 * kDepth + 16;
constexpr unsigned kMostStages = 12;
// Warps that compute, and that fetch x; one more fetches weights.
constexpr unsigned kComputing = 4, kFetching = 3;
constexpr unsigned kThreads = (kComputing + kFetching + 1) * kWarp;
constexpr unsigned kMostWidth = 4096;  // of a norm
constexpr unsigned kNormThreads = kComputing * kWarp;
constexpr int32_t kPartsAtOnce = 4;
constexpr unsigned kProducts = 4;

struct Shared {
  uint64_t weights_full[kMostStages], x_full[kMostStages], empty[kMostStages];
  float sums[kMostWidth / 256];
  uint32_t totals[kMostWidth / 2];
  uint32_t product;  // that is computed
};

// Two 16-bit floats in a word.
template <typename T>
struct Pair;
template <>
struct Pair<__nv_bfloat16> {
  static __device__ __forceinline__ float2 floats(uint32_t x) {
    return {__uint_as_float(x << 16), __uint_as_float(x & 0xFFFF0000u)};
  }
  static __device__ __forceinline__ uint32_t of(float low, float high) {
    uint32_t x;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
};
template <>
struct Pair<__half> {
  static __device__ __forceinline__ float2 floats(uint32_t x) {
    return __half22float2(*reinterpret_cast<const __half2*>(&x));
  }
  static __device__ __forceinline__ uint32_t of(float low, float high) {
    uint32_t x;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low));
    return x;
  }
};

// A tile of a product: 64 outputs, one part of the inputs. Blocks take every gridDim.x-th.
struct Tile {
  int32_t first_output, part, first, last;  // inputs

  __device__ __forceinline__ Tile(const Product& p, int32_t index)
      : first_output(index / p.parts * static_cast<int32_t>(kOutputs)),
        part(index % p.parts),
        first(part * p.part),
        last(min(first + p.part, p.inputs)) {}
  __device__ __forceinline__ int32_t stages() const {
    return (last - first + static_cast<int32_t>(kDepth) - 1) / static_cast<int32_t>(kDepth);
  }
};
__device__ __forceinline__ int32_t tiles(const Product& p) {
  return (p.outputs + static_cast<int32_t>(kOutputs) - 1) / static_cast<int32_t>(kOutputs) * p.parts;
}

// A place in the ring of stages.
struct Ring {
  uint32_t stage = 0, parity = 0;

  __device__ __forceinline__ void next(int32_t stages) {
    if (++stage == static_cast<uint32_t>(stages)) stage = 0, parity ^= 1;
  }
};

// The stages of a block in the order of use, over all products.
struct Cursor {
  unsigned product = 0;
  int32_t index, k, last, first_output;

  __device__ __forceinline__ explicit Cursor(const LayerProducts& a) : index(static_cast<int32_t>(blockIdx.x)) {
    enter(a);
  }
  __device__ __forceinline__ bool done() const { return product == kProducts; }
  __device__ __forceinline__ void next(const LayerProducts& a) {
    k += static_cast<int32_t>(kDepth);
    if (k < last) return;
    index += static_cast<int32_t>(gridDim.x);
    enter(a);
  }

 private:
  __device__ __forceinline__ void enter(const LayerProducts& a) {
    while (product < kProducts && index >= tiles(a.products[product])) {
      ++product;
      index = static_cast<int32_t>(blockIdx.x);
    }
    if (done()) return;
    const Tile tile(a.products[product], index);
    k = tile.first, last = tile.last, first_output = tile.first_output;
  }
};

template <typename T, unsigned kRowTiles>
class Block {
 public:
  static constexpr unsigned kRows = 8 * kRowTiles;
  static constexpr unsigned kXBytes = kRows * kPitch, kStageBytes = kWeightBytes + kXBytes;

  __device__ __forceinline__ Block(const LayerProducts& a, Shared& shared, uint32_t ring)
      : a_(a), shared_(shared), ring_(ring) {}

  // Fetches weights: one thread. More bytes on their way than a multiprocessor's share of the bandwidth needs would only
  // delay what blocks exchange.
  __device__ __forceinline__ void fetch_weights(const CUtensorMap* maps) const {
    Ring at, landed;
    int32_t flying = 0;
    for (Cursor cursor(a_); !cursor.done(); cursor.next(a_)) {
      ptx::mbarrier_wait(address(shared_.empty, at), at.parity ^ 1);
      const int32_t most = cursor.product > *static_cast<volatile uint32_t*>(&shared_.product) ? a_.flying & 15 : a_.flying >> 4;
      for (; flying >= most; --flying) {
        ptx::mbarrier_wait(address(shared_.weights_full, landed), landed.parity);
        landed.next(a_.stages);
      }
      ++flying;
      const uint32_t full = address(shared_.weights_full, at), to = ring_ + at.stage * kWeightBytes;
      const CUtensorMap* const map = maps + cursor.product;
      ptx::mbarrier_expect(full, kWeightBytes);
      ptx::copy_box(to, map, cursor.k, cursor.first_output, full);
      ptx::copy_box(to + kBoxBytes, map, cursor.k + static_cast<int32_t>(kDepth / 2), cursor.first_output, full);
      at.next(a_.stages);
    }
  }

  // Fetches x: each warp every kFetching-th stage, a row of 4 elements per lane at a time.
  __device__ __forceinline__ void fetch_x(unsigned warp) {
    begin();
    const unsigned lane = lane_id();
    Cursor cursor(a_);
    Ring at;
    const auto next = [&] {
      cursor.next(a_);
      at.next(a_.stages);
    };
    for (unsigned i = 0; i < warp && !cursor.done(); ++i) next();
    while (!cursor.done()) {
      const int32_t inputs = a_.products[cursor.product].inputs;
      const int32_t k = cursor.k + static_cast<int32_t>(lane) * 4;
      const int32_t rows = k < cursor.last ? rows_ : 0;
      uint2 x[kRows] = {};
      if (cursor.product == 0) {
        const auto* from = static_cast<const T*>(a_.x) + k;
#pragma unroll
        for (unsigned r = 0; r < kRows; ++r) {
          if (static_cast<int32_t>(r) < rows) x[r] = __ldcg(reinterpret_cast<const uint2*>(from + int64_t{r} * inputs));
        }
      } else {
        const Flagged* const from = (cursor.product == 2 ? a_.middle : a_.normed) + k / 4;
        const uint32_t flag = flag_of(cursor.product - 1);
        bool complete;
        if (rows > 0) take(from, flag);  // not all rows while they are not there
        do {
          complete = true;
#pragma unroll
          for (unsigned r = 0; r < kRows; ++r) {
            if (static_cast<int32_t>(r) >= rows) continue;
            const Flagged f = ptx::load_volatile<Flagged>(from + int64_t{r} * (inputs / 4));
            x[r] = {f.data0, f.data1};
            complete = complete && f.flag0 == flag && f.flag1 == flag;
          }
        } while (!complete);
      }
      ptx::mbarrier_wait(address(shared_.empty, at), at.parity ^ 1);
      const uint32_t to = x_stage(at) + lane * 8;
#pragma unroll
      for (unsigned r = 0; r < kRows; ++r) ptx::store_shared(to + r * kPitch, x[r]);
      __syncwarp();
      if (lane == 0) ptx::mbarrier_arrive(address(shared_.x_full, at));
      for (unsigned i = 0; i < kFetching && !cursor.done(); ++i) next();
    }
  }

  // Computes: the first warps.
  __device__ __forceinline__ void compute() {
    begin();
    Ring at;
    for (unsigned i = 0; i < kProducts; ++i) {
      const Product& p = a_.products[i];
      for (auto index = static_cast<int32_t>(blockIdx.x); index < tiles(p); index += static_cast<int32_t>(gridDim.x)) {
        const Tile tile(p, index);
        float sums[kRowTiles][4] = {};
        Fragments one, two;
        int32_t stages = tile.stages();
        load(one, at);
        if (threadIdx.x == 0) *static_cast<volatile uint32_t*>(&shared_.product) = i;
        for (;;) {
          if (!multiply(sums, one, two, at, --stages)) break;
          if (!multiply(sums, two, one, at, --stages)) break;
        }
        finish(i, p, tile, sums);
      }
      if (i == kProducts - 1 || a_.products[i + 1].outputs == 0) let_next_start();
      if (i % 2 == 0) normalise(i);
    }
    if (threadIdx.x == 0 && atomicAdd(a_.state + 1, 1u) == gridDim.x - 1) {
      a_.state[0] = launch_ + 1;
      a_.state[1] = 0;
    }
  }

 private:
  // A stage as the tensor cores take it: a warp has 16 outputs.
  struct Fragments {
    uint32_t weights[kDepth / 16][4], x[kDepth / 16][kRowTiles][2];
  };

  static __device__ __forceinline__ uint32_t address(const uint64_t (&barriers)[kMostStages], const Ring& at) {
    return ptx::shared_address(&barriers[at.stage]);
  }
  __device__ __forceinline__ uint32_t x_stage(const Ring& at) const {
    return ring_ + static_cast<uint32_t>(a_.stages) * kWeightBytes + at.stage * kXBytes;
  }
  __device__ __forceinline__ void begin() {
    wait_for_previous();
    rows_ = a_.count == nullptr ? a_.capacity : min(a_.capacity, *a_.count);
    launch_ = __ldcg(a_.state);
  }
  // Of what is made of product i.
  __device__ __forceinline__ uint32_t flag_of(unsigned i) const { return (launch_ + 1) * kProducts + i; }

  // Two words, once they are there.
  static __device__ __forceinline__ uint2 take(const Flagged* from, uint32_t flag) {
    Flagged x;
    do {
      x = ptx::load_volatile<Flagged>(from);
    } while (x.flag0 != flag || x.flag1 != flag);
    return {x.data0, x.data1};
  }

  __device__ __forceinline__ void load(Fragments& f, const Ring& at) const {
    const unsigned lane = lane_id();
    const uint32_t weights = ring_ + at.stage * kWeightBytes + (warp_id() * 16 + lane % 16) * 128;
    ptx::mbarrier_wait(address(shared_.weights_full, at), at.parity);
    ptx::mbarrier_wait(address(shared_.x_full, at), at.parity);
#pragma unroll
    for (unsigned k = 0; k < kDepth / 16; ++k) {
      const unsigned piece = (k % 4 * 2 + lane / 16) ^ (lane % 8);
      ptx::load_matrices(f.weights[k], weights + k / 4 * kBoxBytes + piece * 16);
    }
    uint32_t four[4];
    if constexpr (kRowTiles == 1) {
#pragma unroll
      for (unsigned k = 0; k < kDepth / 16; k += 2) {
        ptx::load_matrices(four, x_stage(at) + lane % 8 * kPitch + k * 32 + lane / 8 * 16);
        f.x[k][0][0] = four[0], f.x[k][0][1] = four[1], f.x[k + 1][0][0] = four[2], f.x[k + 1][0][1] = four[3];
      }
    } else {
#pragma unroll
      for (unsigned k = 0; k < kDepth / 16; ++k) {
#pragma unroll
        for (unsigned j = 0; j < kRowTiles; j += 2) {
          const uint32_t row = j * 8 + lane / 16 * 8 + lane % 8;
          ptx::load_matrices(four, x_stage(at) + row * kPitch + k * 32 + lane / 8 % 2 * 16);
          f.x[k][j][0] = four[0], f.x[k][j][1] = four[1], f.x[k][j + 1][0] = four[2], f.x[k][j + 1][1] = four[3];
        }
      }
    }
  }

  // Multiplies one stage while the next one is loaded; false if there is none in this tile.
  __device__ __forceinline__ bool multiply(float (&sums)[kRowTiles][4], const Fragments& f, Fragments& next, Ring& at,
                                           int32_t more) const {
    const Ring mine = at;
    at.next(a_.stages);
    if (more > 0) load(next, at);
#pragma unroll
    for (unsigned k = 0; k < kDepth / 16; ++k) {
#pragma unroll
      for (unsigned j = 0; j < kRowTiles; ++j) ptx::multiply_add<T>(sums[j], f.weights[k], f.x[k][j][0], f.x[k][j][1]);
    }
    __syncwarp();
    if (lane_id() == 0) ptx::mbarrier_arrive(address(shared_.empty, mine));
    return more > 0;
  }

  // Hands a tile's sums on. The tensor cores leave outputs o and o + 1 of two rows in lanes l and l + 4: each lane takes both
  // of one row.
  __device__ __forceinline__ void finish(unsigned i, const Product& p, const Tile& tile, const float (&sums)[kRowTiles][4]) {
    const unsigned lane = lane_id();
    const bool odd = lane / 4 % 2 != 0;
    const uint32_t flag = flag_of(i);
    const bool last = tile.part == p.parts - 1;
#pragma unroll
    for (unsigned j = 0; j < kRowTiles; ++j) {
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        const float low = sums[j][half * 2], high = sums[j][half * 2 + 1];
        const float given = __shfl_xor_sync(kAllLanes, odd ? low : high, 4);
        float2 sum = odd ? float2{given, high} : float2{low, given};
        const auto row = static_cast<int32_t>(j * 8 + lane % 4 * 2 + (odd ? 1 : 0));
        const auto output = tile.first_output + static_cast<int32_t>(warp_id() * 16 + half * 8 + lane / 8 * 2);
        const bool there = row < rows_ && output < p.outputs;
        const int64_t at = (int64_t{row} * p.outputs + output) / 2, size = int64_t{a_.capacity} * p.outputs / 2;
        if (i % 2 == 0 || !last) {
          if (there) give(a_.partials + tile.part * size + at, sum, flag);
          continue;
        }
        if (p.parts > 1 && there) {
          float2 total = {0.0f, 0.0f};
          for (int32_t part = 0; part < tile.part; ++part) {
            const uint2 other = take(a_.partials + part * size + at, flag);
            total.x += __uint_as_float(other.x), total.y += __uint_as_float(other.y);
          }
          sum = {total.x + sum.x, total.y + sum.y};
        }
        if (i == 1) {
          const float gate = sum.x;
          const float slope = a_.gelu ? 1.5957691216057308f * gate * (1.0f + 0.044715f * gate * gate) : gate;
          const float gated = ptx::divide_full(gate, 1.0f + ptx::exp_approximate(-slope)) * sum.y;
          // Of four columns in a row, in lanes l, l + 8, l + 16 and l + 24.
          const float second = __shfl_down_sync(kAllLanes, gated, 8);
          const uint32_t pair = Pair<T>::of(gated, second), other = __shfl_down_sync(kAllLanes, pair, 16);
          if (lane < 8 && there) ptx::store_volatile(a_.middle + at / 4, Flagged{pair, flag, other, flag});
        } else if (there) {
          if (p.bias != nullptr) {
            const float2 bias = Pair<T>::floats(static_cast<const uint32_t*>(p.bias)[output / 2]);
            sum.x += bias.x, sum.y += bias.y;
          }
          static_cast<uint32_t*>(a_.out)[at] = Pair<T>::of(sum.x, sum.y);
        }
      }
    }
  }
  static __device__ __forceinline__ void give(Flagged* to, float2 x, uint32_t flag) {
    ptx::store_volatile(to, Flagged{__float_as_uint(x.x), flag, __float_as_uint(x.y), flag});
  }

  // Rows of the norm after product i: the parts' sum, the bias and the residual, rounded, and its RMSNorm, by the warps that
  // compute; each has every fourth block of 256 columns, a lane two columns of each 64. The order of sums is that of norm.py:
  // 8 columns, a block, all blocks. Few instructions, as they are fetched for one row.
  __device__ __forceinline__ void normalise(unsigned i) {
    const Product& p = a_.products[i];
    const SumNorm& norm = a_.norms[i / 2];
    const uint32_t flag = flag_of(i);
    const int64_t size = int64_t{a_.capacity} * p.outputs / 2;
    unsigned blocks = 1;
    while (blocks * 256 < static_cast<unsigned>(p.outputs)) blocks *= 2;
    for (auto row = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x); row < rows_; row += static_cast<int32_t>(gridDim.x)) {
      const int64_t at = int64_t{row} * p.outputs / 2;
#pragma unroll 1
      for (unsigned block = warp_id(); block < blocks; block += kComputing) {
        const auto c = static_cast<int32_t>(block * 256 + lane_id() * 8);
        if (c >= p.outputs) break;
        ptx::prefetch_near(static_cast<const uint32_t*>(norm.residual) + at + c / 2);
        ptx::prefetch_near(static_cast<const T*>(norm.weight) + c);
      }
#pragma unroll 1
      for (unsigned block = warp_id(); block < blocks; block += kComputing) {
        const auto first = static_cast<int32_t>(block * 256 + lane_id() * 2);
        const float zero = p.parts == 1 ? -0.0f : 0.0f;  // one part keeps its sign
        float2 x[4];
#pragma unroll
        for (unsigned e = 0; e < 4; ++e) x[e].x = x[e].y = zero;
#pragma unroll 1
        for (int32_t part = 0; part < p.parts; part += kPartsAtOnce) {
          const Flagged* const from = a_.partials + part * size + at + first / 2;
          Flagged loaded[kPartsAtOnce][4];
          bool complete;
          do {
            complete = true;
#pragma unroll
            for (int32_t n = 0; n < kPartsAtOnce * 4; ++n) {
              const int32_t j = n / 4, e = n % 4;
              loaded[j][e] = {0, flag, 0, flag};
              if (part + j < p.parts && first + e * 64 < p.outputs)
                loaded[j][e] = ptx::load_volatile<Flagged>(from + j * size + e * 32);
            }
#pragma unroll
            for (int32_t n = 0; n < kPartsAtOnce * 4; ++n)
              complete = complete && loaded[n / 4][n % 4].flag0 == flag && loaded[n / 4][n % 4].flag1 == flag;
          } while (!complete);
#pragma unroll
          for (int32_t n = 0; n < kPartsAtOnce * 4; ++n) {
            if (part + n / 4 >= p.parts) continue;
            x[n % 4].x += __uint_as_float(loaded[n / 4][n % 4].data0);
            x[n % 4].y += __uint_as_float(loaded[n / 4][n % 4].data1);
          }
        }
        float sums[4];
#pragma unroll
        for (int32_t e = 0; e < 4; ++e) {
          const int32_t c = first + e * 64;
          uint32_t total = 0;
          if (c < p.outputs) {
            if (p.bias != nullptr) add(x[e], word(p.bias, c));
            add(x[e], static_cast<const uint32_t*>(norm.residual)[at + c / 2]);
            total = Pair<T>::of(x[e].x, x[e].y);
            static_cast<uint32_t*>(norm.total)[at + c / 2] = total;
          }
          shared_.totals[c / 2] = total;
          x[e] = Pair<T>::floats(total);
          sums[e] = x[e].x * x[e].x + x[e].y * x[e].y;
          sums[e] += __shfl_xor_sync(kAllLanes, sums[e], 1);
          sums[e] += __shfl_xor_sync(kAllLanes, sums[e], 2);  // of 8 columns
        }
        float sum = (sums[0] + sums[2]) + (sums[1] + sums[3]);
#pragma unroll
        for (int d = 16; d >= 4; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
        if (lane_id() == 0) shared_.sums[block] = sum;
      }
      ptx::barrier(1, kNormThreads);
      float sum = shared_.sums[lane_id() % blocks];
#pragma unroll 1
      for (unsigned d = blocks / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, static_cast<int>(d));
      const float scale = ptx::rsqrt_approximate(ptx::divide_full(sum, static_cast<float>(p.outputs)) + norm.epsilon);
#pragma unroll 1
      for (auto c = static_cast<int32_t>(threadIdx.x * 2); c < p.outputs; c += static_cast<int32_t>(kNormThreads * 2)) {
        const float2 x = Pair<T>::floats(shared_.totals[c / 2]), w = Pair<T>::floats(word(norm.weight, c));
        const uint32_t out = Pair<T>::of(x.x * scale * w.x, x.y * scale * w.y);
        ptx::store_volatile(reinterpret_cast<uint2*>(a_.normed) + at + c / 2, uint2{out, flag});
        static_cast<uint32_t*>(norm.out)[at + c / 2] = out;
      }
      ptx::barrier(1, kNormThreads);  // `sums` are written again
    }
  }
  static __device__ __forceinline__ uint32_t word(const void* of, int32_t column) {
    return __ldg(static_cast<const uint32_t*>(of) + column / 2);
  }
  static __device__ __forceinline__ void add(float2& x, uint32_t more) {
    const float2 y = Pair<T>::floats(more);
    x.x += y.x, x.y += y.y;
  }

  const LayerProducts& a_;
  Shared& shared_;
  const uint32_t ring_;
  int32_t rows_ = 0;
  uint32_t launch_ = 0;
};

struct WeightMaps {
  CUtensorMap of[kProducts];
};

template <typename T, unsigned kRowTiles>
__global__ void __launch_bounds__(kThreads, 1)
    layer_products_kernel(const __grid_constant__ LayerProducts a, const __grid_constant__ WeightMaps maps) {
  __shared__ Shared shared;
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < a.stages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&shared.weights_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.x_full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&shared.empty[i]), kComputing);
    }
    shared.product = 0;
    ptx::fence_barriers();
  }
  __syncthreads();
  const uint32_t ring = (ptx::shared_address(ptx::dynamic_shared<uint8_t>()) + 1023) / 1024 * 1024;
  Block<T, kRowTiles> block(a, shared, ring);
  if (warp_id() < kComputing) {
    block.compute();
  } else if (warp_id() < kComputing + kFetching) {
    block.fetch_x(warp_id() - kComputing);
  } else if (lane_id() == 0) {
    block.fetch_weights(maps.of);
  }
}

template <typename T, unsigned kRowTiles>
void launch_rows(LayerProducts& a, const WeightMaps& maps, int flags, cudaStream_t stream) {
  const char* const name = "layer_products";
  const auto kernel = layer_products_kernel<T, kRowTiles>;
  constexpr int kStage = Block<T, kRowTiles>::kStageBytes, kAlignment = 1024;
  const int most = device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(name) - static_cast<int>(sizeof(Shared)) -
                   kAlignment;
  a.stages = std::min<int32_t>(most / kStage, kMostStages);
  if ((flags >> 8 & 255) > 0) a.stages = std::min<int32_t>(a.stages, flags >> 8 & 255);
  a.flying = (flags >> 16 & 255) > 0 ? flags >> 16 & 255 : 0x32;
  const int bytes = a.stages * kStage + kAlignment;
  check(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = static_cast<unsigned>(device_sms(name));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (flags & 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (flags & 2) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  check(name, cudaLaunchKernelEx(&config, kernel, a, maps));
}

// A weight [outputs, inputs], fetched by boxes of 64 rows of 128 bytes; beyond it are zeros.
CUtensorMap weight_map(const void* weight, const Product& p, bool half) {
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    check("cuTensorMapEncodeTiled", cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                                    cudaEnableDefault, &found));
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(p.inputs), static_cast<cuuint64_t>(p.outputs)};
  const cuuint64_t strides[1] = {sizes[0] * 2};
  const cuuint32_t box[2] = {kDepth / 2, kOutputs}, steps[2] = {1, 1};
  const CUresult result =
      encode(&map, half ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(weight),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) throw CudaError("cuTensorMapEncodeTiled", cudaErrorInvalidValue);
  return map;
}

template <typename T>
void launch_type(LayerProducts& a, const WeightMaps& maps, int flags, cudaStream_t stream) {
  if (a.capacity <= 8) return launch_rows<T, 1>(a, maps, flags, stream);
  return launch_rows<T, 2>(a, maps, flags, stream);
}

using tvm::ffi::Array;
using tvm::ffi::Optional;
using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

void layer_products(TensorView x, TensorView residual, Array<Tensor> weights, Array<Optional<Tensor>> biases,
                    Array<int64_t> parts, Array<Tensor> norms, double first_epsilon, double second_epsilon,
                    Array<Tensor> outs, Optional<TensorView> count, Array<Tensor> scratch, bool gelu, int64_t flags,
                    int64_t stream) {
  LayerProducts a = {};
  WeightMaps maps = {};
  const bool half = x.dtype().code != kDLBfloat;
  const auto of = [](const Tensor& t) { return t.data_ptr(); };
  for (size_t i = 0; i < kProducts; ++i) a.products[i].parts = 1;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor weight = weights[i];
    Product& p = a.products[i];
    p.bias = biases[i].has_value() ? of(biases[i].value()) : nullptr;
    p.outputs = static_cast<int32_t>(weight.shape()[0]);
    p.inputs = static_cast<int32_t>(weight.shape()[1]);
    p.part = static_cast<int32_t>(parts[i]);
    p.parts = (p.inputs + p.part - 1) / p.part;
    maps.of[i] = weight_map(of(weight), p, half);
  }
  // outs: attended, normed, hidden, next normed, [next product]; scratch: partials, normed, middle, state
  a.norms[0] = {residual.data_ptr(), of(norms[0]), of(outs[0]), of(outs[1]), static_cast<float>(first_epsilon)};
  a.norms[1] = {of(outs[0]), of(norms[1]), of(outs[2]), of(outs[3]), static_cast<float>(second_epsilon)};
  a.x = x.data_ptr();
  a.out = outs.size() > 4 ? of(outs[4]) : nullptr;
  a.count = count.has_value() ? static_cast<const int32_t*>(count.value().data_ptr()) : nullptr;
  a.partials = static_cast<Flagged*>(of(scratch[0]));
  a.normed = static_cast<Flagged*>(of(scratch[1]));
  a.middle = static_cast<Flagged*>(of(scratch[2]));
  a.state = static_cast<uint32_t*>(of(scratch[3]));
  a.capacity = static_cast<int32_t>(x.shape()[0]);
  a.gelu = gelu;
  const DeviceGuard guard(x.device().device_id);
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  if (half) return launch_type<__half>(a, maps, static_cast<int>(flags), on);
  launch_type<__nv_bfloat16>(a, maps, static_cast<int>(flags), on);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(layer_products, layer_products)

}  // namespace
}  // namespace specdec::cuda
