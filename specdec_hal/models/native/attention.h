// Attention of the rows of a step to the KV caches of their slots, on a CPU, in float32.
//
// The cache of a layer starts at a multiple of 64 bytes and is made of blocks of kBlockKeys positions, [blocks,
// kv_heads, 2, kBlockKeys * padded_dim]. First come the keys, [head_dim, kBlockKeys], so that scores are computed for
// neighbouring keys at once, then the values, [kBlockKeys, padded_dim]. All heads of some positions lie together, so
// that a cache grows at its end.
//
// A row's result depends on its query and on the keys and values up to its own position, and on nothing else, bit for
// bit. Blocks begin at fixed positions, sums go through keys and dimensions one after the other, and what a row does
// not see is never added to it. Instruction sets differ in how many lanes a sum of weights has, and so in bits.
#pragma once

#include <cstdint>

namespace specdec::attention {

constexpr int kBlockKeys = 64;
constexpr int kPad = 16;  // head_dim is padded in values to a multiple of it
constexpr int kQueries = 32;  // of a task

// Rows `row`, `row` + 1, ... of a step, at positions `position`, `position` + 1, ... of a slot.
struct Span {
  int64_t row, length, position;
  float* cache;
};

struct Call {
  const float* qkv;  // [rows, width]: queries, keys, values
  const float* rotary;  // [positions, head_dim]: complex factors for neighbouring pairs; null: qkv has been rotated
  float* out;  // [rows, heads * head_dim]
  int64_t width;
  int64_t heads, kv_heads, head_dim;
  float scale = 1.0f;  // of scores
  int64_t window = 0;  // a query sees so many keys, itself included; 0: all up to itself
  float softcap = 0.0f;  // scores become softcap * tanh(score / softcap); 0: they stay
  const float* sinks = nullptr;  // [heads]: a score each without a value, in the softmax's sum; null: none
  const float* bias =
      nullptr;  // [heads, biased]: added to scores by key, less that of the query's position; null: none
  int64_t biased = 0;  // a multiple of kBlockKeys

  int64_t group() const { return heads / kv_heads; }
  int64_t padded_dim() const { return (head_dim + kPad - 1) / kPad * kPad; }
  int64_t half_block() const { return kBlockKeys * padded_dim(); }
  // Floats that attend() needs for itself, at a multiple of 64 bytes.
  int64_t scratch() const { return kQueries * 2 * padded_dim(); }
};

// One instruction set's code.
struct Kernels {
  // Writes keys and values of a span into its cache.
  void (*store)(const Call& call, const Span& span);
  // Queries first .. last - 1 of those that a span has for a KV head, token by token; at most kQueries. All that they
  // see has been stored.
  void (*attend)(const Call& call, const Span& span, int64_t kv_head, int64_t first, int64_t last, float* scratch);
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512;
#endif

}  // namespace specdec::attention
