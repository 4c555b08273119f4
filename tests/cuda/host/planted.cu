// Kernels with mistakes that the host's runtime must show, and their repaired twins.
//   planted NAME SEED: prints what the kernel computed; a refused launch's message goes to stderr, with status 1
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cfenv>
#include <cstdio>

#include "ptx.h"

namespace ptx = specdec::cuda::ptx;

namespace {

constexpr unsigned kThreads = 64;
unsigned result[8 * kThreads];

void sync_cluster() {
  ptx::arrive_cluster();
  ptx::wait_cluster();
}

// Each thread reads what its neighbour in the block wrote.
template <bool kGood>
__global__ void neighbour() {
  __shared__ unsigned cells[kThreads];
  cells[threadIdx.x] = threadIdx.x;
  if (kGood) __syncthreads();
  result[threadIdx.x] = cells[(threadIdx.x + 33) % kThreads];
}

// A cell is used again before all have read it.
template <bool kGood>
__global__ void used_again() {
  __shared__ unsigned cell;
  unsigned sum = 0;
  for (unsigned i = 0; i < 4; ++i) {
    if (threadIdx.x == i) cell = 10 + i;
    __syncthreads();
    sum = 31 * sum + cell;
    if (kGood) __syncthreads();
  }
  result[threadIdx.x] = sum;
}

template <bool kGood>
__global__ void unwritten() {
  __shared__ unsigned cells[2];
  if (threadIdx.x < (kGood ? 2 : 1)) cells[threadIdx.x] = 5;
  __syncthreads();
  result[threadIdx.x] = cells[1];
}

// The first lane goes another way than the rest of its warp.
template <bool kGood>
__global__ void parted() {
  unsigned votes = 0;
  if (kGood || threadIdx.x != 32) votes = __ballot_sync(~0u, 1);
  __syncthreads();
  result[threadIdx.x] = votes;
}

template <bool kGood>
__global__ void two_instructions() {
  const unsigned x = kGood || threadIdx.x % 2 == 0 ? __shfl_sync(~0u, threadIdx.x, 3) : __ballot_sync(~0u, 1);
  result[threadIdx.x] = x;
}

template <bool kGood>
__global__ void not_in_the_mask() {
  result[threadIdx.x] = kGood || threadIdx.x % 32 < 16 ? __ballot_sync(kGood ? ~0u : 0xFFFFu, 1) : 0;
  if (!kGood && threadIdx.x == 20) __syncwarp(0xFFFFu);
}

template <bool kGood>
__global__ void too_early() {
  __shared__ unsigned cell;
  if (kGood) sync_cluster();
  if (threadIdx.x == 0) *ptx::shared_of(&cell, (ptx::cluster_rank() + 1) % ptx::cluster_size()) = ptx::cluster_rank();
  sync_cluster();
  result[blockIdx.x * kThreads + threadIdx.x] = cell;
}

template <bool kGood>
__global__ void too_late() {
  __shared__ unsigned cell;
  if (threadIdx.x == 0) cell = 7 + ptx::cluster_rank();
  sync_cluster();
  result[blockIdx.x * kThreads + threadIdx.x] = *ptx::shared_of(&cell, ptx::cluster_size() - 1);
  if (kGood) sync_cluster();
}

template <bool kGood>
__global__ void beyond_the_end() {
  unsigned* const cells = ptx::dynamic_shared<unsigned>();
  const unsigned room = ptx::dynamic_shared_bytes() / sizeof(unsigned);
  cells[kGood ? threadIdx.x % room : room + threadIdx.x] = 1;
  result[threadIdx.x] = room;
}

// What the stand-ins for CUDA's functions give, against definitions: 1 in every thread that agrees.
__global__ void functions() {
  const unsigned lane = threadIdx.x % 32, x = lane * 2654435761u ^ 0x5A5Au;
  bool good = true;
  const auto of = [](unsigned i) { return i * 2654435761u ^ 0x5A5Au; };
  good &= __shfl_sync(~0u, x, 37) == of(5);
  good &= __shfl_sync(~0u, x, 5, 8) == of((lane & ~7u) + 5);
  good &= __shfl_xor_sync(~0u, x, 9) == of(lane ^ 9u);
  good &= __shfl_up_sync(~0u, x, 4) == of(lane < 4 ? lane : lane - 4);
  good &= __shfl_xor_sync(3u << (lane & ~1u), x, 1) == of(lane ^ 1u);
  good &= __ballot_sync(~0u, lane % 3 == 0) == 0x49249249u;
  good &= __any_sync(~0u, lane == 31) == 1 && __any_sync(~0u, 0) == 0;
  good &= __reduce_max_sync(~0u, -static_cast<int>(lane) - 3) == -3;
  good &= __syncthreads_or(threadIdx.x == 63) == 1 && __syncthreads_and(threadIdx.x != 63) == 0;
  good &= __fns(0xB4u, 0, 3) == 5 && __fns(0xB4u, 3, 1) == 4 && __fns(0xB4u, 0, 5) == ~0u;
  good &= __ffs(0) == 0 && __ffs(8) == 4 && __clz(1) == 31 && __clz(0) == 32 && __clzll(1) == 63 && __popc(0xF0F) == 8;
  good &= __umul64hi(~0ull, ~0ull) == ~0ull - 1;
  good &= ptx::max_or_nan(-0.0f, 0.0f) == 0 && !std::signbit(ptx::max_or_nan(-0.0f, 0.0f)) &&
          std::isnan(ptx::max_or_nan(1, NAN));
  const auto half = [](unsigned short bits) { return __half2float(__ushort_as_half(bits)); };
  good &= half(0x3C00) == 1 && half(0xC100) == -2.5f && half(0x7BFF) == 65504 && half(0x0001) == 0x1p-24f;
  good &= half(0x83FF) == -1023 * 0x1p-24f && half(0x8000) == 0 && std::signbit(half(0x8000));
  good &= half(0xFC00) == -INFINITY && std::isnan(half(0x7E01));
  __shared__ unsigned sum, most, least, bits;
  if (threadIdx.x == 0) sum = most = bits = 0, least = 99;
  __syncthreads();
  atomicAdd(&sum, threadIdx.x);
  atomicMax(&most, threadIdx.x);
  atomicMin(&least, threadIdx.x);
  atomicOr(&bits, 1u << lane);
  __syncthreads();
  good &= sum == 63 * 32 && most == 63 && least == 0 && bits == ~0u;
  result[threadIdx.x] = good;
}

// Sums towards zero, against the processor's own rounding.
bool rounds_towards_zero() {
  uint32_t state = 1;
  const auto next = [&] { return state = state * 1664525u + 1013904223u; };
  for (int i = 0; i < 1'000'000; ++i) {
    const float a = __uint_as_float((next() & 0x807FFFFFu) | (100 + next() % 40) << 23);
    const float b = __uint_as_float((next() & 0x807FFFFFu) | (100 + next() % 40) << 23);
    std::fesetround(FE_TOWARDZERO);
    volatile float left = a, right = b, sum = left + right;
    std::fesetround(FE_TONEAREST);
    if (__float_as_uint(__fadd_rz(a, b)) != __float_as_uint(sum)) return false;
  }
  return true;
}

struct Planted {
  const char* name;
  void (*kernel)();
  unsigned blocks;  // all of one cluster
};

#define SPECDEC_TWINS(name, blocks) \
  {#name "_bad", name<false>, blocks}, { #name "_good", name<true>, blocks }
const Planted kPlanted[] = {
    SPECDEC_TWINS(neighbour, 1), SPECDEC_TWINS(used_again, 1),       SPECDEC_TWINS(unwritten, 1),
    SPECDEC_TWINS(parted, 1),    SPECDEC_TWINS(two_instructions, 1), SPECDEC_TWINS(not_in_the_mask, 1),
    SPECDEC_TWINS(too_early, 4), SPECDEC_TWINS(too_late, 4),         SPECDEC_TWINS(beyond_the_end, 1),
    {"functions", functions, 1},
};

}  // namespace

int main(int, char** argv) {
  if (argv[1] == std::string("rounding")) return rounds_towards_zero() ? 0 : 1;
  simt::set_seed(std::strtoull(argv[2], nullptr, 10));
  for (const Planted& planted : kPlanted) {
    if (argv[1] != std::string(planted.name)) continue;
    try {
      simt::run({planted.blocks, kThreads, 64, planted.blocks}, planted.kernel);
    } catch (const std::runtime_error& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
    for (unsigned i = 0; i < planted.blocks * kThreads; ++i) std::printf("%u ", result[i]);
    return 0;
  }
  return 2;
}
