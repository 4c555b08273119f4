// What every export shares: checked data pointers of tensors, the launch options, and a plan to return.
//
// An export is a function named as its op. Its arguments are the op's operands in OpSpec order (Optional<TensorView>
// where an operand may be absent), its attributes in OpSpec order as integers, then the launch options: clusters, cores,
// seed, dma, workers. It checks, prepares, and returns a plan: a function of the stream (an integer; a simulated device
// has one) that launches. A plan keeps pointers, not tensors: the caller keeps those alive, as specdec_hal's BoundOp does.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "../ops/launch_options.h"

namespace specdec::xpu::ffi {

using tvm::ffi::Function;
using tvm::ffi::Optional;
using tvm::ffi::TensorView;

// 16-bit floats as they stand in memory; the tag says which.
enum class FloatType : int { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

template <typename T>
DLDataType dtype_of() {
  constexpr uint8_t bits = sizeof(T) * 8;
  if constexpr (std::is_same_v<T, bool>) return {kDLBool, bits, 1};
  if constexpr (std::is_floating_point_v<T>) return {kDLFloat, bits, 1};
  if constexpr (std::is_signed_v<T>) return {kDLInt, bits, 1};
  return {kDLUInt, bits, 1};
}

// The tensors of one call. Every accessor throws a ValueError that names op, argument, what was expected and what came.
class Operands {
 public:
  explicit Operands(const char* op) : op_(op) {}

  // Extent of one axis, which a later check takes as given.
  int64_t extent(const char* argument, const TensorView& x, int axis) const {
    if (axis >= x.ndim()) fail(argument, "rank > " + std::to_string(axis), x);
    return x.shape()[axis];
  }

  // Data of a contiguous CPU tensor of exactly this dtype and shape.
  template <typename T>
  T* data(const char* argument, const TensorView& x, std::initializer_list<int64_t> shape) const {
    if (x.dtype() != dtype_of<T>()) fail(argument, describe(dtype_of<T>(), shape), x);
    return static_cast<T*>(checked(argument, x, shape, describe(dtype_of<T>(), shape)));
  }

  // Null if absent.
  template <typename T>
  T* data(const char* argument, const Optional<TensorView>& x, std::initializer_list<int64_t> shape) const {
    return x.has_value() ? data<T>(argument, x.value(), shape) : nullptr;
  }

  // Data of a float tensor of any width; bfloat16 may come as uint16, NumPy's stand-in.
  void* float_data(const char* argument, const TensorView& x, std::initializer_list<int64_t> shape,
                   FloatType* type) const {
    const DLDataType got = x.dtype();
    const std::string expected = "float32 | float16 | bfloat16 " + list(shape);
    if (got == DLDataType{kDLFloat, 32, 1}) {
      *type = FloatType::kFloat32;
    } else if (got == DLDataType{kDLFloat, 16, 1}) {
      *type = FloatType::kFloat16;
    } else if (got == DLDataType{kDLBfloat, 16, 1} || got == DLDataType{kDLUInt, 16, 1}) {
      *type = FloatType::kBfloat16;
    } else {
      fail(argument, expected, x);
    }
    return checked(argument, x, shape, expected);
  }

  // Data of a tensor whose elements are only moved.
  void* bytes(const char* argument, const TensorView& x, std::initializer_list<int64_t> shape) const {
    return checked(argument, x, shape, "any dtype " + list(shape));
  }

  [[noreturn]] void fail(const char* argument, const std::string& expected, const TensorView& x) const {
    TVM_FFI_THROW(ValueError) << op_ << " [xpu_sim]: argument '" << argument << "': expected contiguous " << expected
                              << " on the CPU, got " << tvm::ffi::DLDataTypeToString(x.dtype()) << " "
                              << list(x.shape().begin(), x.shape().end()) << (x.IsContiguous() ? "" : ", not contiguous")
                              << (x.device().device_type == kDLCPU ? "" : ", on a device") << "; call it through specdec_hal";
    std::abort();  // not reached: the macro throws
  }

 private:
  void* checked(const char* argument, const TensorView& x, std::initializer_list<int64_t> shape,
                const std::string& expected) const {
    bool fits = x.device().device_type == kDLCPU && x.ndim() == static_cast<int>(shape.size()) && x.IsContiguous();
    for (int i = 0; fits && i < x.ndim(); ++i) fits = x.shape()[i] == shape.begin()[i];
    if (!fits) fail(argument, expected, x);
    return x.data_ptr();
  }

  template <typename Iterator>
  static std::string list(Iterator begin, Iterator end) {
    std::ostringstream out;
    out << "[";
    for (Iterator i = begin; i != end; ++i) out << (i == begin ? "" : ", ") << *i;
    out << "]";
    return out.str();
  }
  static std::string list(std::initializer_list<int64_t> shape) { return list(shape.begin(), shape.end()); }
  static std::string describe(DLDataType dtype, std::initializer_list<int64_t> shape) {
    return std::string(tvm::ffi::DLDataTypeToString(dtype)) + " " + list(shape);
  }

  const char* op_;
};

// A plan: `launch` is called with no arguments at every call of the plan.
template <typename Launch>
Function plan(Launch launch) {
  return Function::FromTyped([launch = std::move(launch)](int64_t /*stream*/) { launch(); });
}

inline LaunchOptions launch_options(int64_t clusters, int64_t cores, int64_t seed, int64_t dma, int64_t workers) {
  LaunchOptions options;
  options.clusters = static_cast<int>(clusters);
  options.cores = static_cast<int>(cores);
  options.seed = seed;
  options.dma = static_cast<int>(dma);
  options.workers = static_cast<int>(workers);
  return options;
}

}  // namespace specdec::xpu::ffi
