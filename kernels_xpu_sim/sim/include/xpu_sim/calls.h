// Programs that call kernels and wrappers with arguments from a file: what `specdec-hal xpu test` and the fixture
// `xpu_kernel` of pytest generate. kernels_xpu_sim/specdec_hal_xpu/calls.py is the other side.
//
// Kernels are instrumented, and so would be their instantiations of the standard library, which is therefore not used
// here. For wrappers there is wrapper_calls.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "xpu_sim/kernel/types.h"
#include "xpu_sim/launch.h"

namespace xpu_sim::calls {

// Of a parameter. `element` is the size of what is pointed to, of a vector's element, or of the value.
struct Described {
  const char* kind;  // "value", "pointer" or "vector"
  const char* type;  // NumPy's name where there is one; "bytes": a structure
  size_t element;
  GmAccess access;  // of kernels to what is pointed to
};

struct Argument {
  char* bytes;  // a value, or the elements of a vector
  size_t count;  // of bytes
  void* memory;  // what a pointer points to; nullptr
};

struct Target {
  int clusters, cores;  // of a kernel
  bool cpu;  // of a wrapper: its CPU path
};

struct Entry {
  const char* name;
  const Described* parameters;
  size_t count;  // of parameters
  void (*function)();
  int (*call)(void (*function)(), const Target& target, const Argument* arguments);
};

// The program:
//   PROGRAM --signatures        the functions and their parameters, as JSON
//   PROGRAM REQUEST RESPONSE    does the calls of the one file, and writes what they left to the other
int run(const Entry* entries, size_t count, int argc, char** argv);

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_void_v<T>)
    return "void";
  else if constexpr (std::is_enum_v<T>)
    return type_name<std::underlying_type_t<T>>();
  else if constexpr (std::is_same_v<T, bool>)
    return "bool";
  else if constexpr (std::is_same_v<T, float16>)
    return "float16";
  else if constexpr (std::is_same_v<T, bfloat16>)
    return "bfloat16";
  else if constexpr (std::is_same_v<T, float>)
    return "float32";
  else if constexpr (std::is_same_v<T, double>)
    return "float64";
  else if constexpr (!std::is_integral_v<T>)
    return "bytes";
  else if constexpr (sizeof(T) == 1)
    return std::is_signed_v<T> ? "int8" : "uint8";
  else if constexpr (sizeof(T) == 2)
    return std::is_signed_v<T> ? "int16" : "uint16";
  else if constexpr (sizeof(T) == 4)
    return std::is_signed_v<T> ? "int32" : "uint32";
  else
    return std::is_signed_v<T> ? "int64" : "uint64";
}

// How a parameter is described, and made from an argument. This is for values.
template <class T>
struct Parameter {
  static_assert(std::is_trivially_copyable_v<T>, "expected parameters that are values, pointers or vectors");
  static constexpr Described described{"value", type_name<T>(), sizeof(T), GmAccess::read_write};

  static T make(const Argument& a) {
    T value;
    std::memcpy(&value, a.bytes, sizeof value);
    return value;
  }
};

template <class T>
struct Parameter<T*> {
  static constexpr Described described{"pointer", type_name<std::remove_cv_t<T>>(),
                                       sizeof(std::conditional_t<std::is_void_v<T>, char, T>),
                                       std::is_const_v<T> ? GmAccess::read_only : GmAccess::read_write};

  static T* make(const Argument& a) { return static_cast<T*>(a.memory); }
};

template <class P>
using Plain = std::remove_cv_t<std::remove_reference_t<P>>;

// The end keeps it from being empty.
template <class... P>
inline constexpr Described described[] = {Parameter<Plain<P>>::described..., {}};

template <class... P, size_t... I>
int call_kernel(void (*kernel)(P...), const Target& target, const Argument* arguments, std::index_sequence<I...>) {
  return launch(kernel, target.clusters, target.cores)(Parameter<Plain<P>>::make(arguments[I])...);
}

template <class... P>
Entry entry(const char* name, void (*kernel)(P...)) {
  const auto call = [](void (*function)(), const Target& target, const Argument* arguments) {
    const auto typed = reinterpret_cast<void (*)(P...)>(function);
    return call_kernel<P...>(typed, target, arguments, std::index_sequence_for<P...>{});
  };
  return {name, described<P...>, sizeof...(P), reinterpret_cast<void (*)()>(kernel), call};
}

}  // namespace xpu_sim::calls
