// The products of a decoder layer after its attention, and the next layer's queries, keys and values, in one kernel.
#pragma once

#include <cstdint>

namespace specdec::cuda {

// Values of blocks to blocks, which need no other synchronisation: each 8 bytes have 4 of data and a flag that no earlier
// value of a place had (the protocol LL of NCCL).
struct Flagged {
  uint32_t data0, flag0, data1, flag1;
};

// x [rows, inputs] times a weight [outputs, inputs]. The inputs are cut into `parts` of `part`, whose sums are added in
// order.
struct Product {
  const void* bias;
  int32_t inputs, outputs, part, parts;
};

// RMSNorm of a product with its bias and `residual`, which is `total` [rows, outputs].
struct SumNorm {
  const void *residual, *weight;
  void *total, *out;
  float epsilon;
};

struct LayerProducts {
  // After attention; gate and up in turns (see gate_up.py); down; the next layer's, or one without outputs.
  Product products[4];
  SumNorm norms[2];    // after the first and the third product
  const void* x;       // of the first product
  void* out;           // of the last one
  const int32_t* count;  // of used rows, or null
  // Sums of parts [parts, capacity, outputs], and x of the second and fourth and of the third product.
  Flagged *partials, *normed, *middle;
  uint32_t* state;  // [2]: launches before this one; blocks at their end, 0 before and after
  int32_t capacity, stages, flying;
  bool gelu;
};

}  // namespace specdec::cuda
