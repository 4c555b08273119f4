// A guess, in floats, of the threshold of a softmax row from its chunks' sums and, if many elements are possible, a
// sample. It only affects time, never the kept elements.
#pragma once

#include "row_masses.cuh"

namespace specdec::cuda {

constexpr float kMinT = -42.0f;  // below it masses are 0

__device__ __forceinline__ float step_exponent(int step) {
  return kMinT / static_cast<float>(kSteps) * static_cast<float>(step + 1);
}

// A chunk's contribution above an exponent t, if its maximum is. Lower bound on the count: 1; upper bound: 1 + (share -
// max) / 2^t. Lower bound on the mass: share - kChunkIds * 2^t.
__device__ __forceinline__ Bounds chunk_bounds(Goal goal, const ChunkShare& chunk, float exponent) {
  const bool reaches = chunk.exponent >= exponent;
  const float largest = exp2f(chunk.exponent), others = fmaxf(chunk.share - largest, 0.0f) * exp2f(-exponent);
  const float count = reaches ? fminf(1.0f + others, static_cast<float>(kChunkIds)) : 0.0f;
  if (goal == Goal::kCount) return {reaches ? 1.0f : 0.0f, count, count};
  const float rest = chunk.share - static_cast<float>(kChunkIds) * exp2f(exponent);
  return {fmaxf(reaches ? largest : 0.0f, rest), reaches ? chunk.share : 0.0f, count};
}

// A goal in the units of Bounds.
__device__ __forceinline__ float in_floats(Goal goal, uint64_t need) {
  return static_cast<float>(need) * (goal == Goal::kCount ? 1.0f : 0x1p-40f);
}

// Stores the bracket that must hold the threshold in s.guess.bracket, and returns its largest number of elements.
template <class Part>
__device__ __forceinline__ float bound_threshold(const Part& part, RowShared& s, Goal goal) {
  const int tid = static_cast<int>(threadIdx.x), step = tid % kSteps, slice = tid / kSteps;
  {
    const float exponent = step_exponent(step);
    Bounds sum = {0.0f, 0.0f, 0.0f};
    for (int g = slice; g < part.stripes(); g += kSlices) sum.add(chunk_bounds(goal, s.stripes.share[g], exponent));
    s.scratch.bounds.of_slice[slice][step] = sum;
  }
  __syncthreads();
  if (tid < kSteps) {
    Bounds sum = s.scratch.bounds.of_slice[0][tid];
    for (int i = 1; i < kSlices; ++i) sum.add(s.scratch.bounds.of_slice[i][tid]);
    for (int r = 0; r < Cluster::size(); ++r) Cluster::of(&s, r)->scratch.bounds.of_block[Cluster::rank()][tid] = sum;
  }
  Cluster::sync();
  if (warp_id() == 0) {
    // Sums of up to 257 floats, and shares that were rounded down: all are off by less than this.
    constexpr float kRounding = 0x1p-12f;
    const float need = in_floats(goal, s.guess.need);
    int low = kSteps - 1, high = -1;  // the first step with enough, the last with too little
    float counts[kSteps / 32];
#pragma unroll
    for (int part_of = kSteps / 32 - 1; part_of >= 0; --part_of) {
      Bounds sum = {0.0f, 0.0f, 0.0f};
      for (int r = 0; r < Cluster::size(); ++r) sum.add(s.scratch.bounds.of_block[r][part_of * 32 + lane_id()]);
      const uint32_t enough = __ballot_sync(kAllLanes, sum.least >= need * (1.0f + kRounding));
      const uint32_t few = __ballot_sync(kAllLanes, sum.most < need * (1.0f - kRounding));
      if (enough != 0) low = part_of * 32 + __ffs(static_cast<int>(enough)) - 1;
      if (few != 0 && high < 0) high = part_of * 32 + 31 - __clz(static_cast<int>(few));
      counts[part_of] = sum.count;
    }
    float count = 0.0f;
#pragma unroll
    for (int part_of = 0; part_of < kSteps / 32; ++part_of) {
      const float there = __shfl_sync(kAllLanes, counts[part_of], low % 32);
      if (part_of == low / 32) count = there;
    }
    if (lane_id() == 0) {
      high = min(high, low - 1);
      s.guess.bracket = {high < 0 ? 0.0f : step_exponent(high), step_exponent(low)};
      s.guess.most = count;
    }
  }
  __syncthreads();
  return s.guess.most;
}

// A sample: one vector in n, 512 bytes of every stripe. n times the weight that it has below an exponent estimates the
// row's; the variance is n (n - 1) times the sum of the squares. Weights below a threshold are small, and those above
// need no estimate, since the row's total is known. For counts the upper tail is exact; with a fraction p above, the
// variance shrinks by p.

__device__ __forceinline__ float weight_at(Goal goal, float t) { return goal == Goal::kCount ? 1.0f : exp2f(t); }

constexpr float kCellCount = kSampleCells;

// Counts the sampled elements of each cell of the bracket `in`, and publishes what weighs less than all of it.
template <class Part>
__device__ __forceinline__ void take_sample(const Part& part, RowShared& s, Goal goal, Bracket in, float width,
                                            int warp) {
  constexpr int kEvery = Part::kRounds, kAhead = 16 / Part::kLength;
  const int tid = static_cast<int>(threadIdx.x);
  const float row_max = s.softmax.row_max, to_t = s.softmax.inv_temperature * kLog2E;
  s.scratch.sample.count[tid] = 0;
  if (tid < 3) s.scratch.sample.first[tid] = kSampleCells - 1;
  __syncthreads();

  Tail below = {0.0f, 0.0f};
  const int stripes = part.stripes(warp), end = part.end(warp);
#pragma unroll 1
  for (int at = 0; at < stripes; at += kAhead) {
    // Other vectors in each stripe, for no pattern of ids to escape.
    const auto vector = [&](int k) {
      const int stripe = min(at + k, stripes - 1);
      return part.begin(warp, stripe) + (stripe + warp) % kEvery * 32 + static_cast<int>(lane_id());
    };
    const VectorBatch<Part, kAhead> batch([&](int k) { return part[min(vector(k), end - 1)]; });
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at + k >= stripes || vector(k) >= end) continue;
#pragma unroll
      for (float x : batch.of[k].x) {
        const float t = (x - row_max) * to_t, cell = (t - in.low) * (kCellCount / width);
        if (t < in.low) {
          below.add(weight_at(goal, t));
        } else {  // what is above the bracket comes last, where its weight does not matter
          atomicAdd(&s.scratch.sample.count[static_cast<int>(fminf(cell, kCellCount - 1.0f))], 1u);
        }
      }
    }
  }
  publish(s.guess.below, Tail{warp_sum(below.weight), warp_sum(below.squares)});
  Cluster::sync();
}

