// part_chunks: a cluster a row.
#include <string>

#include "ops.h"
#include "row_launch.cuh"
#include "row_list.cuh"
#include "row_parts.cuh"
#include "specdec_ops/part_chunks.h"

namespace specdec::cuda {

// Outputs of a skipped row, by one block; or only its `first`, filled with one sort key.
__device__ __forceinline__ void fill_first(const PartChunksArgs& a, int64_t row, int64_t key) {
  if (a.first == nullptr) return;
  for (int64_t i = threadIdx.x; i < a.Listed; i += kRowThreads) a.first[row * a.Listed + i] = key;
}
__device__ __forceinline__ void fill_chunks(const PartChunksArgs& a, int64_t row) {
  for (int64_t c = threadIdx.x; c < a.Chunks; c += kRowThreads) {
    if (a.chunk_tops != nullptr) a.chunk_tops[row * a.Chunks + c] = -INFINITY;
    if (a.chunk_masses != nullptr) a.chunk_masses[row * a.Chunks + c] = 0;
  }
}

// This lane's chunk. Where the row is not aligned, a warp may have a stripe after the last.
template <class Part>
__device__ __forceinline__ void write_chunk(const PartChunksArgs& a, int64_t row, const Part& part,
                                            const ChunkSum& own) {
  const int warp = static_cast<int>(warp_id()), lane = static_cast<int>(lane_id());
  if (lane >= part.stripes(warp)) return;
  const int64_t c = part.chunk_id(warp, lane) / kChunkIds;
  if (c >= a.Chunks) return;
  if (a.chunk_tops != nullptr) a.chunk_tops[row * a.Chunks + c] = own.top;
  if (a.chunk_masses != nullptr) {
    a.chunk_masses[row * a.Chunks + c] = own.top == -INFINITY ? 0 : static_cast<int64_t>(own.mass);
  }
}

template <class L, bool kResident>
__global__ void __launch_bounds__(kRowThreads, kListBlocks)
    part_chunks_kernel(const __grid_constant__ PartChunksArgs a, const typename L::Bits* logits) {
  using Part = RowPart<L, kResident>;
  __shared__ RowShared s;
  wait_for_previous();
  const int64_t row = Cluster::index();
  const bool leads = Cluster::rank() == 0;
  if (a.position[row] < 0) {
    if (leads) {
      fill_first(a, row, kNowhere);
      fill_chunks(a, row);
    }
    return;
  }
  clear_shared(s);
  Cluster::arrive();
  Part part(logits + row * a.V, static_cast<int>(a.V));
  int32_t top;
  if (a.chunk_tops != nullptr || a.chunk_masses != nullptr) {
    ChunkSums<Part, Temperatures::kAll> sums{a.row_temperature == nullptr ? 1.0f : drawn_at(a.row_temperature[row])};
    top = load_tops<L>(part, s, sums);
    write_chunk(a, row, part, sums.own);
  } else {
    NoChunks no_chunks;
    top = load_tops<L>(part, s, no_chunks);
  }
  if (a.first == nullptr) return;
  if (top == kKeyNan) {
    if (leads) fill_first(a, row, sort_key(kKeyNan, a.first_token));
    return;
  }
  if (a.Listed == 1) {
    find_first(part, s, top);
    Cluster::sync();
    if (leads && threadIdx.x == 0) a.first[row] = sort_key(top, a.first_token + s.top.first_id);
    return;
  }
  list_row<L>(part, s, min64(a.Listed, a.V), [&](int64_t at, int n) {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= n) return;
    a.first[row * a.Listed + at + i] = sort_key(order_key(s.top.sorted_value[i]), a.first_token + s.top.sorted_id[i]);
  });
  if (!leads) return;
  for (int64_t i = a.V + threadIdx.x; i < a.Listed; i += kRowThreads) {
    a.first[row * a.Listed + i] = sort_key(-kKeyInf, a.first_token + i);
  }
}

void part_chunks(const PartChunksArgs& a, cudaStream_t stream) {
  if (a.R_cap == 0) return;
  const bool chunks = a.chunk_tops != nullptr || a.chunk_masses != nullptr;
  if (chunks && a.Chunks != chunk_count(a.V)) {
    throw std::invalid_argument("chunk_tops, chunk_masses: expected " + std::to_string(chunk_count(a.V)) +
                                " chunks of rows of " + std::to_string(a.V) + ", got " + std::to_string(a.Chunks) +
                                "; allocate one for every " + std::to_string(kChunkIds) + " columns begun");
  }
  launch_logit_rows("part_chunks", stream, a.R_cap, a, false, [](auto type, auto resident) {
    return part_chunks_kernel<decltype(type), decltype(resident)::value>;
  });
}
SPECDEC_OP(part_chunks, kLimits)

}  // namespace specdec::cuda
