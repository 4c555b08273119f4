// Argument checks of wrappers. A failing macro prints a message to the standard error and returns from the wrapper:
// INVALID_PARAM, NO_ENOUGH_WORKSPACE, RUNTIME_ERROR or NOT_IMPLEMENT.
#pragma once

#include <initializer_list>
#include <sstream>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "xpu/xdnn.h"

namespace xpu_sim::wrapper {

using baidu::xpu::api::Context;

// Says what is wrong; `where` is the wrapper's line. Gives the error.
int complain(int error, Site where, const std::string& message);

// A finding: a check of a pointer names another type than the pointer's, which is another number of bytes.
void wrong_type(const char* named, const char* pointed, const char* pointer, Site where);

// Integers of the same size and sign are one type: `long long` is the device's int64_t.
template <class NAMED, class P>
void check_type(const P&, const char* pointer, Site where) {
  using N = std::remove_cv_t<NAMED>;
  using T = std::remove_cv_t<std::remove_pointer_t<std::decay_t<P>>>;
  if constexpr (std::is_integral_v<N> && std::is_integral_v<T>) {
    if (sizeof(N) == sizeof(T) && std::is_signed_v<N> == std::is_signed_v<T>) return;
  }
  if constexpr (std::is_pointer_v<std::decay_t<P>> && !std::is_void_v<T> && !std::is_same_v<N, T>) {
    wrong_type(typeid(N).name(), typeid(T).name(), pointer, where);
  }
}

template <class T>
std::string shown(const T& value) {
  std::ostringstream text;
  if constexpr (std::is_pointer_v<T>) {
    text << static_cast<const void*>(value);
  } else {
    text << value;
  }
  return text.str();
}
template <class T>
std::string shown(const std::vector<T>& values) {
  std::string all;
  for (const T& v : values) all += (all.empty() ? "" : ",") + shown(v);
  return "[" + all + "]";
}
template <class T>
std::string shown(const baidu::xpu::api::VectorParam<T>& v) {
  return shown(v.cpu) + "[" + shown(v.len) + "]";
}

void begin_call(Context* ctx, const char* function, std::initializer_list<const char*> types);
void write_call(Context* ctx);

template <class... A>
void add_parameters(Context* ctx, const A&... values) {
  if (!ctx->debug_level) return;
  for (const std::string& text : {shown(values)...}) ctx->call += " " + text;
}

// The product of the sizes, which must all be positive.
inline int elements(int64_t* count, const std::vector<int64_t>& shape) {
  *count = 1;
  for (const int64_t n : shape) {
    if (n <= 0) return baidu::xpu::api::INVALID_PARAM;
    *count *= n;
  }
  return baidu::xpu::api::SUCCESS;
}

}  // namespace xpu_sim::wrapper

// Wrappers write these with or without a semicolon after them.
#define XPU_SIM_RETURN_IF(WRONG, ERROR, MESSAGE)                                                                  \
  {                                                                                                               \
    if (WRONG) return ::xpu_sim::wrapper::complain(::baidu::xpu::api::ERROR, ::xpu_sim::Site::here(), (MESSAGE)); \
  }
#define XPU_SIM_ASSERT(A, SIGN, B)                                                                      \
  XPU_SIM_RETURN_IF(!((A)SIGN(B)), INVALID_PARAM,                                                       \
                    "expected " #A " " #SIGN " " #B ", got " + ::xpu_sim::wrapper::shown(A) + " and " + \
                        ::xpu_sim::wrapper::shown(B))

