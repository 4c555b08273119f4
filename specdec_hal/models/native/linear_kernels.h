// The code of linear.h for the including file's instruction set.
#pragma once

#include <utility>

#include "linear.h"
#include "vectors.h"

namespace specdec::linear {
namespace {

constexpr int kPanelVectors = kPanel / kLanes;
// Rows processed together: registers hold two vectors of each.
constexpr int kRows = kRegisters == 32 ? 12 : 6;

// Vectors per row that fit into the registers beside the weight's.
constexpr int columns(int rows) {
  int count = kPanelVectors;
  while ((rows + 1) * count + 1 > kRegisters) count /= 2;
  return count;
}

// A sum becomes a result, at `column` of `row`.
inline void finish(const Call& call, int64_t row, int64_t column, Vector sum) {
  const int64_t at = row * call.outputs + column, left = call.outputs - column;
  if (left >= kLanes) {
    if (call.bias != nullptr) sum = sum + load(call.bias + column);
    if (call.residual != nullptr) sum = sum + load(call.residual + at);
    store(call.out + at, sum);
    return;
  }
  for (int64_t j = 0; j < left; ++j) {
    float x = sum[j];
    if (call.bias != nullptr) x += call.bias[column + j];
    if (call.residual != nullptr) x += call.residual[at + j];
    call.out[at + j] = x;
  }
}

template <int R>
void multiply_rows(const Call& call, int64_t panel, int64_t row) {
  constexpr int C = columns(R);
  const float* const x = call.x + row * call.inputs;
  for (int c = 0; c < kPanelVectors; c += C) {
    const float* weight = call.weight + panel * call.inputs * kPanel + c * kLanes;
    Vector sum[R][C] = {};
    for (int64_t k = 0; k < call.inputs; ++k, weight += kPanel) {
      Vector part[C];
      for (int v = 0; v < C; ++v) part[v] = load(weight + v * kLanes);
      for (int r = 0; r < R; ++r) {
        const Vector each = all(x[r * call.inputs + k]);
        for (int v = 0; v < C; ++v) sum[r][v] = each * part[v] + sum[r][v];
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < C; ++v) finish(call, row + r, panel * kPanel + (c + v) * kLanes, sum[r][v]);
    }
  }
}

using Rows = void (*)(const Call& call, int64_t panel, int64_t row);

template <int... R>
constexpr Rows rows_of(std::integer_sequence<int, R...>, int64_t count) {
  constexpr Rows kFunctions[] = {multiply_rows<R + 1>...};
  return kFunctions[count - 1];
}

void multiply(const Call& call, int64_t panel, int64_t first, int64_t last) {
  // Rows of 4 KB share places in the L1 cache.
  const int64_t most = call.inputs % 1024 == 0 ? kRows / 2 : kRows;
  for (int64_t row = first; row < last; row += most) {
    const int64_t count = last - row < most ? last - row : most;
    rows_of(std::make_integer_sequence<int, kRows>(), count)(call, panel, row);
  }
}

void norm(const float* x, const float* weight, float epsilon, int64_t width, float* out) {
  const int64_t whole = width / kLanes * kLanes;
  Vector sums = {};
  for (int64_t i = 0; i < whole; i += kLanes) sums = load(x + i) * load(x + i) + sums;
  float sum = 0.0f;
  for (int j = 0; j < kLanes; ++j) sum += sums[j];
  for (int64_t i = whole; i < width; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + epsilon);
  for (int64_t i = 0; i < whole; i += kLanes) store(out + i, load(x + i) * all(scale) * load(weight + i));
  for (int64_t i = whole; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

}  // namespace
}  // namespace specdec::linear
