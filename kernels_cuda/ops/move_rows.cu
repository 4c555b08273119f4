// adjust_batch, recover_batch and gather_next_token: a block moves a part of one wide row, or several narrow rows.
//
// In batches of prepare_inputs, consecutive rows in slot order stay in place: loads start under that assumption while
// the block checks it. Otherwise (another token order, overlapping offsets or gaps) the block sums the slots' positions
// and searches the source of each row.
#include <stdexcept>
#include <string>
#include <type_traits>

#include "launch.cuh"
#include "ops.h"
#include "slot_scan.cuh"
#include "specdec_ops/adjust_batch.h"
#include "specdec_ops/gather_next_token.h"
#include "specdec_ops/recover_batch.h"

namespace specdec::cuda {

constexpr unsigned kMoveThreads = 256;
constexpr unsigned kMoveUnits = 4;  // of a thread, loaded at once
constexpr unsigned kMoveChunk = kMoveThreads * kMoveUnits;
constexpr unsigned kMoveWideRows = 4;  // of a block at once, at most
constexpr int64_t kMoveBlocks = 4;  // of a multiprocessor, where each moves several rows

// An op's arguments, and what the kernels ask of its token order.
template <typename Args>
struct MoveArgs : Args {
  explicit MoveArgs(const Args& a) : Args(a), prefill_first(a.token_order == TokenOrder::kPrefillFirst) {}

  bool prefill_first;
};

// The slots' rows in slot order and their places in the device's.
struct SlotRows {
  const int32_t *cu_seqlens_q, *seq_lens_this_time, *seq_lens_encoder;
  int64_t slots, capacity;
  bool prefill_first;

  template <typename Args>
  __device__ __forceinline__ explicit SlotRows(const Args& a)
      : cu_seqlens_q(a.cu_seqlens_q),
        seq_lens_this_time(a.seq_lens_this_time),
        seq_lens_encoder(a.seq_lens_encoder),
        slots(a.B),
        capacity(a.T_cap),
        prefill_first(a.prefill_first) {}

  __device__ __forceinline__ RowRange of(int64_t b) const {
    return slot_rows(cu_seqlens_q[b], seq_lens_this_time[b], capacity);
  }
  // The row of the token order of every slot's first row, into shared memory. All threads.
  __device__ inline void token_rows_of(uint32_t* first_rows) const {
    const int64_t each = (slots + kMoveThreads - 1) / kMoveThreads;
    const int64_t low = min64(each * threadIdx.x, slots), high = min64(low + each, slots);
    Sums<2> own;  // of the first pass, of the second
    own.clear();
    for (int64_t b = low; b < high; ++b) own.add(share(b));
    const SlotSums<2> sums = scan_slots<SlotShape<kMoveThreads, 1>>(own);
    Sums<2> next = sums.before;
    Sums<1> second = {{sums.total.of[0]}};
    second.add({{next.of[1]}});
    next.of[1] = second.of[0];
    for (int64_t b = low; b < high; ++b) {
      first_rows[b] = pass(b) == 0 ? next.of[0] : next.of[1];
      next.add(share(b));
    }
    __syncthreads();
  }
  // `row` of slot order: the row of the token order where it stands; the last one where slots overlap; -1: none. All
  // lanes of the warp.
  __device__ inline int64_t token_row_of(const uint32_t* first_rows, int64_t row) const {
    int64_t found = -1;
    for (int64_t b = lane_id(); b < slots; b += kWarp) {
      const RowRange rows = of(b);
      const int64_t token_row = first_rows[b] + (row - rows.start);
      if (row >= rows.start && row < rows.stop && token_row < capacity) found = max64(found, token_row);
    }
    return warp_max(found);
  }
  // The row of slot order that stands at `token_row`; -1: none. All lanes of the warp.
  __device__ inline int64_t row_at(const uint32_t* first_rows, int64_t token_row) const {
    int64_t found = -1;
    for (int64_t b = lane_id(); b < slots; b += kWarp) {
      const RowRange rows = of(b);
      if (token_row >= first_rows[b] && token_row - first_rows[b] < rows.size())
        found = rows.start + (token_row - first_rows[b]);
    }
    return warp_max(found);
  }

