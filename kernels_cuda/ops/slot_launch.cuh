// Launches of kernels whose blocks each add up all slots.
#pragma once

#include "launch.cuh"
#include "ops.h"
#include "slot_scan.cuh"

namespace specdec::cuda {

using FewSlots = SlotShape<256, 1>;
using MoreSlots = SlotShape<512, 1>;
using ManySlots = SlotShape<1024, 1>;
using MostSlots = SlotShape<1024, 8>;
static_assert(MostSlots::kSlots >= served::kM, "every batch has a shape");

// body(shape), with the smallest shape that has room for the slots.
template <typename Body>
void with_slot_shape(int64_t slots, Body body) {
  if (slots <= FewSlots::kSlots) return body(FewSlots{});
  if (slots <= MoreSlots::kSlots) return body(MoreSlots{});
  if (slots <= ManySlots::kSlots) return body(ManySlots{});
  return body(MostSlots{});
}

// Blocks for `items`, one per thread, at most as many as are resident at once.
template <typename Shape>
LaunchShape packed_shape(const char* op, Shape, int64_t items) {
  constexpr int64_t kThreadsPerSm = 512;  // threads
  const int64_t most = device_sms(op) * kThreadsPerSm / Shape::kThreads;
  return {blocks_for(items, Shape::kThreads, most), Shape::kThreads};
}

}  // namespace specdec::cuda
