// From a call of an exported op to its kernels' struct, by the op's signature. An exported op takes its operands in
// OpSpec order (None if absent), then its attributes as integers, then the backend's options.
#pragma once

#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "specdec/contract.h"
#include "specdec_ffi/operands.h"
#include "specdec_ops/signature.h"

namespace specdec::ffi {

using tvm::ffi::PackedArgs;

// A call that was checked: the op's arguments, and the device that its tensors lie on.
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
  Binder(const OpSignature& op, List<Limit> limits, DLDeviceType device)
      : op_(op), limits_(limits), operands_(op.name, device), args_(op.args_bytes) {}

  // `given`: operands, attributes, then `options` more.
  template <typename OnTensor>
  Bound bind(const PackedArgs& given, int options, OnTensor on_tensor) {
    const int operands = op_.operands.count, attributes = op_.attributes.count;
    if (given.size() != operands + attributes + options) {
      TVM_FFI_THROW(TypeError) << op_.name << ": expected " << operands << " tensors, " << attributes
                               << " attributes and " << options << " options, got " << given.size()
                               << " arguments; call it through specdec_hal";
    }
    for (int i = 0; i < attributes; ++i) bind_attribute(i, given[operands + i]);
    for (const Order& order : op_.attribute_orders) require_order(order);
    for (int i = 0; i < op_.symbols.count; ++i) bound_by_[i] = nullptr;
    for (int i = 0; i < operands; ++i) bind_operand(i, given[i], on_tensor);
    for (int i = 0; i < op_.symbols.count; ++i) store(op_.symbols[i].field, extents_[i]);
    return {std::move(args_), operands_.device_index()};
  }

 private:
  template <typename T>
  void store(size_t field, const T& value) {
    std::memcpy(args_.data() + field, &value, sizeof value);
  }

  void bind_attribute(int i, tvm::ffi::AnyView given) {
    const AttributeInfo& info = op_.attributes[i];
    const auto value = given.try_cast<int64_t>();
    if (!value.has_value() || *value < info.least || *value > info.most) {
      TVM_FFI_THROW(ValueError) << op_.name << ": attribute '" << info.name << "': expected an integer in ["
                                << info.least << ", " << info.most << "], got "
                                << (value.has_value() ? std::to_string(*value) : given.GetTypeKey())
                                << "; call it through specdec_hal";
    }
    attributes_[i] = *value;
    std::memcpy(args_.data() + info.field, &*value, info.bytes);  // little-endian, as every machine with a device
  }

  void require_order(const Order& order) const {
    if (attributes_[order.left] <= attributes_[order.right]) return;
    const char *left = op_.attributes[order.left].name, *right = op_.attributes[order.right].name;
    TVM_FFI_THROW(ValueError) << op_.name << ": attribute '" << left << "': expected " << left << " <= " << right
                              << ", got " << attributes_[order.left] << " and " << attributes_[order.right]
                              << "; make them agree";
  }

  template <typename OnTensor>
  void bind_operand(int i, tvm::ffi::AnyView given, OnTensor& on_tensor) {
    const OperandInfo& info = op_.operands[i];
    const bool wanted = info.when == kNone || (info.values >> attributes_[info.when] & 1) != 0;
    if (given.type_index() == tvm::ffi::TypeIndex::kTVMFFINone) {
      if (wanted && !info.optional) refuse(info, "a tensor", "none", "pass it, or change the attributes");
      return store<void*>(info.field, nullptr);
    }
    if (!wanted) refuse(info, "none for these attributes", "a tensor", "leave it out, or change the attributes");
    const auto tensor = given.try_cast<TensorView>();
    if (!tensor.has_value()) refuse(info, "a tensor", given.GetTypeKey(), "pass a tensor");
    const TensorView& x = *tensor;

    const bool other = info.shape_by != kNone && attributes_[info.shape_by] != 0;
    const Shape& shape = other ? info.other_shape : info.shape;
    int64_t extents[kMaxRank];
    for (int axis = 0; axis < shape.rank; ++axis) {
      const Extent& extent = shape.extents[axis];
      extents[axis] = extent.offset;
      if (extent.symbol == kNone) continue;
      if (bound_by_[extent.symbol] == nullptr) bind_symbol(extent, info, Operands::extent(x, axis));
      extents[axis] += extents_[extent.symbol];
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

  // From the first operand that has it.
  void bind_symbol(const Extent& extent, const OperandInfo& operand, int64_t found) {
    const SymbolInfo& symbol = op_.symbols[extent.symbol];
    const int64_t value = found - extent.offset;
    int64_t most = symbol.most;
    for (const Limit& limit : limits_) {
      if (std::strcmp(limit.symbol, symbol.name) == 0 && limit.most < most) most = limit.most;
    }
    if (value < symbol.least) within(operand, symbol, ">=", symbol.least, value);
    if (value > most) within(operand, symbol, "<=", most, value);
    extents_[extent.symbol] = value;
    bound_by_[extent.symbol] = &operand;
    for (const Order& order : op_.symbol_orders) {
      const OperandInfo *left = bound_by_[order.left], *right = bound_by_[order.right];
      if (left == nullptr || right == nullptr || extents_[order.left] <= extents_[order.right]) continue;
      within(*left, op_.symbols[order.left], "<=", extents_[order.right], extents_[order.left]);
    }
  }

  [[noreturn]] void within(const OperandInfo& operand, const SymbolInfo& symbol, const char* relation, int64_t bound,
                           int64_t got) const {
    refuse(operand, std::string(symbol.name) + " " + relation + " " + std::to_string(bound), std::to_string(got),
           got < bound ? "pass larger tensors" : "pass smaller tensors");
  }

  [[noreturn]] void refuse(const OperandInfo& operand, const std::string& expected, const std::string& got,
                           const char* hint) const {
    TVM_FFI_THROW(ValueError) << op_.name << ": argument '" << operand.name << "': expected " << expected << ", got "
                              << got << "; " << hint;
    TVM_FFI_UNREACHABLE();
  }

  const OpSignature& op_;
  const List<Limit> limits_;
  Operands operands_;
  std::vector<std::byte> args_;
  int64_t attributes_[kMaxItems], extents_[kMaxItems] = {};
  const OperandInfo* bound_by_[kMaxItems];
  DLDataType dtypes_[kMaxItems];
};

}  // namespace detail

// Checks and binds a call with operands on devices of that kind. `options`: number of backend arguments after the
// attributes. on_tensor(info, tensor, address) is called for every present operand.
template <typename OnTensor>
Bound bind(const OpSignature& op, List<Limit> limits, const PackedArgs& given, int options, DLDeviceType device,
           OnTensor on_tensor) {
  return detail::Binder(op, limits, device).bind(given, options, on_tensor);
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