 private:
  __device__ __forceinline__ int pass(int64_t b) const {
    return placed_in_pass(prefill_first, 0, seq_lens_encoder[b]) ? 0 : 1;
  }
  __device__ __forceinline__ Sums<2> share(int64_t b) const {
    const auto size = static_cast<uint32_t>(max64(of(b).size(), 0));
    return pass(b) == 0 ? Sums<2>{{size, 0}} : Sums<2>{{0, size}};
  }
};

// Whether every row stays in place. The constructor loads the first slots' data before any rows, to avoid waiting for
// those. Threads without a slot look at the last one.
class InPlace {
 public:
  __device__ __forceinline__ explicit InPlace(const SlotRows& slots) : slots_(slots) {
    if (slots.slots == 0) return;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i > 0 && slots.slots <= i * int{kMoveThreads}) break;
      const int b = slot(i), before = max(b - 1, 0);
      start_[i] = slots.cu_seqlens_q[b];
      before_start_[i] = slots.cu_seqlens_q[before];
      before_length_[i] = slots.seq_lens_this_time[before];
    }
  }

  // As far as this thread sees.
  __device__ __forceinline__ bool yes() const {
    bool in_place = !slots_.prefill_first;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int64_t stop = slot_rows(before_start_[i], before_length_[i], slots_.capacity).stop;
      // Before the first slot there are no rows.
      in_place &= slot_rows(start_[i], 0, slots_.capacity).start == (slot(i) > 0 ? stop : 0);
    }
    for (int64_t b = kHeld * kMoveThreads + threadIdx.x; b < slots_.slots; b += kMoveThreads) {
      in_place &= slots_.of(b).start == slots_.of(b - 1).stop;
    }
    return in_place;
  }

 private:
  static constexpr int kHeld = 2;

  __device__ __forceinline__ int slot(int i) const {
    return min(i * int{kMoveThreads} + static_cast<int>(threadIdx.x), static_cast<int>(slots_.slots) - 1);
  }

  const SlotRows& slots_;
  int32_t start_[kHeld] = {}, before_start_[kHeld] = {}, before_length_[kHeld] = {};
};

// How an op finds the source of output row r: `direct` where every row is its own place, else `search` (all lanes of
// the warp). -1: the row is zero.
struct AdjustRows {
  using Args = AdjustBatchArgs;

  static __device__ __forceinline__ int64_t direct(const Args&, const SlotRows& slots, int64_t r) {
    return slots.slots > 0 && r < slots.of(slots.slots - 1).stop ? r : -1;
  }
  static __device__ __forceinline__ int64_t search(const Args&, const SlotRows& slots, const uint32_t* first_rows,
                                                   int64_t r) {
    return slots.row_at(first_rows, r);
  }
};

struct RecoverRows : AdjustRows {
  static __device__ __forceinline__ int64_t search(const Args&, const SlotRows& slots, const uint32_t* first_rows,
                                                   int64_t r) {
    return slots.token_row_of(first_rows, r);
  }
};

struct GatherRows {
  using Args = GatherNextTokenArgs;

  static __device__ __forceinline__ int64_t direct(const Args& a, const SlotRows& slots, int64_t r) {
    const int64_t b = a.is_speculative ? a.batch_id_per_token_output[r] : r;
    if (b < 0 || b >= a.B) return -1;
    const int32_t first = a.is_speculative ? a.cu_seqlens_q_output[b] : 0, enc = a.seq_lens_encoder[b];
    const RowRange rows = slots.of(b);
    const int64_t row = predicting_row(rows, a.is_speculative, enc, r - first);  // loads before it is known
    return rows.size() > 0 ? row : -1;
  }
  static __device__ __forceinline__ int64_t search(const Args& a, const SlotRows& slots, const uint32_t* first_rows,
                                                   int64_t r) {
    const int64_t row = direct(a, slots, r);
    return row < 0 ? -1 : slots.token_row_of(first_rows, row);
  }
};

