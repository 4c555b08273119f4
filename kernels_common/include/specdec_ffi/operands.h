// Checked access to the tensors of an exported function, for every library of the project.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/optional.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <sstream>
#include <string>
#include <type_traits>

namespace specdec::ffi {

using tvm::ffi::Optional;
using tvm::ffi::TensorView;

// The dtypes of logits and hidden rows, numbered for kernels.
enum class FloatType : int { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

template <typename Cell>
DLDataType dtype_of() {
  using T = std::remove_const_t<Cell>;
  constexpr uint8_t bits = sizeof(T) * 8;
  if constexpr (std::is_same_v<T, bool>) return {kDLBool, bits, 1};
  if constexpr (std::is_floating_point_v<T>) return {kDLFloat, bits, 1};
  if constexpr (std::is_signed_v<T>) return {kDLInt, bits, 1};
  return {kDLUInt, bits, 1};
}

// The tensors of one call: contiguous, all on one device of the kind asked for, and of exactly the dtype and shape
// asked for. Everything else is a ValueError that names function, argument, what was expected, what came and the cure.
class Operands {
 public:
  using Shape = std::initializer_list<int64_t>;

  explicit Operands(const char* op, DLDeviceType device = kDLCPU) : op_(op), device_(device) {}

  // Index of the device that the tensors lie on; -1 before the first one.
  int device_index() const { return index_; }

  // Refuses extents beyond what the kernels are written for.
  void within(const char* argument, const char* symbol, int64_t extent, int64_t most) const {
    if (extent <= most) return;
    TVM_FFI_THROW(ValueError) << op_ << ": argument '" << argument << "': expected " << symbol << " <= " << most
                              << ", got " << extent << "; pass smaller tensors";
  }

  // Extent of one axis, which later checks take as given; 0 if there is no such axis.
  int64_t extent(const TensorView& x, int axis) const { return axis < x.ndim() ? x.shape()[axis] : 0; }

  template <typename T>
  T* data(const char* argument, const TensorView& x, Shape shape) const {
    const std::string dtype = tvm::ffi::DLDataTypeToString(dtype_of<T>());
    return static_cast<T*>(checked(argument, x, x.dtype() == dtype_of<T>(), dtype, shape));
  }

  // Null where the operand is absent.
  template <typename T>
  T* data(const char* argument, const Optional<TensorView>& x, Shape shape) const {
    return x.has_value() ? data<T>(argument, x.value(), shape) : nullptr;
  }

  // Floats of any width; bfloat16 may come as uint16, NumPy's stand-in.
  void* floats(const char* argument, const TensorView& x, Shape shape, FloatType* type) const {
    const DLDataType got = x.dtype();
    const bool wide = got == DLDataType{kDLFloat, 32, 1}, half = got == DLDataType{kDLFloat, 16, 1};
    const bool brain = got == DLDataType{kDLBfloat, 16, 1} || got == DLDataType{kDLUInt, 16, 1};
    *type = wide ? FloatType::kFloat32 : half ? FloatType::kFloat16 : FloatType::kBfloat16;
    return checked(argument, x, wide || half || brain, "float32 | float16 | bfloat16", shape);
  }

  // Elements that are only moved.
  void* bytes(const char* argument, const TensorView& x, Shape shape) const {
    return checked(argument, x, true, "any dtype", shape);
  }
  void* bytes_like(const char* argument, const TensorView& x, Shape shape, const TensorView& model) const {
    return checked(argument, x, x.dtype() == model.dtype(), tvm::ffi::DLDataTypeToString(model.dtype()), shape);
  }

 private:
  void* checked(const char* argument, const TensorView& x, bool dtype_fits, const std::string& dtype,
                Shape shape) const {
    const int ndim = static_cast<int>(shape.size());
    const DLDevice device = x.device();
    // Hosts have one memory, whatever index a framework gives it.
    const bool here = device.device_type == device_ && (device_ == kDLCPU || index_ < 0 || index_ == device.device_id);
    // The contract takes [N, 1] wherever it declares [N].
    const bool column = ndim == 1 && x.ndim() == 2 && x.shape()[1] == 1;
    bool fits = dtype_fits && here && (x.ndim() == ndim || column) && x.IsContiguous();
    for (int i = 0; fits && i < ndim; ++i) fits = x.shape()[i] == shape.begin()[i];
    if (!fits) {
      TVM_FFI_THROW(ValueError) << op_ << ": argument '" << argument << "': expected " << dtype << " "
                                << list(shape.begin(), ndim) << " contiguous on " << place(device_, index_) << ", got "
                                << tvm::ffi::DLDataTypeToString(x.dtype()) << " " << list(x.shape().data(), x.ndim())
                                << (x.IsContiguous() ? " contiguous on " : " not contiguous on ")
                                << place(device.device_type, device.device_id)
                                << (device_ == kDLCPU ? "; pass a NumPy array made with np.ascontiguousarray(x, dtype)"
                                                      : "; pass a contiguous tensor of that dtype on that device");
    }
    if (x.data_ptr() == nullptr && x.numel() > 0) {
      TVM_FFI_THROW(ValueError) << op_ << ": argument '" << argument
                                << "': expected memory, got a null address; its memory was freed: allocate it again";
    }
    index_ = device.device_id;
    return x.data_ptr();
  }

  static std::string place(DLDeviceType type, int index) {
    if (type == kDLCPU) return "the CPU";
    const std::string name = type == kDLCUDA ? "cuda" : "device type " + std::to_string(static_cast<int>(type));
    return index < 0 ? name : name + ":" + std::to_string(index);
  }

  static std::string list(const int64_t* shape, int ndim) {
    std::ostringstream out;
    for (int i = 0; i < ndim; ++i) out << (i ? ", " : "[") << shape[i];
    out << (ndim ? "]" : "[]");
    return out.str();
  }

  const char* op_;
  DLDeviceType device_;
  mutable int index_ = -1;
};

}  // namespace specdec::ffi
