// A wrapper of the usual form: arguments are checked, then the context's device decides on a path.
#include <algorithm>

#include "xpu/plugin.h"
#include "xpu/refactor/impl_public/wrapper_check.h"

namespace xpu3 {
namespace plugin {
template <typename T>
__attribute__((global)) void scale_segments(const T* x, const int* offsets, const float* factors, T* y, int64_t* total,
                                            int segments);
}  // namespace plugin
}  // namespace xpu3

namespace baidu {
namespace xpu {
namespace api {
namespace plugin {

template <typename T>
static int cpu_wrapper(Context* ctx, const T* x, const int* offsets, const float* factors, T* y, int64_t* total,
                       int segments) {
  for (int s = 0; s < segments; ++s) {
    for (int i = offsets[s]; i < offsets[s + 1]; ++i) {
      y[i] = static_cast<T>(static_cast<float>(x[i]) * factors[s]);
    }
    total[s] = offsets[s + 1] - offsets[s];
  }
  return api::SUCCESS;
}

template <typename T>
static int xpu3_wrapper(Context* ctx, const T* x, const int* offsets, const float* factors, T* y, int64_t* total,
                        int segments) {
  using XPU_INT64 = typename XPUIndexType<int64_t>::type;
  auto kernel = xpu3::plugin::scale_segments<T>;
  int32_t ret_xre = kernel<<<ctx->ncluster(), 64, ctx->xpu_stream>>>(x, offsets, factors, y,
                                                                     reinterpret_cast<XPU_INT64*>(total), segments);
  KERNEL_ASSERT_SUCCESS(ctx, ret_xre);
  return api::SUCCESS;
}

template <typename T>
int scale_segments(Context* ctx, const T* x, const VectorParam<int>& offsets, const float* factors, T* y,
                   int64_t* total) {
  WRAPPER_CHECK_CTX(ctx);
  WRAPPER_DUMP_FUNCTION_T1(ctx, "scale_segments", T);
  WRAPPER_DUMP_PARAM5(ctx, x, offsets, factors, y, total);
  WRAPPER_DUMP(ctx);
  WRAPPER_ASSERT_GT(ctx, offsets.len, 1);
  const int segments = static_cast<int>(offsets.len) - 1;
  const int64_t n = offsets.cpu[segments];
  WRAPPER_CHECK_PTR(ctx, T, n, x);
  WRAPPER_CHECK_PTR(ctx, float, segments, factors);
  WRAPPER_CHECK_PTR(ctx, T, n, y);
  WRAPPER_CHECK_PTR(ctx, int64_t, segments, total);
  if (ctx->dev().type() == api::kCPU) {
    return cpu_wrapper<T>(ctx, x, offsets.cpu, factors, y, total, segments);
  }
  if (ctx->dev().type() == api::kXPU3) {
    ctx_guard RAII_GUARD(ctx);
    const VectorParam<int> on_device = offsets.to_xpu(RAII_GUARD);
    WRAPPER_ASSERT_WORKSPACE(ctx, on_device.xpu);
    return xpu3_wrapper<T>(ctx, x, on_device.xpu, factors, y, total, segments);
  }
  WRAPPER_UNIMPLEMENTED(ctx);
}

template int scale_segments(Context*, const float*, const VectorParam<int>&, const float*, float*, int64_t*);
template int scale_segments(Context*, const float16*, const VectorParam<int>&, const float*, float16*, int64_t*);

}  // namespace plugin
}  // namespace api
}  // namespace xpu
}  // namespace baidu