// What a block moves at a time: rows [first_row, first_row + rows). `kRows` wide rows, each moved by an equal share of
// the threads, or of a row that takes several blocks the part blockIdx.y. 0: narrow rows, which share the threads as
// they come.
template <unsigned kRows>
struct MoveChunk {
  static constexpr unsigned kThreads = kMoveThreads / (kRows == 0 ? 1 : kRows);  // of a row
  struct At {
    uint32_t row, column;
    bool there;
  };

  int64_t first_row;
  uint32_t rows, row_units;

  __device__ __forceinline__ MoveChunk(int64_t out_rows, uint32_t row_units_, int64_t index) : row_units(row_units_) {
    const uint32_t most = kRows == 0 ? kMoveChunk / row_units : kRows;
    first_row = index * most;
    rows = static_cast<uint32_t>(min64(out_rows - first_row, most));
  }
  // The row of this thread, if rows are wide.
  __device__ __forceinline__ uint32_t own_row() const { return kRows == 1 ? 0 : min(threadIdx.x / kThreads, rows - 1); }
  // Of this thread's i-th unit.
  __device__ __forceinline__ At at(unsigned i) const {
    const uint32_t k = i * kThreads + threadIdx.x % kThreads;
    if constexpr (kRows == 0) {
      const uint32_t row = k / row_units;
      return {row, k - row * row_units, row < rows};
    }
    const uint32_t row = kRows == 1 ? 0 : threadIdx.x / kThreads, column = blockIdx.y * kMoveChunk + k;
    return {row, column, row < rows && column < row_units};
  }
};

// A block looks once whether rows are in place, and moves one chunk, or every gridDim.x-th (kSeveral). Dynamic shared
// memory: a row of every slot.
template <typename Rows, typename Unit, unsigned kRows, bool kSeveral = false>
__global__ void __launch_bounds__(kMoveThreads, kRows == 0 ? 2 : 3)
    move_rows_kernel(const __grid_constant__ MoveArgs<typename Rows::Args> a, int64_t out_rows, int64_t chunks,
                     uint32_t row_units) {
  using Chunk = MoveChunk<kRows>;
  constexpr bool kWide = kRows != 0;
  uint32_t* const first_rows = ptx::dynamic_shared<uint32_t>();
  __shared__ int64_t sources[kWide ? kRows : kMoveChunk];
  wait_for_previous();
  const SlotRows slots(a);
  const InPlace in_place(slots);
  Unit units[kMoveUnits];
  const auto load = [&](const Chunk& chunk, auto source_of) {
    const int64_t only = kWide ? source_of(chunk.own_row()) : 0;
#pragma unroll
    for (unsigned i = 0; i < kMoveUnits; ++i) {
      const typename Chunk::At at = chunk.at(i);
      if (!at.there) continue;
      const int64_t source = kWide ? only : source_of(at.row);
      units[i] = source < 0 ? Unit{} : reinterpret_cast<const Unit*>(a.x)[source * row_units + at.column];
    }
  };
  int64_t index = blockIdx.x;
  Chunk chunk(out_rows, row_units, index);
  const auto direct = [&](uint32_t row) { return Rows::direct(a, slots, chunk.first_row + row); };
  load(chunk, direct);
  const bool in_order = __syncthreads_and(in_place.yes()) != 0;
  if (!in_order) slots.token_rows_of(first_rows);
  for (;;) {
    if (!in_order) {
      for (uint32_t row = warp_id(); row < chunk.rows; row += kMoveThreads / kWarp) {
        const int64_t source = Rows::search(a, slots, first_rows, chunk.first_row + row);
        if (lane_id() == 0) sources[row] = source;
      }
      __syncthreads();
      load(chunk, [&](uint32_t row) { return sources[row]; });
      if (kSeveral) __syncthreads();  // `sources` are written again
    }
#pragma unroll
    for (unsigned i = 0; i < kMoveUnits; ++i) {
      const typename Chunk::At at = chunk.at(i);
      const int64_t row = chunk.first_row + at.row;
      if (at.there) reinterpret_cast<Unit*>(a.out)[row * row_units + at.column] = units[i];
    }
    index += gridDim.x;
    if (!kSeveral || index >= chunks) return;
    chunk = Chunk(out_rows, row_units, index);
    if (in_order) load(chunk, direct);
  }
}

