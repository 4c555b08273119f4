// What every export shares: the operands as global memory, the launch options, and the plan it returns.
//
// An export is a function named as its op. Its arguments are the op's operands in OpSpec order (Optional<TensorView>
// where an operand may be absent), its attributes in OpSpec order as integers, then the launch options: clusters, cores,
// seed, dma, workers. It checks, prepares, and returns a plan: a function of the stream (an integer; the simulated device
// has one stream) that launches. A plan keeps pointers, not tensors: the caller keeps those alive, as specdec_hal's
// BoundOp does.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "../ops/launch.h"
#include "specdec_ffi/operands.h"

namespace specdec::xpu::ffi {

using specdec::ffi::FloatType;
using specdec::ffi::Optional;
using specdec::ffi::TensorView;
using tvm::ffi::Function;

// An index of 16 histories of 131,072 tokens takes 2 s to build, and 10 to 20 times that with every check.
constexpr double kWatchdogSeconds = 300;

// The operands of one call. What is taken as `const T` is global memory that kernels may only read.
class GmOperands {
 public:
  explicit GmOperands(const char* op) : op_(op), check_(op) {}

  int64_t extent(const TensorView& x, int axis) const { return check_.extent(x, axis); }

  template <typename T>
  T* data(const char* argument, const TensorView& x, specdec::ffi::Operands::Shape shape) {
    return add<T>(argument, x, check_.data<T>(argument, x, shape));
  }
  template <typename T>
  T* data(const char* argument, const Optional<TensorView>& x, specdec::ffi::Operands::Shape shape) {
    return x.has_value() ? data<T>(argument, x.value(), shape) : nullptr;
  }

  // Floats of any width: T is void or const void.
  template <typename T>
  T* floats(const char* argument, const TensorView& x, specdec::ffi::Operands::Shape shape, FloatType* type) {
    return add<T>(argument, x, check_.floats(argument, x, shape, type));
  }

  // Elements that are only moved: T is char or const char.
  template <typename T>
  T* bytes(const char* argument, const TensorView& x, specdec::ffi::Operands::Shape shape) {
    return add<T>(argument, x, check_.bytes(argument, x, shape));
  }
  // The same, of the dtype of another operand.
  template <typename T>
  T* bytes_like(const char* argument, const TensorView& x, specdec::ffi::Operands::Shape shape,
                const TensorView& model) {
    return add<T>(argument, x, check_.bytes_like(argument, x, shape, model));
  }

  // A function of the stream that calls launch(options).
  template <typename Launch>
  Function plan(Launch launch, int64_t clusters, int64_t cores, int64_t seed, int64_t dma, int64_t workers) const {
    LaunchOptions options;
    options.clusters = static_cast<int>(clusters);
    options.cores = static_cast<int>(cores);
    options.sim.seed = static_cast<uint64_t>(seed);
    options.sim.dma = static_cast<xpu_sim::DmaPolicy>(dma);
    options.sim.workers = static_cast<int>(workers);
    options.sim.watchdog_seconds = kWatchdogSeconds;
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
  const specdec::ffi::Operands check_;
  std::vector<xpu_sim::GmSpan> spans_;
};

}  // namespace specdec::xpu::ffi

// The last parameters of every export, and their hand-over to GmOperands::plan.
#define SPECDEC_XPU_OPTIONS int64_t clusters, int64_t cores, int64_t seed, int64_t dma, int64_t workers
#define SPECDEC_XPU_PLAN(operands, ...) \
  operands.plan([=](const LaunchOptions& options) { __VA_ARGS__; }, clusters, cores, seed, dma, workers)