// Of a thread's own cell: its sampled elements, what one of them weighs, and the sums up to it from the lowest.
struct SampledCell {
  uint32_t count;
  float weight;
  Tail upto;
};

__device__ __forceinline__ SampledCell sum_sample(RowShared& s, Goal goal, Bracket in, float width, int warp) {
  const int tid = static_cast<int>(threadIdx.x);
  uint32_t count = 0;
  for (int r = 0; r < Cluster::size(); ++r) count += Cluster::of(&s, r)->scratch.sample.count[tid];
  const float weight = weight_at(goal, in.low + (static_cast<float>(tid) + 0.5f) * (width / kCellCount));
  const Tail cell = {static_cast<float>(count) * weight, static_cast<float>(count) * weight * weight};
  const Tail in_warp = {warp_inclusive(cell.weight), warp_inclusive(cell.squares)};
  if (lane_id() == 31) s.scratch.sample.scan[warp] = in_warp;
  Tail upto = {0.0f, 0.0f};
  for (int i = static_cast<int>(lane_id()); i < Cluster::size() * kRowWarps; i += 32) {
    upto.weight += s.guess.below[i].weight;
    upto.squares += s.guess.below[i].squares;
  }
  upto = {warp_sum(upto.weight) + in_warp.weight, warp_sum(upto.squares) + in_warp.squares};
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    upto.weight += s.scratch.sample.scan[w].weight;
    upto.squares += s.scratch.sample.scan[w].squares;
  }
  return {count, weight, upto};
}

