// calls.h for wrappers: int wrapper(Context*, ...).
#pragma once

#include <tuple>
#include <vector>

#include "xpu/xdnn.h"
#include "xpu_sim/calls.h"

namespace xpu_sim::calls {

template <class T>
struct Parameter<baidu::xpu::api::VectorParam<T>> {
  static constexpr Described described{"vector", type_name<std::remove_cv_t<T>>(), sizeof(T), GmAccess::read_write};

  static baidu::xpu::api::VectorParam<T> make(const Argument& a) {
    return {reinterpret_cast<T*>(a.bytes), static_cast<int64_t>(a.count / sizeof(T)), nullptr};
  }
};

template <class T>
struct Parameter<std::vector<T>> {
  static constexpr Described described{"vector", type_name<T>(), sizeof(T), GmAccess::read_write};

  static std::vector<T> make(const Argument& a) {
    const T* const first = reinterpret_cast<const T*>(a.bytes);
    return std::vector<T>(first, first + a.count / sizeof(T));
  }
};

template <class... P, size_t... I>
int call_wrapper(int (*wrapper)(baidu::xpu::api::Context*, P...), const Target& target, const Argument* arguments,
                 std::index_sequence<I...>) {
  baidu::xpu::api::Context ctx(target.cpu ? baidu::xpu::api::kCPU : baidu::xpu::api::kXPU3);
  std::tuple<Plain<P>...> values{Parameter<Plain<P>>::make(arguments[I])...};
  return wrapper(&ctx, std::get<I>(values)...);
}

template <class... P>
Entry entry(const char* name, int (*wrapper)(baidu::xpu::api::Context*, P...)) {
  const auto call = [](void (*function)(), const Target& target, const Argument* arguments) {
    const auto typed = reinterpret_cast<int (*)(baidu::xpu::api::Context*, P...)>(function);
    return call_wrapper<P...>(typed, target, arguments, std::index_sequence_for<P...>{});
  };
  return {name, described<P...>, sizeof...(P), reinterpret_cast<void (*)()>(wrapper), call};
}

}  // namespace xpu_sim::calls
