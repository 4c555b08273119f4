// Products with weights, and RMS norms, on a CPU, in float32.
//
// A weight [outputs, inputs] lies in panels of kPanel rows, [panels, inputs, kPanel], the last padded with zeros. So
// a step of few rows reads it once and in order.
//
// An element of a result is a sum over inputs one after the other, then its bias, then its residual. So its bits depend
// on neither the number of rows nor on threads.
#pragma once

#include <cstdint>

namespace specdec::linear {

constexpr int kPanel = 32;

struct Call {
  const float* x;  // [rows, inputs]
  const float* weight;
  const float* bias;  // [outputs]; null: none
  const float* residual;  // [rows, outputs]; null: none
  float* out;  // [rows, outputs]
  int64_t rows, inputs, outputs;

  int64_t panels() const { return (outputs + kPanel - 1) / kPanel; }
};

// One instruction set's code.
struct Kernels {
  // Rows first .. last - 1 of one panel's columns.
  void (*multiply)(const Call& call, int64_t panel, int64_t first, int64_t last);
  // out = x / sqrt(mean(x^2) + epsilon) * weight, of one row of `width`.
  void (*norm)(const float* x, const float* weight, float epsilon, int64_t width, float* out);
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512;
#endif

}  // namespace specdec::linear
