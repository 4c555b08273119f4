// Attention of a whole step in one call, with a suitable number of threads.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "../../../kernels_cpu/threads.h"
#include "attention.h"
#include "sets.h"
#include "specdec_ffi/operands.h"

namespace {

using specdec::attention::Call;
using specdec::attention::kBlockKeys;
using specdec::attention::Kernels;
using specdec::attention::kQueries;
using specdec::attention::Span;
using tvm::ffi::TensorView;

// Keys read, times dimensions, times queries that read them and kReading for fetching them: a step below it, of some
// 50 us, is done before another thread has woken up.
constexpr int64_t kWorthWaking = 3 << 20, kReading = 6;

constexpr const Kernels* kSets[] = {&specdec::attention::kPortable,
#if defined(__x86_64__)
                                    &specdec::attention::kAvx2, &specdec::attention::kAvx512
#endif
};

struct Task {
  const Span* span;
  int64_t kv_head, first, last;
};

// The tasks of a step; each thread takes the next one.
class Attention final : public specdec::Job {
 public:
  Attention(const Kernels& kernels, const Call& call, const std::vector<Task>& tasks)
      : kernels_(kernels), call_(call), tasks_(tasks) {}

  void run() override {
    struct alignas(64) Line {
      float at[16];
    };
    thread_local std::vector<Line> scratch;
    scratch.resize(static_cast<size_t>(call_.scratch()) / 16);
    for (size_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_.size();) {
      const Task& task = tasks_[i];
      kernels_.attend(call_, *task.span, task.kv_head, task.first, task.last, scratch.data()->at);
    }
  }

 private:
  const Kernels& kernels_;
  const Call& call_;
  const std::vector<Task>& tasks_;
  std::atomic<size_t> next_{0};
};

// qkv float32 [R, W], rotary float32 [P, D] or [0, D] for qkv that has been rotated, out float32 [R, H * D], sinks
// float32 [H] or [0], bias float32 [H, B] or [0, 0]. Spans int64 [N, 5]: row, length, position, address of a cache
// [layers, blocks, kv_heads, 2, 64 * padded D], positions that it has room for. `scale`, `window`, `softcap`, `bias`:
// see Call. `stores`: whether keys and values are written to the cache, else only queries are read. `set`: see sets.h.
void attention(TensorView qkv, TensorView rotary, TensorView spans, int64_t layer, int64_t heads, int64_t kv_heads,
               double scale, int64_t window, double softcap, TensorView sinks, TensorView bias, bool stores,
               int64_t threads, int64_t set, TensorView out) {
  specdec::ffi::Operands operands("attention");
  const int64_t rows = operands.extent(qkv, 0), width = operands.extent(qkv, 1);
  const int64_t positions = operands.extent(rotary, 0), dim = operands.extent(rotary, 1);
  const int64_t count = operands.extent(spans, 0), sinking = operands.extent(sinks, 0);
  const float* const factors = operands.data<float>("rotary", rotary, {positions, dim});
  const float* const sunk = operands.data<float>("sinks", sinks, {sinking == 0 ? 0 : heads});
  const int64_t biased = operands.extent(bias, 1);
  const float* const added = operands.data<float>("bias", bias, {biased == 0 ? 0 : heads, biased});
  const Call call{operands.data<float>("qkv", qkv, {rows, width}),
                  positions == 0 ? nullptr : factors,
                  operands.data<float>("out", out, {rows, heads * dim}),
                  width,
                  heads,
                  kv_heads,
                  dim,
                  static_cast<float>(scale),
                  window,
                  static_cast<float>(softcap),
                  sinking == 0 ? nullptr : sunk,
                  biased == 0 ? nullptr : added,
                  biased};
  const int64_t* const given = operands.data<int64_t>("spans", spans, {count, 5});
  if (kv_heads < 1 || heads % kv_heads || (positions > 0 && dim % 2) || width < (heads + 2 * kv_heads) * dim) {
    TVM_FFI_THROW(ValueError) << "attention: argument 'heads': expected a multiple of kv_heads that fits rows of width "
                              << width << " and an even head_dim, got " << heads << ", " << kv_heads << ", " << dim;
  }
  if (window < 0 || !(softcap >= 0)) {
    TVM_FFI_THROW(ValueError) << "attention: argument 'window': expected a window and a softcap >= 0, got " << window
                              << " and " << softcap;
  }
  const Kernels& kernels = *kSets[specdec::checked_set("attention", set)];
  std::vector<Span> found;
  std::vector<Task> tasks;
  found.reserve(static_cast<size_t>(count));
  int64_t done = 0, work = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t* const s = given + 5 * i;
    int64_t room = positions == 0 ? s[4] : std::min(s[4], positions);
    if (biased > 0) room = std::min(room, biased / kBlockKeys * kBlockKeys);
    if (s[0] < done || s[1] < 1 || s[0] + s[1] > rows || s[2] < 0 || s[2] + s[1] > room || s[3] == 0) {
      TVM_FFI_THROW(ValueError) << "attention: argument 'spans': expected rows " << done << ".." << rows
                                << " in order and positions below " << room << ", got row " << s[0] << ", length "
                                << s[1] << ", position " << s[2] << " at " << i;
    }
    done = s[0] + s[1];
    float* const cache = reinterpret_cast<float*>(s[3]);  // NOLINT(performance-no-int-to-ptr)
    found.push_back({s[0], s[1], s[2], cache + layer * (s[4] / kBlockKeys) * kv_heads * 2 * call.half_block()});
    const Span& span = found.back();
    if (stores) {
      kernels.store(call, span);
    }
    for (int64_t h = 0; h < kv_heads; ++h) {
      const int64_t queries = span.length * call.group();
      for (int64_t first = 0; first < queries; first += kQueries) {
        tasks.push_back({&span, h, first, std::min(first + kQueries, queries)});
      }
    }
    const int64_t keys = window > 0 ? std::min(span.position, window) : span.position;
    work += kv_heads * (keys + span.length) * dim * 2 * (span.length * call.group() + kReading);
  }
  std::memset(call.out + done * heads * dim, 0, static_cast<size_t>((rows - done) * heads * dim) * sizeof(float));
  Attention job(kernels, call, tasks);
  specdec::share(work < kWorthWaking ? 1 : std::min(threads, static_cast<int64_t>(tasks.size())), &job);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(attention, attention)

// Positions stored together in a cache.
int64_t attention_block() { return kBlockKeys; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(attention_block, attention_block)

// Floats of such a block, of keys and values of one KV head.
int64_t attention_block_size(int64_t head_dim) {
  const Call call{nullptr, nullptr, nullptr, 0, 1, 1, head_dim};
  return 2 * call.half_block();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(attention_block_size, attention_block_size)

}  // namespace
