// How many blocks share a row, and whether it fits their shared memory.
#pragma once

#include <type_traits>

#include "launch.cuh"
#include "ops.h"
#include "row_shared.cuh"

namespace specdec::cuda {

static_assert(served::kV <= 1 << 18,
              "a block's Cells have 32 bits, packed counts 19 and 20, places in a warp's list 16");

// Of the current device.
struct RowDevice {
  int index, major, sms;
  int most_bytes;  // dynamic shared memory that a block may have beside a RowShared
  int half_bytes;  // and if an SM must hold two blocks
};

inline RowDevice row_device(const char* op) {
  constexpr int kReserved = 1024, kSharedBytes = static_cast<int>(sizeof(RowShared)) + 128;
  const int most = device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>(op);
  const int both = device_attribute<cudaDevAttrMaxSharedMemoryPerMultiprocessor>(op);
  return {current_device(op), compute_capability_major(op), device_sms(op), most - kSharedBytes,
          (both / 2 - kReserved - kSharedBytes) / 16 * 16};
}

// How a row is divided: number of blocks, and one or two blocks per SM.
struct RowShape {
  unsigned blocks;
  bool alone;

  int shared_bytes(const RowDevice& device) const { return alone ? device.most_bytes : device.half_bytes; }
  // Whether a row stays in its blocks' shared memory, with room for lists beside.
  bool holds(const RowDevice& device, int64_t size, int64_t element_bytes) const {
    constexpr int64_t kLists = 16 * 1024;
    const int64_t sharing = blocks < kMaxCluster ? blocks : kMaxCluster;  // of a row with filters
    const int64_t stripes = size / kChunkIds + 1, share = (stripes + sharing - 1) / sharing;
    return share * kChunkIds * element_bytes + kLists <= shared_bytes(device);
  }
};
// Of a row that stays in shared memory, with one stripe a warp at most.
struct OneEach : std::true_type {};

// The quickest first.
constexpr RowShape kRowShapes[] = {{16, true}, {8, true}, {4, true}, {8, false}, {4, false}, {2, false}, {1, false}};
constexpr int kRowShapeCount = static_cast<int>(sizeof kRowShapes / sizeof *kRowShapes);
static_assert(kRowShapes[0].blocks == kWidestCluster && kRowShapes[1].blocks == kMaxCluster, "no shape has more");

// Allows kernels all dynamic shared memory of the current device, once per flag in `allowed`.
template <typename... Kernels>
void allow_shared(const char* op, const RowDevice& device, OfDevices& allowed, Kernels... kernels) {
  allowed.get(device.index, [&] {
    (check(op, cudaFuncSetAttribute(kernels, cudaFuncAttributeMaxDynamicSharedMemorySize, device.most_bytes)), ...);
    if (device.major >= 9) {
      (check(op, cudaFuncSetAttribute(kernels, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)), ...);
    }
    return 1;
  });
}

inline LaunchShape launch_shape(const RowDevice& device, const RowShape& shape, int64_t rows) {
  return {dim3(static_cast<unsigned>(rows) * shape.blocks), dim3(kRowThreads),
          static_cast<size_t>(shape.shared_bytes(device)), shape.blocks};
}

// Rows of a shape that are resident on the current device at once. It is less than its SMs could hold, since a cluster
// must fit one of the device's parts. Equal for all row kernels, so any may be given.
inline int rows_at_once(const char* op, const RowDevice& device, int shape, const void* kernel) {
  static OfDevices known[kRowShapeCount];  // and 1
  return known[shape].get(device.index, [&] {
    int rows = 0;
    const LaunchConfig config(op, nullptr, launch_shape(device, kRowShapes[shape], 1));
    const cudaError_t status = cudaOccupancyMaxActiveClusters(&rows, kernel, config.get());
    if (status != cudaSuccess && kRowShapes[shape].blocks > kMaxCluster) {
      cudaGetLastError();  // the device has no clusters as wide
      return 1;
    }
    check(op, status);
    return rows + 1;
  }) - 1;
}

// Launches a kernel for rows of `size` elements of type L, one cluster per row, in the first shape that keeps all rows
// on the device at once and gives each block enough work. `kernel_of(kind)`: the kernel for rows with at most one
// stripe per warp (OneEach), for others that stay in shared memory (std::true_type), or for the rest
// (std::false_type).
template <class L, class KernelOf, typename... A>
void launch_rows(const char* op, cudaStream_t stream, int64_t rows, int64_t size, bool widest, KernelOf kernel_of,
                 const A&... args) {
  if (rows == 0) return;
  constexpr int64_t kElement = sizeof(typename L::Bits);
  static OfDevices allowed;
  const RowDevice device = row_device(op);
  const auto resident = kernel_of(std::true_type{}), streaming = kernel_of(std::false_type{});
  const auto one_each = kernel_of(OneEach());
  allow_shared(op, device, allowed, resident, streaming, one_each);
  const auto fitting = [&](const RowShape& shape) {
    if (!shape.holds(device, size, kElement)) return streaming;
    // A row that begins between 16 bytes has up to kVector - 1 more places.
    const int64_t most = int64_t{kChunkIds} * kRowWarps * shape.blocks;
    return shape.blocks <= kMaxCluster && size + kVector<L> - 1 <= most ? one_each : resident;
  };
  int at = device.major < 9 ? kRowShapeCount - 1 : widest ? 0 : 1;
  for (; at + 1 < kRowShapeCount; ++at) {
    const RowShape& shape = kRowShapes[at];
    // Half as many are enough if a third of their warps has no chunk.
    const bool spare = size <= kChunkIds * kRowWarps * shape.blocks / 3;
    if (rows * shape.blocks > 2 * device.sms || spare) continue;
    if (rows <= rows_at_once(op, device, at, reinterpret_cast<const void*>(fitting(shape)))) break;
  }
  const RowShape& shape = kRowShapes[at];
  launch(op, stream, launch_shape(device, shape, rows), fitting(shape), args...);
}

// The same for a.logits of any type: kernel_of(type, OneEach or std::bool_constant) takes `a`, the logits and `more`.
template <class Args, class KernelOf, typename... More>
void launch_logit_rows(const char* op, cudaStream_t stream, int64_t rows, const Args& a, bool widest,
                       KernelOf kernel_of, const More&... more) {
  with_float_type(a.logits_type, [&](auto type) {
    using L = decltype(type);
    launch_rows<L>(op, stream, rows, a.V, widest, [&](auto resident) { return kernel_of(type, resident); }, a,
                   static_cast<const typename L::Bits*>(a.logits), more...);
  });
}

}  // namespace specdec::cuda
