// An op's signature as data. The other headers of this folder are generated from the OpSpecs: each has a struct of an
// op's arguments and an OpSignature, by which specdec_ffi/bind.h stores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace specdec {

template <typename T>
struct List {
  constexpr List() = default;
  template <size_t N>
  constexpr List(const T (&items)[N]) : first(items), count(static_cast<int>(N)) {}

  constexpr const T* begin() const { return first; }
  constexpr const T* end() const { return first + count; }
  constexpr const T& operator[](int i) const { return first[i]; }

  const T* first = nullptr;
  int count = 0;
};

// The largest extent of a symbol that a backend takes.
struct Limit {
  const char* symbol;
  int64_t most;
};

constexpr int kNone = -1;
constexpr int kMaxRank = 5;
constexpr int kMaxItems = 32;  // symbols, operands or attributes of an op

// An extent of a shape: the symbol of that index (kNone: none) plus a number.
struct Extent {
  int symbol = kNone;
  int64_t offset = 0;
};

struct Shape {
  constexpr Shape(std::initializer_list<Extent> list) {
    for (const Extent& extent : list) extents[rank++] = extent;
  }

  int rank = 0;
  Extent extents[kMaxRank] = {};
};

// A symbol's extent goes to the arguments at `field`, as an int64_t.
struct SymbolInfo {
  const char* name;
  size_t field;
};

// kFloat: any of FloatType. kAny: elements that are only moved.
enum class Cell { kInt64, kInt32, kUint8, kBool, kFloat32, kFloat, kAny };

enum class Access { kRead, kWrite };

// A tensor, whose address goes to `field`.
struct OperandInfo {
  const char* name;
  Cell cell;
  Access access;
  size_t field;
  Shape shape;
  int shape_by = kNone;  // index of the attribute that, unless it is 0, makes the shape `other_shape`
  Shape other_shape = {};
  int model = kNone;  // index of the operand whose dtype this one must have
  size_t extra = 0;  // kFloat: where its FloatType goes; kAny without a model: where its bytes a row go

  constexpr OperandInfo shaped(int attribute, Shape otherwise) const {
    OperandInfo info = *this;
    info.shape_by = attribute;
    info.other_shape = otherwise;
    return info;
  }
  constexpr OperandInfo like(int operand) const {
    OperandInfo info = *this;
    info.model = operand;
    return info;
  }
  constexpr OperandInfo with(size_t where) const {
    OperandInfo info = *this;
    info.extra = where;
    return info;
  }
};

// An integer, which goes to `field` in so many bytes.
struct AttributeInfo {
  const char* name;
  size_t field, bytes;
};

struct OpSignature {
  const char* name;
  List<SymbolInfo> symbols;
  List<OperandInfo> operands;
  List<AttributeInfo> attributes;
  size_t args_bytes;

  constexpr bool has_room() const {
    return symbols.count <= kMaxItems && operands.count <= kMaxItems && attributes.count <= kMaxItems;
  }
};

// An OpSignature that knows the type of its arguments.
template <typename A>
struct OpOf : OpSignature {
  using Args = A;
};

}  // namespace specdec

// Exports an op to tvm-ffi: the function of that name in the backend's namespace, with its `bind_op` and `Context` (a
// launch's options). `<op>_limits` returns `limits`, a List<Limit>. The addresses are tvm-ffi's: of a call's arguments
// (TVMFFIAny), and of its result.
#define SPECDEC_OP(op, limits)                                                                                        \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##op(void*, const void* given, int count,           \
                                                                       void* plan) {                                  \
    static_assert(specdec::op##_signature.has_room(), "raise kMaxItems");                                             \
    using Args = decltype(specdec::op##_signature)::Args;                                                             \
    constexpr auto launch = [](const void* args, Context context) { op(*static_cast<const Args*>(args), context); };  \
    return bind_op(specdec::op##_signature, launch, given, count, plan);                                              \
  }                                                                                                                   \
  extern "C" __attribute__((visibility("default"))) int __tvm_ffi_##op##_limits(void*, const void*, int, void* map) { \
    return list_limits(specdec::op##_signature, limits, map);                                                         \
  }
