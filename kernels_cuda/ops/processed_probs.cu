// processed_probs: a cluster per row; each lane writes the probabilities of its logits.
#include "ops.h"
#include "row_filter.cuh"
#include "row_launch.cuh"
#include "specdec_ops/processed_probs.h"

namespace specdec::cuda {

// Writes the probabilities of a vector of the row.
template <class Part>
__device__ __forceinline__ void write_vector(const Part& part, float* out, int v, const float (&p)[Part::kLength]) {
  const int id = part.id(v);
  if (part.whole(v) && reinterpret_cast<uintptr_t>(out + id) % 16 == 0) {
#pragma unroll
    for (int j = 0; j < Part::kLength; j += 4) {
      __stcs(reinterpret_cast<float4*>(out + id + j), make_float4(p[j], p[j + 1], p[j + 2], p[j + 3]));
    }
  } else {
#pragma unroll
    for (int j = 0; j < Part::kLength; ++j) {
      if (part.has(id + j)) out[id + j] = p[j];
    }
  }
}

// The kept masses over s.drawn.total. Stripes without any are not read again.
template <class Part>
__device__ __forceinline__ void write_kept(const Part& part, RowShared& s, float* out, const KeptMasses& kept) {
  const MassRatio ratio(s.drawn.total);
  const float least = u64_to_f32(kept.least);  // exactly: a threshold of 2^40 has 24 bits
  with_masses(kept.softmax, [&](auto masses) {
    const VectorMasses vectors(kept, masses);
    const uint32_t wanted = vectors.stripes(part, s);
    const int warp = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id());
#pragma unroll 1
    for (int at = 0; at < part.stripes(warp); ++at) {
      if ((wanted >> at & 1) != 0) continue;
      const float none[Part::kLength] = {};
      for (int v = part.begin(warp, at) + lane; v < part.end(warp, at); v += 32) write_vector(part, out, v, none);
    }
    part.sweep(wanted, [&](int v, const auto& elements, bool real) {
      if (!real) return;
      float p[Part::kLength] = {};
      if (vectors.any(elements)) {
#pragma unroll
        for (int j = 0; j < Part::kLength; ++j) {
          const float x = elements.x[j];
          const float mass = masses.whole(vectors.keeps(x, part.id(v) + j) ? x : -INFINITY);
          p[j] = ratio.of(mass >= least ? mass : 0.0f);
        }
      }
      write_vector(part, out, v, p);
    });
  });
}

// All 0 but for one id, which gets 1; -1: none. Needs no loaded part.
__device__ __forceinline__ void write_one(float* out, int64_t size, int64_t one) {
  const int64_t threads = int64_t{Cluster::size()} * kRowThreads;
  for (int64_t i = int64_t{Cluster::rank()} * kRowThreads + threadIdx.x; i < size; i += threads) {
    out[i] = i == one ? 1.0f : 0.0f;
  }
}

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, 2)
    processed_probs_kernel(const __grid_constant__ ProcessedProbsArgs a, const typename L::Bits* logits) {
  __shared__ RowShared s;
  wait_for_previous();
  const auto out = [&] { return a.probs + Cluster::index() * a.V; };
  if (a.position[Cluster::index()] < 0) {
    write_one(out(), a.V, -1);
    return;
  }
  clear_shared(s);
  Cluster::arrive();
  const SamplingParams params = read_params(a, Cluster::index(), s);
  RowPart<L, kResident> part(logits + Cluster::index() * a.V, static_cast<int>(a.V));
  RowFound found = filtered_row<L>(part, s, load_row<L>(part, s, params, false));
  // In shared memory: registers are what the pass over the row needs most.
  const auto keep_total = [&](uint64_t total) {
    if (threadIdx.x == 0) s.drawn.total = total;
  };
  switch (found.kind) {
    case RowKind::kUndefined: return write_one(out(), a.V, -1);
    case RowKind::kGreedy: {
      const int first = Cluster::of(&s, 0)->top.first_id;
      Cluster::sync();  // the leader stays until all have read
      return write_one(out(), a.V, first);
    }
    case RowKind::kSorted:
      Cluster::sync();
      found.threshold = Cluster::of(&s, 0)->search.threshold;
      keep_total(Cluster::of(&s, 0)->drawn.total);
      Cluster::sync();  // the leader stays until all have read
      break;
    case RowKind::kChunks: keep_total(row_shares(part, s, s.softmax).total); break;
    case RowKind::kKept: keep_total(gather(s.published[kKeptMass]).total);
  }
  __syncthreads();
  write_kept(part, s, out(), kept_by(s, found.threshold));
}

void processed_probs(const ProcessedProbsArgs& a, cudaStream_t stream) {
  launch_logit_rows("processed_probs", stream, a.R_cap, a, false, [](auto type, auto resident) {
    return processed_probs_kernel<decltype(type), decltype(resident)::value>;
  });
}
SPECDEC_OP(processed_probs, kLimits)

}  // namespace specdec::cuda
