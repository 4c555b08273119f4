// Checked access to the tensors of an exported function, for every library of the project.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/dtype.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <string>
#include <type_traits>

namespace specdec::ffi {

using tvm::ffi::TensorView;

template <typename Element>
constexpr DLDataType dtype_of() {
  using T = std::remove_const_t<Element>;
  constexpr uint8_t bits = sizeof(T) * 8;
  if constexpr (std::is_same_v<T, bool>) return {kDLBool, bits, 1};
  if constexpr (std::is_floating_point_v<T>) return {kDLFloat, bits, 1};
  if constexpr (std::is_signed_v<T>) return {kDLInt, bits, 1};
  return {kDLUInt, bits, 1};
}

// Not tvm-ffi's: that one throws for dtypes that it does not know.
inline std::string name_of(DLDataType dtype) {
  if (dtype.code == kDLBool && dtype.bits == 8) return "bool";
  const char* const kind = dtype.code == kDLInt       ? "int"
                           : dtype.code == kDLUInt    ? "uint"
                           : dtype.code == kDLFloat   ? "float"
                           : dtype.code == kDLBfloat  ? "bfloat"
                           : dtype.code == kDLComplex ? "complex"
                                                      : "an unknown dtype of bits ";
  return kind + std::to_string(dtype.bits) + (dtype.lanes > 1 ? "x" + std::to_string(dtype.lanes) : "");
}

// The tensors of one call: contiguous, on one device of the given kind, and of exactly the given dtype and shape.
// Otherwise a ValueError names function, argument, expected and actual value, and a hint.
class Operands {
 public:
  explicit Operands(const char* op, DLDeviceType device = kDLCPU) : op_(op), device_(device) {}

  // Index of the device that the tensors lie on; -1 before the first one.
  int device_index() const { return index_; }

  // Extent of one axis, which later checks take as given; 0 if there is no such axis.
  static int64_t extent(const TensorView& x, int axis) { return axis < x.ndim() ? x.shape()[axis] : 0; }

  template <typename T>
  T* data(const char* argument, const TensorView& x, std::initializer_list<int64_t> shape) {
    const DLDataType dtype = dtype_of<T>();
    return static_cast<T*>(checked(argument, x, x.dtype() == dtype, shape.begin(), static_cast<int>(shape.size()),
                                   [dtype] { return name_of(dtype); }));
  }

  // The address of a tensor of that shape. `dtype_fits`: whether its dtype is one of those that `dtypes()` names.
  template <typename Names>
  void* checked(const char* argument, const TensorView& x, bool dtype_fits, const int64_t* shape, int rank,
                Names dtypes) {
    const DLDevice device = x.device();
    // Hosts have one memory, whatever index a framework gives it.
    const bool here = device.device_type == device_ && (device_ == kDLCPU || index_ < 0 || index_ == device.device_id);
    // The contract takes [N, 1] wherever it declares [N].
    const bool column = rank == 1 && x.ndim() == 2 && x.shape()[1] == 1;
    bool fits = dtype_fits && here && (x.ndim() == rank || column) && x.IsContiguous();
    for (int i = 0; fits && i < rank; ++i) fits = x.shape()[i] == shape[i];
    if (!fits) refuse(argument, x, dtypes(), list(shape, rank));
    if (x.data_ptr() == nullptr && x.numel() > 0) {
      TVM_FFI_THROW(ValueError) << op_ << ": argument '" << argument
                                << "': expected memory, got a null address; its memory was freed: allocate it again";
    }
    index_ = device.device_id;
    // An empty tensor may have no memory, but is not missing.
    static char nothing;
    return x.data_ptr() == nullptr ? &nothing : x.data_ptr();
  }

 private:
  [[noreturn]] void refuse(const char* argument, const TensorView& x, const std::string& dtypes,
                           const std::string& shape) const {
    const DLDevice device = x.device();
    TVM_FFI_THROW(ValueError) << op_ << ": argument '" << argument << "': expected " << dtypes << " " << shape
                              << " contiguous on " << device_text(device_, index_) << ", got " << name_of(x.dtype())
                              << " " << list(x.shape().data(), x.ndim())
                              << (x.IsContiguous() ? " contiguous on " : " not contiguous on ")
                              << device_text(device.device_type, device.device_id)
                              << (device_ == kDLCPU ? "; pass a NumPy array made with np.ascontiguousarray(x, dtype)"
                                                    : "; pass a contiguous tensor of that dtype on that device");
    TVM_FFI_UNREACHABLE();
  }

  static std::string device_text(DLDeviceType type, int index) {
    if (type == kDLCPU) return "the CPU";
    const std::string name = type == kDLCUDA ? "cuda" : "device type " + std::to_string(static_cast<int>(type));
    return index < 0 ? name : name + ":" + std::to_string(index);
  }

  static std::string list(const int64_t* shape, int rank) {
    std::ostringstream out;
    for (int i = 0; i < rank; ++i) out << (i ? ", " : "[") << shape[i];
    out << (rank ? "]" : "[]");
    return out.str();
  }

  const char* op_;
  DLDeviceType device_;
  int index_ = -1;
};

}  // namespace specdec::ffi
