// How many blocks share a row, and whether it fits their shared memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "launch.cuh"
#include "ops.h"
#include "row_board.cuh"
#include "specdec_ops/row_tensors.h"

namespace specdec::cuda {

static_assert(kMostVocabulary <= 1 << 18, "a block's Cells have 32 bits, packed counts 20, places in a warp's list 16");

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
// theirs and have lists beside: a row gets more blocks if it then can, so that it is read once.
inline RowShape row_shape(const RowDevice& device, int64_t rows, int64_t size, int64_t element_bytes) {
  constexpr int64_t kLeastShare = 8 * 1024, kLists = 16 * 1024;
  const int64_t bytes = size * element_bytes;
  const unsigned most = device.generation >= 9 ? kMostCluster : 1;
  const auto fits = [&](unsigned blocks) {
    const int64_t share = ((bytes + 31) / 16 + blocks - 1) / blocks;  // vectors
    return held_vectors_of(static_cast<int>(share)) * 16 + kLists <= device.half_bytes;
  };
  unsigned blocks = 1;
  while (blocks < most && rows * blocks <= device.processors && bytes > kLeastShare * blocks) blocks *= 2;
  unsigned enough = blocks;
  while (enough < most && !fits(enough)) enough *= 2;
  return fits(enough) ? RowShape{enough, true} : RowShape{blocks, false};
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

// How many clusters of a launch the current device runs at once, which depends on where its processors lie; asked once
// for each device and size of cluster. `Tag`: the kernel's. After allow_shared.
template <class Tag, typename Kernel>
int64_t clusters_at_once(const char* op, Kernel kernel, const LaunchShape& shape) {
  constexpr int kDevices = 64;
  static std::array<std::array<std::atomic<int>, kMostCluster + 1>, kDevices> known = {};
  int device = 0;
  check(op, cudaGetDevice(&device));
  int clusters = device < kDevices ? known[device][shape.cluster].load(std::memory_order_relaxed) : 0;
  if (clusters == 0) {
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {shape.cluster, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(shape.cluster);
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    check(op, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    clusters = clusters < 1 ? 1 : clusters;
    if (device < kDevices) known[device][shape.cluster].store(clusters, std::memory_order_relaxed);
  }
  return clusters;
}

template <auto kKernel, typename... A>
void launch_row_kernel(const char* op, cudaStream_t stream, const RowDevice& device, int64_t rows, RowShape shape,
                       const A&... args) {
  using Tag = std::integral_constant<decltype(kKernel), kKernel>;
  allow_shared<Tag>(op, kKernel, device.half_bytes);
  LaunchShape launched = {dim3(shape.blocks), dim3(kRowThreads)};
  launched.shared_bytes = static_cast<size_t>(device.half_bytes);
  launched.cluster = shape.blocks;
  int64_t clusters = rows;  // a row of one block leaves it to the device when the next one begins
  if (shape.resident && shape.blocks > 1) clusters = std::min(rows, clusters_at_once<Tag>(op, kKernel, launched));
  launched.grid = dim3(static_cast<unsigned>(clusters) * shape.blocks);
  launch(op, stream, launched, kKernel, args...);
}

// Launches a kernel of rows: a cluster a row, or as many clusters as there can be at once. `Kernels` has it for rows
// that stay in shared memory as `resident`, and else as `streaming`.
template <class Kernels, typename... A>
void launch_rows(const char* op, cudaStream_t stream, int64_t rows, int64_t size, int64_t element_bytes,
                 const A&... args) {
  const RowDevice device = row_device(op);
  const RowShape shape = row_shape(device, rows, size, element_bytes);
  if (shape.resident) {
    launch_row_kernel<Kernels::resident>(op, stream, device, rows, shape, args...);
  } else {
    launch_row_kernel<Kernels::streaming>(op, stream, device, rows, shape, args...);
  }
}

}  // namespace specdec::cuda
