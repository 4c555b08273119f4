// From a call of an exported op to its kernels' struct, by the op's signature. An exported op takes its operands in
// OpSpec order (None if absent), then its attributes as integers, then the backend's options.
//
// Python has checked the call (specdec_hal/ops/validate.py). Here it is only asserted that each tensor is what the
// signature says.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "specdec/contract.h"
#include "specdec_ffi/operands.h"
#include "specdec_ops/signature.h"

namespace specdec::ffi {

using tvm::ffi::PackedArgs;

// A bound call: the op's arguments, and the device that its tensors lie on.
struct Bound {
  std::vector<std::byte> args;
  int device;
};

namespace detail {

inline bool fits(Cell cell, DLDataType dtype) {
  switch (cell) {
    case Cell::kInt64: return dtype == dtype_of<int64_t>();
    case Cell::kInt32: return dtype == dtype_of<int32_t>();
    case Cell::kUint8: return dtype == dtype_of<uint8_t>();
    case Cell::kBool: return dtype == dtype_of<bool>();
    case Cell::kFloat32: return dtype == dtype_of<float>();
    case Cell::kFloat:  // bfloat16 may come as uint16, NumPy's stand-in
      return (dtype.code == kDLFloat && (dtype.bits == 32 || dtype.bits == 16)) ||
             (dtype.code == kDLBfloat && dtype.bits == 16) || dtype == dtype_of<uint16_t>();
    case Cell::kAny: return true;
  }
  return false;
}

inline const char* name_of(Cell cell) {
  constexpr const char* kNames[] = {"int64",    "int32", "uint8", "bool", "float32", "float32 | float16 | bfloat16",
                                    "any dtype"};
  return kNames[static_cast<int>(cell)];
}

inline FloatType float_type_of(DLDataType dtype) {
  if (dtype.code != kDLFloat) return FloatType::kBfloat16;
  return dtype.bits == 32 ? FloatType::kFloat32 : FloatType::kFloat16;
}

class Binder {
 public:
  Binder(const OpSignature& op, DLDeviceType device) : op_(op), operands_(op.name, device), args_(op.args_bytes) {
    std::fill_n(extents_, kMaxItems, kUnknown);
  }

  // `given`: operands, attributes, then `options` more.
  template <typename OnTensor>
  Bound bind(const PackedArgs& given, int options, OnTensor on_tensor) {
    const int operands = op_.operands.count, attributes = op_.attributes.count;
    TVM_FFI_ICHECK_EQ(given.size(), operands + attributes + options) << op_.name << ": call it through specdec_hal";
    for (int i = 0; i < attributes; ++i) {
      attributes_[i] = given[operands + i].cast<int64_t>();
      // Little-endian, as every machine with a device.
      std::memcpy(args_.data() + op_.attributes[i].field, &attributes_[i], op_.attributes[i].bytes);
    }
    for (int i = 0; i < operands; ++i) bind_operand(i, given[i], on_tensor);
    for (int i = 0; i < op_.symbols.count; ++i) store(op_.symbols[i].field, std::max<int64_t>(extents_[i], 0));
    return {std::move(args_), operands_.device_index()};
  }

 private:
  static constexpr int64_t kUnknown = -1;

  template <typename T>
  void store(size_t field, const T& value) {
    std::memcpy(args_.data() + field, &value, sizeof value);
  }

  template <typename OnTensor>
  void bind_operand(int i, tvm::ffi::AnyView given, OnTensor& on_tensor) {
    const OperandInfo& info = op_.operands[i];
    if (given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) return store<void*>(info.field, nullptr);
    const auto x = given.cast<TensorView>();
    const bool other = info.shape_by != kNone && attributes_[info.shape_by] != 0;
    const Shape& shape = other ? info.other_shape : info.shape;
    int64_t extents[kMaxRank];
    for (int axis = 0; axis < shape.rank; ++axis) {
      const auto [symbol, offset] = shape.extents[axis];
      extents[axis] = offset;
      if (symbol == kNone) continue;
      // From the first operand that has it.
      if (extents_[symbol] == kUnknown) extents_[symbol] = Operands::extent(x, axis) - offset;
      extents[axis] += extents_[symbol];
    }
    const bool dtype_fits = info.model == kNone ? fits(info.cell, x.dtype()) : x.dtype() == dtypes_[info.model];
    void* const data = operands_.checked(info.name, x, dtype_fits, extents, shape.rank, [&] {
      return info.model == kNone ? std::string(name_of(info.cell)) : ffi::name_of(dtypes_[info.model]);
    });
    dtypes_[i] = x.dtype();
    store(info.field, data);
    if (info.cell == Cell::kFloat && info.model == kNone) store(info.extra, float_type_of(x.dtype()));
    if (info.cell == Cell::kAny && info.model == kNone) {
      int64_t bytes = x.dtype().bits / 8;
      for (int axis = 1; axis < shape.rank; ++axis) bytes *= extents[axis];
      store(info.extra, bytes);
    }
    on_tensor(info, x, data);
  }

  const OpSignature& op_;
  Operands operands_;
  std::vector<std::byte> args_;
  int64_t attributes_[kMaxItems], extents_[kMaxItems];
  DLDataType dtypes_[kMaxItems];
};

}  // namespace detail

// Binds a call with operands on devices of that kind. `options`: number of backend arguments after the attributes.
// on_tensor(info, tensor, address) is called for every present operand.
template <typename OnTensor>
Bound bind(const OpSignature& op, const PackedArgs& given, int options, DLDeviceType device, OnTensor on_tensor) {
  return detail::Binder(op, device).bind(given, options, on_tensor);
}

// The limits on the op's own symbols, by name.
inline tvm::ffi::Map<tvm::ffi::String, int64_t> limits_of(const OpSignature& op, List<Limit> limits) {
  tvm::ffi::Map<tvm::ffi::String, int64_t> map;
  for (const Limit& limit : limits) {
    for (const SymbolInfo& symbol : op.symbols) {
      if (std::strcmp(limit.symbol, symbol.name) == 0) map.Set(limit.symbol, limit.most);
    }
  }
  return map;
}

}  // namespace specdec::ffi
