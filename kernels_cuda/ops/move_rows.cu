#include <stdexcept>
#include <string>

#include "launch.cuh"
#include "move_rows.cuh"
#include "ops.h"

namespace specdec::cuda {
namespace {

template <typename Rows, typename Unit>
void launch_units(const char* op, const typename Rows::Args& a, int64_t out_rows, cudaStream_t stream) {
  const int64_t row_units = a.row_bytes / static_cast<int64_t>(sizeof(Unit));
  if (out_rows == 0 || row_units == 0) return;
  constexpr int64_t kMostUnits = int64_t{kMoveChunk} * 0xFFFF;  // blocks along y
  if (row_units > kMostUnits) {
    throw std::invalid_argument("rows: expected at most " + std::to_string(kMostUnits) + " units of " +
                                std::to_string(sizeof(Unit)) + " bytes, got " + std::to_string(row_units) +
                                "; align rows to 16 bytes, or pass narrower ones");
  }
  const size_t places = static_cast<size_t>(a.slots) * sizeof(uint32_t);
  if (row_units >= kMoveChunk / 4) {
    const dim3 grid(static_cast<unsigned>(out_rows), blocks_for(row_units, kMoveChunk));
    launch(op, stream, {grid, kMoveThreads, places}, move_rows_kernel<Rows, Unit, true>, a, out_rows);
  } else {
    const dim3 grid(blocks_for(out_rows, kMoveChunk / row_units));
    launch(op, stream, {grid, kMoveThreads, places}, move_rows_kernel<Rows, Unit, false>, a, out_rows);
  }
}

// In the widest units into which rows and both addresses can be divided.
template <typename Rows>
void move_rows(const char* op, const typename Rows::Args& a, int64_t out_rows, cudaStream_t stream) {
  const uint64_t addresses = reinterpret_cast<uint64_t>(a.x) | reinterpret_cast<uint64_t>(a.out);
  const uint64_t all = addresses | static_cast<uint64_t>(a.row_bytes);
  if (all % 16 == 0) return launch_units<Rows, uint4>(op, a, out_rows, stream);
  if (all % 4 == 0) return launch_units<Rows, uint32_t>(op, a, out_rows, stream);
  if (all % 2 == 0) return launch_units<Rows, uint16_t>(op, a, out_rows, stream);
  return launch_units<Rows, uint8_t>(op, a, out_rows, stream);
}

}  // namespace

void adjust_batch(const PermuteRowsArgs& a, cudaStream_t stream) {
  move_rows<AdjustRows>("adjust_batch", a, a.capacity, stream);
}

void recover_batch(const PermuteRowsArgs& a, cudaStream_t stream) {
  move_rows<RecoverRows>("recover_batch", a, a.capacity, stream);
}

void gather_next_token(const GatherNextTokenArgs& a, cudaStream_t stream) {
  move_rows<GatherRows>("gather_next_token", a, a.is_speculative ? a.row_capacity : a.slots, stream);
}

}  // namespace specdec::cuda
