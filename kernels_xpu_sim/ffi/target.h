// The simulated XPU as a target of kernels_common/exports: the operands as global memory, the launch options, the plan.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../ops/ops.h"
#include "specdec/ngram_index.h"
#include "specdec_ffi/operands.h"

namespace specdec::xpu {

// No limits of its own, but for the one of `propose`.
constexpr int64_t kMostSlots = std::numeric_limits<int64_t>::max();
constexpr int64_t kMostDraftWidth = kMostSlots, kMostHistory = kMostSlots, kMostVocabulary = kMostSlots;
constexpr int64_t kNoIndexBytes = -1;  // every index is kept
using specdec::ngram_index_bytes;

}  // namespace specdec::xpu

namespace specdec::ffi {

namespace target = specdec::xpu;
using tvm::ffi::Function;

// An index of 16 histories of 131,072 tokens takes 2 s to build, and 10 to 20 times that with every check.
constexpr double kWatchdogSeconds = 300;

// The operands of one call. What is taken as `const T` is global memory that kernels may only read.
class TargetOperands {
 public:
  explicit TargetOperands(const char* op) : op_(op), check_(op) {}

  int64_t extent(const TensorView& x, int axis) const { return check_.extent(x, axis); }
  void within(const char* argument, const char* symbol, int64_t extent, int64_t most) const {
    check_.within(argument, symbol, extent, most);
  }

  template <typename T>
  T* data(const char* argument, const TensorView& x, Operands::Shape shape) {
    return add<T>(argument, x, check_.data<T>(argument, x, shape));
  }
  template <typename T>
  T* data(const char* argument, const Optional<TensorView>& x, Operands::Shape shape) {
    return x.has_value() ? data<T>(argument, x.value(), shape) : nullptr;
  }

  // Floats of any width: T is void or const void.
  template <typename T>
  T* floats(const char* argument, const TensorView& x, Operands::Shape shape, FloatType* type) {
    return add<T>(argument, x, check_.floats(argument, x, shape, type));
  }

  // Elements that are only moved: T is char or const char.
  template <typename T>
  T* bytes(const char* argument, const TensorView& x, Operands::Shape shape) {
    return add<T>(argument, x, check_.bytes(argument, x, shape));
  }
  // The same, of the dtype of another operand.
  template <typename T>
  T* bytes_like(const char* argument, const TensorView& x, Operands::Shape shape,
                const TensorView& model) {
    return add<T>(argument, x, check_.bytes_like(argument, x, shape, model));
  }

  // A function of the stream that calls launch(options).
  template <typename Launch>
  Function plan(Launch launch, int64_t clusters, int64_t cores, int64_t seed, int64_t dma, int64_t workers,
                const tvm::ffi::String& model) const {
    xpu::LaunchOptions options;
    options.clusters = static_cast<int>(clusters);
    options.cores = static_cast<int>(cores);
    options.sim.seed = static_cast<uint64_t>(seed);
    options.sim.dma = static_cast<xpu_sim::DmaPolicy>(dma);
    options.sim.workers = static_cast<int>(workers);
    options.sim.watchdog_seconds = kWatchdogSeconds;
    const std::string wrong = xpu_sim::parse_options(model, &options.sim);
    if (!wrong.empty()) TVM_FFI_THROW(ValueError) << op_ << " [xpu_sim]: " << wrong;
    options.sim.gm_count = spans_.size();
    const auto spans = std::make_shared<const std::vector<xpu_sim::GmSpan>>(spans_);
    options.sim.gm = spans->data();
    return Function::FromTyped([op = op_, options, spans, launch = std::move(launch)](int64_t /*stream*/) {
      try {
        launch(options);
      } catch (const std::runtime_error& error) {
        TVM_FFI_THROW(RuntimeError) << op << " [xpu_sim]: " << error.what();
      }
    });
  }

 private:
  template <typename T>
  T* add(const char* argument, const TensorView& x, std::conditional_t<std::is_const_v<T>, const void*, void*> data) {
    const unsigned element = x.dtype().bits / 8;
    const size_t bytes = static_cast<size_t>(x.numel()) * element;
    if (bytes > 0) {
      const auto access = std::is_const_v<T> ? xpu_sim::GmAccess::read_only : xpu_sim::GmAccess::read_write;
      spans_.push_back({data, bytes, argument, access, element});
    }
    return static_cast<T*>(data);
  }

  const char* op_;
  const Operands check_;
  std::vector<xpu_sim::GmSpan> spans_;
};

}  // namespace specdec::ffi

// The last parameters of every export, and the plan that it returns.
#define SPECDEC_OPTIONS \
  , int64_t clusters, int64_t cores, int64_t seed, int64_t dma, int64_t workers, const tvm::ffi::String& model
#define SPECDEC_PLAN(operands, op, args)                                                                             \
  operands.plan([=](const specdec::xpu::LaunchOptions& options) { op(args, options); }, clusters, cores, seed, dma, \
                workers, model)
