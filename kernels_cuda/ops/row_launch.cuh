// How many blocks share a row, and whether it fits their shared memory.
#pragma once

#include <type_traits>

#include "launch.cuh"
#include "ops.h"
#include "row_board.cuh"

namespace specdec::cuda {

static_assert(served::kV <= 1 << 18,
              "a block's Cells have 32 bits, packed counts 19 and 20, places in a warp's list 16");

// Of the current device.
struct RowDevice {
  int index, generation, processors;
  int most_bytes;  // dynamic shared memory that a block may have beside a RowBoard
  int half_bytes;  // and if two blocks are to be on a processor
};

inline RowDevice row_device(const char* op) {
  constexpr int kReserved = 1024, kBoard = static_cast<int>(sizeof(RowBoard)) + 128;
  int device = 0;
  check(op, cudaGetDevice(&device));
  const int most = device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(op);
  const int both = device_attribute<cudaDevAttrMaxSharedMemoryPerMultiprocessor>(op);
  return {device, device_generation(op), device_processors(op), most - kBoard,
          (both / 2 - kReserved - kBoard) / 16 * 16};
}

// How a row is shared out: by how many blocks, and whether each of them has a processor to itself or half of one.
struct RowShape {
  unsigned blocks;
  bool alone;

  int shared_bytes(const RowDevice& device) const { return alone ? device.most_bytes : device.half_bytes; }
  // Whether a row stays in its blocks' shared memory, with room for lists beside.
  bool holds(const RowDevice& device, int64_t size, int64_t element_bytes) const {
    constexpr int64_t kLists = 16 * 1024;
    const int64_t stripes = size / kChunkIds + 1, share = (stripes + blocks - 1) / blocks;
    return share * kChunkIds * element_bytes + kLists <= shared_bytes(device);
  }
};
// The quickest first.
constexpr RowShape kRowShapes[] = {{8, true}, {4, true}, {8, false}, {4, false}, {2, false}, {1, false}};
constexpr int kRowShapeCount = static_cast<int>(sizeof kRowShapes / sizeof *kRowShapes);
static_assert(kRowShapes[0].blocks == kMostCluster, "no shape has more");

// Lets a kernel have much dynamic shared memory on the current device; once for each. `Tag`: the kernel's.
template <class Tag, typename Kernel>
void allow_shared(const char* op, const RowDevice& device, Kernel kernel, int bytes) {
  static std::atomic<uint64_t> done = {0};
  const uint64_t bit = uint64_t{1} << (device.index % 64);
  if (done.load(std::memory_order_acquire) & bit) return;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  done.fetch_or(bit, std::memory_order_release);
}

inline LaunchShape launch_shape(const RowDevice& device, const RowShape& shape, int64_t rows) {
  return {dim3(static_cast<unsigned>(rows) * shape.blocks), dim3(kRowThreads),
          static_cast<size_t>(shape.shared_bytes(device)), shape.blocks};
}

// Rows of a shape that are on the current device at once, which is less than its processors have room for: a cluster
// lies within one of the device's parts. The same for all kernels of rows, of which one is given.
inline int rows_at_once(const char* op, const RowDevice& device, int shape, const void* kernel) {
  constexpr int kDevices = 64;
  static std::array<std::array<std::atomic<int>, kRowShapeCount>, kDevices> known = {};
  const bool remembered = device.index < kDevices;
  if (remembered) {
    if (const int rows = known[device.index][shape].load(std::memory_order_relaxed); rows > 0) return rows - 1;
  }
  int rows = 0;
  const LaunchConfig config(op, nullptr, launch_shape(device, kRowShapes[shape], 1));
  check(op, cudaOccupancyMaxActiveClusters(&rows, kernel, config.get()));
  if (remembered) known[device.index][shape].store(rows + 1, std::memory_order_relaxed);
  return rows;
}

// Launches a kernel of rows of `size` elements, a cluster a row, in the first shape in which all rows are on the device
// at once, if the rows are worth as many blocks. `Kernels` has it for rows that stay in shared memory as `resident`,
// and else as `streaming`.
template <class Kernels, typename... A>
void launch_rows(const char* op, cudaStream_t stream, int64_t rows, int64_t size, int64_t element_bytes,
                 const A&... args) {
  constexpr int64_t kLeastShare = 4 * 1024;
  const RowDevice device = row_device(op);
  const int64_t bytes = size * element_bytes;
  allow_shared<std::integral_constant<decltype(Kernels::resident), Kernels::resident>>(op, device, Kernels::resident,
                                                                                       device.most_bytes);
  allow_shared<std::integral_constant<decltype(Kernels::streaming), Kernels::streaming>>(op, device, Kernels::streaming,
                                                                                         device.most_bytes);
  const auto kernel_of = [&](const RowShape& shape) {
    return shape.holds(device, size, element_bytes) ? Kernels::resident : Kernels::streaming;
  };
  int at = device.generation >= 9 ? 0 : kRowShapeCount - 1;
  for (; at + 1 < kRowShapeCount; ++at) {
    const RowShape& shape = kRowShapes[at];
    if (rows * shape.blocks > 2 * device.processors || bytes <= kLeastShare * shape.blocks) continue;
    if (rows <= rows_at_once(op, device, at, reinterpret_cast<const void*>(kernel_of(shape)))) break;
  }
  const RowShape& shape = kRowShapes[at];
  launch(op, stream, launch_shape(device, shape, rows), kernel_of(shape), args...);
}

}  // namespace specdec::cuda
