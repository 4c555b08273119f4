// A guess, in floats, of the threshold of a softmax row from its chunks' sums and, if many elements are possible, a
// sample. It only affects time, never the kept elements.
#pragma once

#include "row_masses.cuh"

namespace specdec::cuda {

constexpr float kMinT = -42.0f;  // below it masses are 0
constexpr int kAllSampled = 1;  // stripes of a warp, at most, where a sample is all elements

__device__ __forceinline__ float step_exponent(int step) {
  return kMinT / static_cast<float>(kSteps) * static_cast<float>(step + 1);
}

// A chunk's contribution above an exponent t, if its maximum is. Lower bound on the count: 1; upper bound: 1 + (share -
// max) / 2^t. Lower bound on the mass: share - kChunkIds * 2^t.
__device__ __forceinline__ Bounds chunk_bounds(Goal goal, const ChunkShare& chunk, float exponent) {
  const bool reaches = chunk.exponent >= exponent;
  const float largest = chunk.largest, others = fmaxf(chunk.share - largest, 0.0f) * exp2f(-exponent);
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
#pragma unroll 2
    for (int c = slice; c < part.row_stripes(); c += kSlices) sum.add(chunk_bounds(goal, s.chunks.share[c], exponent));
    s.scratch.bounds[slice][step] = sum;
  }
  __syncthreads();
  if (warp_id() == 0) {
    // Sums of up to 257 floats, and shares that were rounded down: all are off by less than this.
    constexpr float kRounding = 0x1p-12f;
    const float need = in_floats(goal, s.guess.need);
    int low = kSteps - 1, high = -1;  // the first step with enough, the last with too little
    float counts[kSteps / 32];
#pragma unroll
    for (int part_of = kSteps / 32 - 1; part_of >= 0; --part_of) {
      Bounds sum = {0.0f, 0.0f, 0.0f};
#pragma unroll
      for (const auto& of_slice : s.scratch.bounds) sum.add(of_slice[part_of * 32 + lane_id()]);
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

// A sample: one vector in n, 512 bytes of every stripe, or all of them if a warp has few stripes. The row's weight
// below an exponent is estimated as n times the sample's; the variance is n (n - 1) times the sum of the squares.
// Weights below a threshold are small, and those above need no estimate, since the row's total is known. For counts the
// upper tail is exact; with a fraction p above, the variance shrinks by p.

__device__ __forceinline__ float weight_at(Goal goal, float t) { return goal == Goal::kCount ? 1.0f : exp2f(t); }

constexpr float kCellCount = kSampleCells;
// An element counts as this many, times its weight over that of its cell's middle.
constexpr float kSampleUnits = 1024.0f;

// Every how many vectors are sampled.
template <class Part>
__device__ __forceinline__ int sampled_every(const Part& part) {
  return Part::kHeld && part.stripes_each() <= kAllSampled ? 1 : Part::kRounds;
}

// Counts the sampled elements of each cell of the bracket `in`, and publishes what weighs less than all of it.
template <class Part>
__device__ __forceinline__ void take_sample(const Part& part, RowShared& s, Goal goal, Bracket in, float width,
                                            int every, int warp) {
  constexpr int kAhead = 16 / Part::kLength;
  const int tid = static_cast<int>(threadIdx.x);
  const float row_max = s.softmax.row_max, to_t = s.softmax.inv_temperature * kLog2E;
  const float to_cell = kCellCount / width;
  // Of a cell, the logarithm of its last weight to its first; weights are linear in it, nearly.
  const float slope = goal == Goal::kCount ? 0.0f : kSampleUnits * 0.69314718f / to_cell;
  s.scratch.sample.count[tid] = 0;
  __syncthreads();

  Tail below = {0.0f, 0.0f};
  const int begin = part.begin(warp), end = part.end(warp);
  const int rounds = every == 1 ? part.stripes(warp) * Part::kRounds : part.stripes(warp);
#pragma unroll 1
  for (int at = 0; at < rounds; at += kAhead) {
    // Other vectors in each stripe, for no pattern of ids to escape.
    const auto vector = [&](int k) {
      const int round = every == 1 ? at + k : (at + k) * Part::kRounds + (at + k + warp) % Part::kRounds;
      return begin + round * 32 + static_cast<int>(lane_id());
    };
    const VectorBatch<Part, kAhead> batch([&](int k) { return part[min(vector(k), end - 1)]; });
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at + k >= rounds || vector(k) >= end) continue;
#pragma unroll
      for (float x : batch.of[k].x) {
        const float t = (x - row_max) * to_t, cell = fminf((t - in.low) * to_cell, kCellCount - 0.5f);
        if (t < in.low) {
          below.add(weight_at(goal, t));
        } else {  // what is above the bracket comes last, where its weight does not matter
          const float first = truncf(cell);
          atomicAdd(&s.scratch.sample.count[static_cast<int>(first)],
                    static_cast<uint32_t>(kSampleUnits + 0.5f + (cell - first - 0.5f) * slope));
        }
      }
    }
  }
  publish(s.guess.below, Tail{warp_sum(below.weight), warp_sum(below.squares)});
  Cluster::sync();
}

// Of a thread's own cell: its sampled elements, what one of them weighs, and the sums up to it from the lowest.
struct SampledCell {
  float count, weight;
  Tail upto;
};

__device__ __forceinline__ SampledCell sum_sample(RowShared& s, Goal goal, Bracket in, float width, int warp) {
  const int tid = static_cast<int>(threadIdx.x), lane = static_cast<int>(lane_id());
  uint32_t units = 0;
#pragma unroll
  for (int r = 0; r < kMaxCluster; ++r)
    units += r < Cluster::size() ? Cluster::of(&s, r)->scratch.sample.count[tid] : 0;
  const float count = static_cast<float>(units) / kSampleUnits;
  const float weight = weight_at(goal, in.low + (static_cast<float>(tid) + 0.5f) * (width / kCellCount));
  const Tail cell = {count * weight, count * weight * weight};
  const Tail in_warp = {warp_inclusive(cell.weight), warp_inclusive(cell.squares)};
  if (lane == 31) s.scratch.sample.scan[warp] = in_warp;
  __syncthreads();
  Tail before = {0.0f, 0.0f};
  if (lane < warp) before = s.scratch.sample.scan[lane];
  for (int i = lane; i < Cluster::size() * kRowWarps; i += 32) {
    before.weight += s.guess.below[i].weight;
    before.squares += s.guess.below[i].squares;
  }
  return {count, weight, {warp_sum(before.weight) + in_warp.weight, warp_sum(before.squares) + in_warp.squares}};
}

struct CellRange {
  int low, high;
};

// The cells in which the goal is reached: this many deviations around the estimate, plus the weight of elements that a
// sample of one in `every` may have missed, plus the error of rounding. The sample misses k n elements with probability
// exp(-k). All blocks get the same result.
__device__ __forceinline__ CellRange bracket_sample(RowShared& s, Goal goal, int every, const SampledCell& own) {
  // A wrong guess for one row delays all rows; some in a million are wrong.
  constexpr float kDeviations = 4.5f, kMissed = 12.0f, kOfAll = 0x1p-18f, kOfCell = 0x1p-5f;
  const int tid = static_cast<int>(threadIdx.x);
  const float factor = static_cast<float>(every), estimate = factor * own.upto.weight;
  // The first cell up to which there is so much, or the last. All threads, with a barrier in it.
  const auto find = [&](float wanted) { return min(__syncthreads_count(estimate < wanted), kSampleCells - 1); };
  if (goal == Goal::kCount && tid == kSampleCells - 1) s.scratch.sample.all = estimate;
  if (goal == Goal::kCount) __syncthreads();
  const float all = goal == Goal::kCount ? s.scratch.sample.all : in_floats(goal, s.guess.row_total);
  const float target = all - in_floats(goal, s.guess.need);
  if (tid == find(target)) {
    const float above = goal == Goal::kCount ? fmaxf(all - estimate, 0.0f) / all : 1.0f;
    const float missed = every == 1 ? 0.0f : factor * kMissed * own.weight;
    s.scratch.sample.margin = kDeviations * sqrtf(factor * (factor - 1.0f) * own.upto.squares * above) + missed +
                              kOfAll * all + kOfCell * factor * own.count * own.weight;
  }
  __syncthreads();
  const float margin = s.scratch.sample.margin;
  const int low = find(target - margin);
  return {low, find(target + margin)};
}

// Narrows s.guess.bracket by a sample, for all threads after a barrier. Returns whether about `room` elements at most
// are left in it.
template <class Part>
__device__ __forceinline__ bool sample_threshold(const Part& part, RowShared& s, Goal goal, float room) {
  constexpr float kEdge = 0x1p-6f;  // of a cell: elements there may have been counted beyond it
  const int tid = static_cast<int>(threadIdx.x), warp = static_cast<int>(warp_id());
  const int every = sampled_every(part);
  const Bracket in = s.guess.bracket;
  const float width = in.high - in.low;
  take_sample(part, s, goal, in, width, every, warp);
  const SampledCell own = sum_sample(s, goal, in, width, warp);
  const CellRange found = bracket_sample(s, goal, every, own);
  if (tid == 0) {
    const auto exponent = [&](float cell) { return in.low + cell * (width / kCellCount); };
    if (found.low > 0) s.guess.bracket.low = exponent(static_cast<float>(found.low) - kEdge);
    if (found.high < kSampleCells - 1) s.guess.bracket.high = exponent(static_cast<float>(found.high + 1) + kEdge);
  }
  if (static_cast<float>(part.size()) <= room) return true;
  float inside;
  block_warps_below(warp_sum(tid >= found.low && tid <= found.high ? own.count : 0.0f), s.warp_sum, &inside);
  return static_cast<float>(every) * inside <= room;
}

// Where a warp has one stripe: counts all elements of the row in cells of exponents, and narrows s.guess.bracket to the
// cells in which the goal is reached, for all threads after a barrier. What is below a mass's threshold weighs little,
// so it is estimated.
template <class Part>
__device__ __forceinline__ void count_threshold(const Part& part, RowShared& s, Goal goal) {
  constexpr int kLast = kCountCells - 1, kEach = 4;
  constexpr float kBelow = 6.0f;  // exponents below the lowest possible threshold: there all elements weigh little
  constexpr float kDeviations = 4.5f, kOfAll = 0x1p-18f, kEdge = 0x1p-6f;  // as above
  const int tid = static_cast<int>(threadIdx.x), lane = static_cast<int>(lane_id()), warp = static_cast<int>(warp_id());
  Bracket in = s.guess.bracket;
  const bool by_mass = goal == Goal::kMass;
  const float all = by_mass ? in_floats(goal, s.guess.row_total) : static_cast<float>(part.size());
  // With every element at `low`, those below it would weigh too little to reach the goal.
  const float rest = fmaxf(all * (1.0f - 0x1p-20f) - in_floats(goal, s.guess.need), 0.0f);
  if (by_mass) in.low = fmaxf(log2f(rest / static_cast<float>(part.size())) - kBelow, kMinT);
  in.high = fmaxf(in.high, in.low + 1.0f);
  const float width = (in.high - in.low) / static_cast<float>(kLast);
  const float base = rintf(in.low / width);  // of cell 0: cell i is around the exponent (base + i) * width
  {
    // A float of 2^23 and more has its integer in its lowest bits.
    constexpr float kInteger = 0x1p23f;
    const float row_max = s.softmax.row_max, to_cell = s.softmax.inv_temperature * kLog2E / width;
    uint32_t* cells = reinterpret_cast<uint32_t*>(part.cells());
#pragma unroll 2
    for (int v = tid; v < part.vectors(); v += kRowThreads) {
      const auto elements = part[v];
#pragma unroll
      for (float x : elements.x) {
        const float cell = fma_rn(x - row_max, to_cell, kInteger - base);
        const float held = fminf(fmaxf(cell, kInteger), kInteger + static_cast<float>(kLast));
        atomicAdd(&cells[__float_as_uint(held) - __float_as_uint(kInteger)], 1u);
      }
    }
  }
  Cluster::sync();
  uint4 counts = {0, 0, 0, 0};
#pragma unroll
  for (int r = 0; r < kMaxCluster; ++r) {
    if (r >= Cluster::size()) continue;
    const uint4 other = Cluster::of(part.cells(), r)[tid];
    counts = {counts.x + other.x, counts.y + other.y, counts.z + other.z, counts.w + other.w};
  }
  const uint32_t count[kEach] = {counts.x, counts.y, counts.z, counts.w};
  float upto[kEach];
  Tail sum = {0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const float exponent = (base + static_cast<float>(tid * kEach + j)) * width;
    const float mass = static_cast<float>(count[j]) * weight_at(goal, exponent);
    sum.weight += mass;
    // Weights in a cell differ; in the lowest one no weight is known.
    const float unsure = !by_mass ? 0.0f : tid + j == 0 ? mass : mass * (0.2f * kDeviations) * width;
    sum.squares += unsure * unsure;
    upto[j] = sum.weight;
  }
  const Tail in_warp = {warp_inclusive(sum.weight), warp_inclusive(sum.squares)};
  if (lane == 31) s.scratch.sample.scan[warp] = in_warp;
  __syncthreads();
  const Tail other = lane < kRowWarps ? s.scratch.sample.scan[lane] : Tail{0.0f, 0.0f};
  const float before = warp_sum(lane < warp ? other.weight : 0.0f) + in_warp.weight - sum.weight;
  const float margin = sqrtf(warp_sum(lane < warp ? other.squares : 0.0f) + in_warp.squares) + kOfAll * all;
  const float target = (by_mass ? all : warp_sum(other.weight)) - in_floats(goal, s.guess.need);
  // The cell up to which there is `wanted`, in one thread; else -1.
  const auto find = [&](float wanted) {
    const int at = min(__syncthreads_count(before + upto[kEach - 1] < wanted), kRowThreads - 1);
    int cell = tid * kEach;
#pragma unroll
    for (int j = 0; j < kEach - 1; ++j) cell += before + upto[j] < wanted ? 1 : 0;
    return tid == at ? cell : -1;
  };
  const int low = find(target - margin), high = find(target + margin);
  const auto exponent = [&](float cell) { return (base + cell) * width; };
  if (low >= 0) s.guess.bracket.low = low > 0 ? exponent(static_cast<float>(low) - 0.5f - kEdge) : in.low;
  if (high >= 0) s.guess.bracket.high = high < kLast ? exponent(static_cast<float>(high) + 0.5f + kEdge) : in.high;
}

// From the chunks' sums of a row whose 1/temperature is above 0 and finite to s.guess.bracket.
template <class Part>
__device__ __forceinline__ void guess_threshold(const Part& part, RowShared& s, Goal goal) {
  constexpr float kEach = 4.0f;  // of a list, for a thread: more take longer than a sample
  if (bound_threshold(part, s, goal) <= kEach * static_cast<float>(kRowThreads * Cluster::size())) return;
  if constexpr (Part::kOneEach) return count_threshold(part, s, goal);
  // In a flat row all are in few cells of the first sample.
  const float room = static_cast<float>(part.list_room() / 2 * Cluster::size());  // blocks differ
  if (sample_threshold(part, s, goal, room)) return;
  Cluster::sync();  // all have read the sample
  sample_threshold(part, s, goal, room);
}

}  // namespace specdec::cuda
