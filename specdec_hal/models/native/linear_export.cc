// Products with weights in one call, with a suitable number of threads.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "../../../kernels_cpu/threads.h"
#include "linear.h"
#include "sets.h"
#include "specdec_ffi/operands.h"

namespace {

using specdec::linear::Call;
using specdec::linear::Kernels;
using specdec::linear::kPanel;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

// Rows of a task. A multiple of the rows that kernels work on together.
constexpr int64_t kTaskRows = 96;
// Floats of a weight times rows, per thread.
constexpr int64_t kThreadShare = 32 << 10;

constexpr const Kernels* kSets[] = {&specdec::linear::kPortable,
#if defined(__x86_64__)
                                    &specdec::linear::kAvx2, &specdec::linear::kAvx512
#endif
};

// Each thread takes the next panel, or part of its rows.
class Linear final : public specdec::Job {
 public:
  Linear(const Kernels& kernels, const Call& call) : kernels_(kernels), call_(call) {}

  int64_t tasks() const { return call_.panels() * parts_; }

  void run() override {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < tasks();) {
      const int64_t first = i % parts_ * kTaskRows;
      kernels_.multiply(call_, i / parts_, first, std::min(first + kTaskRows, call_.rows));
    }
  }

 private:
  const Kernels& kernels_;
  const Call& call_;
  const int64_t parts_ = (call_.rows + kTaskRows - 1) / kTaskRows;
  std::atomic<int64_t> next_{0};
};

// Float32 tensors [.., N], whose leading extents are those of `like`.
class Rows {
 public:
  Rows(const char* function, const TensorView& like)
      : operands(function), shape_(like.shape().begin(), like.shape().end()) {
    if (shape_.empty()) TVM_FFI_THROW(ValueError) << function << ": argument 'x': expected [.., K], got a scalar";
    for (size_t i = 0; i + 1 < shape_.size(); ++i) count *= shape_[i];
  }

  float* data(const char* argument, const TensorView& tensor, int64_t width) {
    shape_.back() = width;
    const bool fits = tensor.dtype() == specdec::ffi::dtype_of<float>();
    return static_cast<float*>(operands.checked(argument, tensor, fits, shape_.data(), static_cast<int>(shape_.size()),
                                                [] { return "float32"; }));
  }

  specdec::ffi::Operands operands;
  int64_t count = 1;

 private:
  std::vector<int64_t> shape_;
};

int64_t last_extent(const TensorView& x) { return specdec::ffi::Operands::extent(x, x.ndim() - 1); }

// x float32 [.., K], weight float32 [P, K, 32] (see linear.h), bias float32 [N], residual and out float32 [.., N], the
// same tensor or two. `set`: see sets.h.
void linear(TensorView x, TensorView weight, Optional<TensorView> bias, Optional<TensorView> residual, int64_t threads,
            int64_t set, TensorView out) {
  const Kernels& kernels = *kSets[specdec::checked_set("linear", set)];
  Rows rows("linear", x);
  Call call{};
  call.rows = rows.count, call.inputs = last_extent(x), call.outputs = last_extent(out);
  call.x = rows.data("x", x, call.inputs);
  call.weight = rows.operands.data<float>("weight", weight, {call.panels(), call.inputs, kPanel});
  if (bias.has_value()) call.bias = rows.operands.data<float>("bias", *bias, {call.outputs});
  if (residual.has_value()) call.residual = rows.data("residual", *residual, call.outputs);
  call.out = rows.data("out", out, call.outputs);
  Linear job(kernels, call);
  const int64_t useful = call.rows * call.inputs * call.outputs / kThreadShare;
  specdec::share(std::min({threads, job.tasks(), useful}), &job);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear, linear)

int64_t linear_panel() { return kPanel; }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(linear_panel, linear_panel)

// x and out float32 [.., N], weight float32 [N]: RMSNorm over the last dimension, on this thread.
void rms_norm(TensorView x, TensorView weight, double epsilon, int64_t set, TensorView out) {
  const Kernels& kernels = *kSets[specdec::checked_set("rms_norm", set)];
  Rows rows("rms_norm", x);
  const int64_t width = last_extent(x);
  const float* const from = rows.data("x", x, width);
  const float* const scales = rows.operands.data<float>("weight", weight, {width});
  float* const to = rows.data("out", out, width);
  for (int64_t i = 0; i < rows.count; ++i) {
    kernels.norm(from + i * width, scales, static_cast<float>(epsilon), width, to + i * width);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, rms_norm)

}  // namespace