struct CellRange {
  int low, high;
};

// The cells in which the goal is reached: this many deviations around the estimate, plus the weight of elements that a
// sample of one in `every` may have missed (k n elements with probability exp(-k)), and one cell more, since elements
// count as their cell's middle. All blocks get the same result.
template <int kEvery>
__device__ __forceinline__ CellRange bracket_sample(RowShared& s, Goal goal, const SampledCell& own) {
  // A wrong guess for one row delays all rows; some in a million are wrong.
  constexpr float kDeviations = 4.5f, kMissed = 12.0f, kFactor = kEvery;
  const int tid = static_cast<int>(threadIdx.x);
  const float estimate = kFactor * own.upto.weight;
  // The first cell up to which there is so much, or the last.
  const auto find = [&](int which, float wanted) {
    if (estimate >= wanted) atomicMin(&s.scratch.sample.first[which], tid);
  };
  if (tid == kSampleCells - 1)
    s.scratch.sample.all = goal == Goal::kCount ? estimate : in_floats(goal, s.guess.row_total);
  __syncthreads();
  const float all = s.scratch.sample.all, target = all - in_floats(goal, s.guess.need);
  find(0, target);
  __syncthreads();
  if (tid == s.scratch.sample.first[0]) {
    const float above = goal == Goal::kCount ? fmaxf(all - estimate, 0.0f) / all : 1.0f;
    s.scratch.sample.margin =
        kDeviations * sqrtf(kFactor * (kFactor - 1.0f) * own.upto.squares * above) + kFactor * kMissed * own.weight;
  }
  __syncthreads();
  const float margin = s.scratch.sample.margin;
  find(1, target - margin);
  find(2, target + margin);
  __syncthreads();
  return {max(s.scratch.sample.first[1] - 1, 0), min(s.scratch.sample.first[2] + 1, kSampleCells - 1)};
}

// Narrows s.guess.bracket by a sample, and returns about how many elements are left in it.
template <class Part>
__device__ __forceinline__ float sample_threshold(const Part& part, RowShared& s, Goal goal) {
  constexpr int kEvery = Part::kRounds;
  const int tid = static_cast<int>(threadIdx.x), warp = static_cast<int>(warp_id());
  const Bracket in = s.guess.bracket;
  const float width = in.high - in.low;
  take_sample(part, s, goal, in, width, warp);
  const SampledCell own = sum_sample(s, goal, in, width, warp);
  const CellRange found = bracket_sample<kEvery>(s, goal, own);
  if (tid == 0) {
    s.guess.bracket.low = in.low + static_cast<float>(found.low) * (width / kCellCount);
    if (found.high < kSampleCells - 1)
      s.guess.bracket.high = in.low + static_cast<float>(found.high + 1) * (width / kCellCount);
  }
  uint64_t inside;
  block_warps_below(warp_sum(uint64_t{tid >= found.low && tid <= found.high ? own.count : 0u}), s.warp_part, &inside);
  return static_cast<float>(kEvery) * static_cast<float>(inside);
}

// From the chunks' sums of a row whose 1/temperature is above 0 and finite to s.guess.bracket.
template <class Part>
__device__ __forceinline__ void guess_threshold(const Part& part, RowShared& s, Goal goal) {
  constexpr float kEach = 4.0f;  // of a list, for a thread: more take longer than a sample
  if (bound_threshold(part, s, goal) <= kEach * static_cast<float>(kRowThreads * Cluster::size())) return;
  // In a flat row all are in few cells of the first sample.
  const float room = static_cast<float>(part.list_room() / 2 * Cluster::size());  // blocks differ
  if (sample_threshold(part, s, goal) <= room) return;
  Cluster::sync();  // all have read the sample
  sample_threshold(part, s, goal);
}

}  // namespace specdec::cuda
