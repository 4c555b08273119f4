// The shared primitives over arrays, for bitwise tests against NumPy. Every tensor is a contiguous CPU array of the
// exact dtype; the last argument is the output.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <initializer_list>
#include <tuple>

#include "specdec/draw.h"
#include "specdec/exp.h"
#include "specdec/log2.h"
#include "specdec/mass.h"
#include "specdec/philox.h"
#include "specdec/platform.h"
#include "specdec/row_floats.h"
#include "specdec_ffi/operands.h"

namespace specdec {

// For a mass that is the integer part of a float.
inline float mass_ratio_by_reciprocal(uint64_t mass, uint64_t total) { return MassRatio(total).of(u64_to_f32(mass)); }

}  // namespace specdec

namespace {

using tvm::ffi::TensorView;

// The data of a checked argument.
template <typename T>
T* data(const char* op, const char* argument, const TensorView& x, std::initializer_list<int64_t> shape) {
  return specdec::ffi::Operands(op).data<T>(argument, x, shape);
}

// out[i] = f(in[i]...) for a scalar primitive.
template <auto Function, const char* Op>
struct Map;

template <typename R, typename... A, R (*Function)(A...), const char* Op>
struct Map<Function, Op> {
  template <typename>
  using View = TensorView;

  static void call(View<A>... in, TensorView out) {
    const int64_t count = out.numel();
    R* result = data<R>(Op, "out", out, {count});
    const std::tuple<const A*...> columns{data<A>(Op, "input", in, {count})...};
    for (int64_t i = 0; i < count; ++i) {
      result[i] = std::apply([i](const A*... column) { return Function(column[i]...); }, columns);
    }
  }
};

#define SPECDEC_EXPORT_MAP(name)         \
  constexpr char kName_##name[] = #name; \
  TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, (Map<&specdec::name, kName_##name>::call))

SPECDEC_EXPORT_MAP(softmax_t)
SPECDEC_EXPORT_MAP(exp2_mass)
SPECDEC_EXPORT_MAP(exp2_mass_at)
SPECDEC_EXPORT_MAP(exp_f32)
SPECDEC_EXPORT_MAP(prob_mass)
SPECDEC_EXPORT_MAP(fraction_mass)
SPECDEC_EXPORT_MAP(mass_threshold)
SPECDEC_EXPORT_MAP(mass_ratio)
SPECDEC_EXPORT_MAP(mass_ratio_by_reciprocal)
SPECDEC_EXPORT_MAP(mulhi64)
SPECDEC_EXPORT_MAP(accept_test)
SPECDEC_EXPORT_MAP(log2_q32)
SPECDEC_EXPORT_MAP(ln_ratio)
SPECDEC_EXPORT_MAP(bf16_to_f32)
SPECDEC_EXPORT_MAP(f16_to_f32)

void store(specdec::PhiloxWords words, uint32_t* out) {
  out[0] = words.w0;
  out[1] = words.w1;
  out[2] = words.w2;
  out[3] = words.w3;
}

// counter uint32 [N, 4], key uint32 [N, 2] -> out uint32 [N, 4]
void philox4x32_10(TensorView counter, TensorView key, TensorView out) {
  const int64_t rows = out.ndim() > 0 ? out.shape()[0] : 0;
  const uint32_t* c = data<uint32_t>("philox4x32_10", "counter", counter, {rows, 4});
  const uint32_t* k = data<uint32_t>("philox4x32_10", "key", key, {rows, 2});
  uint32_t* words = data<uint32_t>("philox4x32_10", "out", out, {rows, 4});
  for (int64_t i = 0; i < rows; ++i, c += 4, k += 2, words += 4) {
    store(specdec::philox4x32_10({c[0], c[1], c[2], c[3]}, k[0], k[1]), words);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(philox4x32_10, philox4x32_10)

// seed, position int64 [N], index uint32 [N] -> out uint32 [N, 4]
void philox_words(TensorView seed, TensorView position, int64_t purpose, TensorView index, TensorView out) {
  const int64_t rows = out.ndim() > 0 ? out.shape()[0] : 0;
  const int64_t* s = data<int64_t>("philox_words", "seed", seed, {rows});
  const int64_t* p = data<int64_t>("philox_words", "position", position, {rows});
  const uint32_t* n = data<uint32_t>("philox_words", "index", index, {rows});
  uint32_t* words = data<uint32_t>("philox_words", "out", out, {rows, 4});
  for (int64_t i = 0; i < rows; ++i, words += 4) {
    store(specdec::philox_words(s[i], p[i], static_cast<specdec::Purpose>(purpose), n[i]), words);
  }
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(philox_words, philox_words)

// u64 uint64 [N], masses uint64 [N, V] -> out int64 [N]
void draw(TensorView u64, TensorView masses, TensorView out) {
  const int64_t rows = out.numel(), width = masses.ndim() == 2 ? masses.shape()[1] : 0;
  const uint64_t* u = data<uint64_t>("draw", "u64", u64, {rows});
  const uint64_t* m = data<uint64_t>("draw", "masses", masses, {rows, width});
  int64_t* index = data<int64_t>("draw", "out", out, {rows});
  for (int64_t i = 0; i < rows; ++i) index[i] = specdec::draw(u[i], m + i * width, width);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(draw, draw)

}  // namespace
