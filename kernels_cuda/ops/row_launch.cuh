// How many blocks share a row, and whether it fits their shared memory.
#pragma once

#include <type_traits>

#include "launch.cuh"
#include "ops.h"
#include "row_board.cuh"
#include "specdec_ops/row_tensors.h"

namespace specdec::cuda {

static_assert(kMostVocabulary <= 1 << 18,
              "a block's Cells have 32 bits, packed counts 19 and 20, places in a warp's list 16");

// Of the current device.
struct RowDevice {
  int generation, processors;
  int most_bytes;  // dynamic shared memory that a block may have beside a RowBoard
  int half_bytes;  // and if two blocks are to be on a processor
};

inline RowDevice row_device(const char* op) {
  constexpr int kDevices = 64;
  static std::array<std::atomic<int>, kDevices> known_processors = {}, known_most = {}, known_half = {};
  int device = 0;
  check(op, cudaGetDevice(&device));
  int processors = device < kDevices ? known_processors[device].load(std::memory_order_acquire) : 0, most = 0, half = 0;
  if (processors != 0) {
    most = known_most[device].load(std::memory_order_relaxed);
    half = known_half[device].load(std::memory_order_relaxed);
  } else {
    constexpr int kReserved = 1024, kBoard = static_cast<int>(sizeof(RowBoard)) + 128;
    check(op, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    check(op, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    check(op, cudaDeviceGetAttribute(&half, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
    most -= kBoard;
    half = (half / 2 - kReserved - kBoard) / 16 * 16;
    if (device < kDevices) {
      known_most[device].store(most, std::memory_order_relaxed);
      known_half[device].store(half, std::memory_order_relaxed);
      known_processors[device].store(processors, std::memory_order_release);
    }
  }
  return {device_generation(op), processors, most, half};
}

struct RowShape {
  unsigned blocks;  // of a row
  bool resident;
};

// For rows of `size` elements of `element_bytes` each: one block a row if that gives two blocks to every processor, and
// else as many as do, if the row is worth them. Rows stay in shared memory where two blocks on a processor can hold
// theirs and have lists beside.
inline RowShape row_shape(const RowDevice& device, int64_t rows, int64_t size, int64_t element_bytes) {
  constexpr int64_t kLeastShare = 8 * 1024, kLists = 16 * 1024;
  const int64_t bytes = size * element_bytes;
  unsigned blocks = 1;
  while (device.generation >= 9 && blocks < kMostCluster && rows * blocks <= device.processors &&
         bytes > kLeastShare * blocks) {
    blocks *= 2;
  }
  const int64_t share = ((bytes + 31) / 16 + blocks - 1) / blocks + kRowWarps;  // vectors
  return {blocks, share * 16 + kLists <= device.half_bytes};
}

// Lets a kernel have much dynamic shared memory; once for each device. `Tag`: the kernel's.
template <class Tag, typename Kernel>
void allow_shared(const char* op, Kernel kernel, int bytes) {
  static std::atomic<uint64_t> done = {0};
  int device = 0;
  check(op, cudaGetDevice(&device));
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_acquire) & bit) return;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  done.fetch_or(bit, std::memory_order_release);
}

// Launches a kernel of rows, a cluster a row. `Kernels` has it for rows that stay in shared memory as `resident`, and
// else as `streaming`.
template <class Kernels, typename... A>
void launch_rows(const char* op, cudaStream_t stream, int64_t rows, int64_t size, int64_t element_bytes,
                 const A&... args) {
  const RowDevice device = row_device(op);
  const RowShape shape = row_shape(device, rows, size, element_bytes);
  LaunchShape launched = {dim3(static_cast<unsigned>(rows) * shape.blocks), dim3(kRowThreads)};
  launched.shared_bytes = static_cast<size_t>(device.half_bytes);
  launched.cluster = shape.blocks;
  const auto kernel = shape.resident ? Kernels::resident : Kernels::streaming;
  if (shape.resident) {
    allow_shared<std::integral_constant<decltype(kernel), Kernels::resident>>(op, kernel, device.half_bytes);
  } else {
    allow_shared<std::integral_constant<decltype(kernel), Kernels::streaming>>(op, kernel, device.half_bytes);
  }
  launch(op, stream, launched, kernel, args...);
}

}  // namespace specdec::cuda