#define WRAPPER_CHECK_CTX(CTX) XPU_SIM_RETURN_IF((CTX) == nullptr, INVALID_PARAM, "expected a context, got nullptr")
#define WRAPPER_CHECK_PTR(CTX, T, COUNT, P)                                                                            \
  {                                                                                                                    \
    ::xpu_sim::wrapper::check_type<T>(P, #P, ::xpu_sim::Site::here());                                                 \
    const int xpu_sim_error =                                                                                          \
        ::xpu_sim::wrapper::check_memory(CTX, P, static_cast<int64_t>(COUNT), sizeof(T), #P, ::xpu_sim::Site::here()); \
    if (xpu_sim_error) return xpu_sim_error;                                                                           \
  }
#define WRAPPER_CHECK_PTR_OR_NULL(CTX, T, COUNT, P)          \
  {                                                          \
    if ((P) != nullptr) WRAPPER_CHECK_PTR(CTX, T, COUNT, P); \
  }
#define WRAPPER_CHECK_2PTRS(CTX, T, COUNT, P, ...) \
  WRAPPER_CHECK_PTR(CTX, T, COUNT, P) WRAPPER_CHECK_PTR(CTX, T, COUNT, __VA_ARGS__)
#define WRAPPER_CHECK_3PTRS(CTX, T, COUNT, P, ...) \
  WRAPPER_CHECK_PTR(CTX, T, COUNT, P) WRAPPER_CHECK_2PTRS(CTX, T, COUNT, __VA_ARGS__)
#define WRAPPER_CHECK_4PTRS(CTX, T, COUNT, P, ...) \
  WRAPPER_CHECK_PTR(CTX, T, COUNT, P) WRAPPER_CHECK_3PTRS(CTX, T, COUNT, __VA_ARGS__)
#define WRAPPER_CHECK_SHAPE(CTX, COUNT, ...)                                                                       \
  XPU_SIM_RETURN_IF(::xpu_sim::wrapper::elements(COUNT, __VA_ARGS__) != ::baidu::xpu::api::SUCCESS, INVALID_PARAM, \
                    "expected positive sizes in " #__VA_ARGS__)

#define WRAPPER_ASSERT_EQ(CTX, A, B) XPU_SIM_ASSERT(A, ==, B)
#define WRAPPER_ASSERT_NE(CTX, A, B) XPU_SIM_ASSERT(A, !=, B)
#define WRAPPER_ASSERT_GT(CTX, A, B) XPU_SIM_ASSERT(A, >, B)
#define WRAPPER_ASSERT_GE(CTX, A, B) XPU_SIM_ASSERT(A, >=, B)
#define WRAPPER_ASSERT_LT(CTX, A, B) XPU_SIM_ASSERT(A, <, B)
#define WRAPPER_ASSERT_LE(CTX, A, B) XPU_SIM_ASSERT(A, <=, B)
#define WRAPPER_ASSERT_WORKSPACE(CTX, P) XPU_SIM_RETURN_IF((P) == nullptr, NO_ENOUGH_WORKSPACE, "expected room for " #P)
// Another wrapper's result.
#define WRAPPER_ASSERT_SUCCESS(CTX, RESULT)                                \
  {                                                                        \
    const int xpu_sim_error = (RESULT);                                    \
    if (xpu_sim_error != ::baidu::xpu::api::SUCCESS) return xpu_sim_error; \
  }
// A launch's value.
#define KERNEL_ASSERT_SUCCESS(CTX, RESULT)        \
  XPU_SIM_RETURN_IF((RESULT) != 0, RUNTIME_ERROR, \
                    "expected a launch without errors, got status " + ::xpu_sim::wrapper::shown(RESULT))
#define WRAPPER_UNIMPLEMENTED(CTX)                                            \
  XPU_SIM_RETURN_IF(true, NOT_IMPLEMENT,                                      \
                    "expected a device that is implemented here, got type " + \
                        ::xpu_sim::wrapper::shown(static_cast<int>((CTX)->dev().type())))

#define XPU_SIM_BEGIN_CALL(CTX, NAME, ...)                    \
  {                                                           \
    ::xpu_sim::wrapper::begin_call(CTX, NAME, {__VA_ARGS__}); \
  }
#define WRAPPER_DUMP_FUNCTION(CTX, NAME) XPU_SIM_BEGIN_CALL(CTX, NAME)
#define WRAPPER_DUMP_FUNCTION_T1(CTX, NAME, A) XPU_SIM_BEGIN_CALL(CTX, NAME, #A)
#define WRAPPER_DUMP_FUNCTION_T2(CTX, NAME, A, B) XPU_SIM_BEGIN_CALL(CTX, NAME, #A, #B)
#define WRAPPER_DUMP_FUNCTION_T3(CTX, NAME, A, B, C) XPU_SIM_BEGIN_CALL(CTX, NAME, #A, #B, #C)
#define WRAPPER_DUMP_FUNCTION_T4(CTX, NAME, A, B, C, D) XPU_SIM_BEGIN_CALL(CTX, NAME, #A, #B, #C, #D)
#define XPU_SIM_ADD_PARAMETERS(...)                  \
  {                                                  \
    ::xpu_sim::wrapper::add_parameters(__VA_ARGS__); \
  }
#define WRAPPER_DUMP_PARAM1(...) XPU_SIM_ADD_PARAMETERS(__VA_ARGS__)
#define WRAPPER_DUMP_PARAM2(...) XPU_SIM_ADD_PARAMETERS(__VA_ARGS__)
#define WRAPPER_DUMP_PARAM3(...) XPU_SIM_ADD_PARAMETERS(__VA_ARGS__)
#define WRAPPER_DUMP_PARAM4(...) XPU_SIM_ADD_PARAMETERS(__VA_ARGS__)
#define WRAPPER_DUMP_PARAM5(...) XPU_SIM_ADD_PARAMETERS(__VA_ARGS__)
#define WRAPPER_DUMP_PARAM6(...) XPU_SIM_ADD_PARAMETERS(__VA_ARGS__)
#define WRAPPER_DUMP(CTX)                \
  {                                      \
    ::xpu_sim::wrapper::write_call(CTX); \
  }