namespace {

template <typename Rows, typename Unit>
void launch_units(const char* op, const typename Rows::Args& a, int64_t out_rows, cudaStream_t stream) {
  const int64_t row_units = a.x_row_bytes / static_cast<int64_t>(sizeof(Unit));
  if (out_rows == 0 || row_units == 0) return;
  constexpr int64_t kMaxUnits = int64_t{kMoveChunk} * 0xFFFF;  // blocks along y
  if (row_units > kMaxUnits) {
    throw std::invalid_argument("rows: expected at most " + std::to_string(kMaxUnits) + " units of " +
                                std::to_string(sizeof(Unit)) + " bytes, got " + std::to_string(row_units) +
                                "; align rows to 16 bytes, or pass narrower ones");
  }
  const auto launch_kernel = [&](auto kernel, unsigned chunks, dim3 grid) {
    launch(op, stream, {grid, kMoveThreads, static_cast<size_t>(a.B) * sizeof(uint32_t)}, kernel, MoveArgs(a), out_rows,
           int64_t{chunks}, static_cast<uint32_t>(row_units));
  };
  if (row_units < kMoveChunk / kMoveWideRows) {
    const unsigned chunks = blocks_for(out_rows, kMoveChunk / row_units);
    return launch_kernel(move_rows_kernel<Rows, Unit, 0>, chunks, chunks);
  }
  const int64_t few = device_sms(op) * kMoveBlocks;
  const auto launch_wide = [&](auto rows) {
    constexpr unsigned kRows = decltype(rows)::value;
    const unsigned chunks = blocks_for(out_rows, kRows), parts = blocks_for(row_units, kMoveChunk);
    // To look at many slots takes a block longer than to move some rows.
    if (a.B <= 2 * kMoveThreads || chunks <= few) {
      return launch_kernel(move_rows_kernel<Rows, Unit, kRows>, chunks, {chunks, parts});
    }
    const unsigned each = blocks_for(chunks, few);  // chunks of a block
    launch_kernel(move_rows_kernel<Rows, Unit, kRows, true>, chunks, {blocks_for(chunks, each), parts});
  };
  if constexpr (sizeof(Unit) == sizeof(uint4)) {  // others are rare
    const auto fit = [&](int64_t rows) { return rows * row_units <= kMoveChunk && out_rows > rows / 2 * few; };
    if (fit(4)) return launch_wide(std::integral_constant<unsigned, 4>{});
    if (fit(2)) return launch_wide(std::integral_constant<unsigned, 2>{});
  }
  launch_wide(std::integral_constant<unsigned, 1>{});
}

// In the widest units into which rows and both addresses can be divided.
template <typename Rows>
void move_rows(const char* op, const typename Rows::Args& a, int64_t out_rows, cudaStream_t stream) {
  const uint64_t addresses = reinterpret_cast<uint64_t>(a.x) | reinterpret_cast<uint64_t>(a.out);
  const uint64_t all = addresses | static_cast<uint64_t>(a.x_row_bytes);
  if (all % 16 == 0) return launch_units<Rows, uint4>(op, a, out_rows, stream);
  if (all % 4 == 0) return launch_units<Rows, uint32_t>(op, a, out_rows, stream);
  if (all % 2 == 0) return launch_units<Rows, uint16_t>(op, a, out_rows, stream);
  return launch_units<Rows, uint8_t>(op, a, out_rows, stream);
}

}  // namespace

void adjust_batch(const AdjustBatchArgs& a, cudaStream_t stream) {
  move_rows<AdjustRows>("adjust_batch", a, a.T_cap, stream);
}
SPECDEC_OP(adjust_batch, kLimits)

void recover_batch(const RecoverBatchArgs& a, cudaStream_t stream) {
  move_rows<RecoverRows>("recover_batch", a, a.T_cap, stream);
}
SPECDEC_OP(recover_batch, kLimits)

void gather_next_token(const GatherNextTokenArgs& a, cudaStream_t stream) {
  move_rows<GatherRows>("gather_next_token", a, a.is_speculative ? a.R_cap : a.B, stream);
}
SPECDEC_OP(gather_next_token, kLimits)

}  // namespace specdec::cuda
