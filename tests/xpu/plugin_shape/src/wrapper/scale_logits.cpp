#include <algorithm>
#include "xpu/plugin.h"
#include "xpu/refactor/core/quant.h"
#include "xpu/refactor/impl/xdnn_impl.h"
#include "xpu/refactor/impl_public/wrapper_check.h"

namespace xpu3 {
namespace plugin {
template <typename T>
__attribute__((global)) void scale_logits(const T* logits, const float* temperatures, float* out, int batch, int vocab);
}  // namespace plugin
}  // namespace xpu3

namespace baidu {
namespace xpu {
namespace api {
namespace plugin {

template <typename T>
static int cpu_wrapper(Context* ctx, const T* logits, const float* temperatures, float* out, int batch, int vocab) {
  int ret = api::constant<float>(ctx, out, static_cast<int64_t>(batch) * vocab, 0.0f);
  WRAPPER_ASSERT_SUCCESS(ctx, ret);
  for (int i = 0; i < batch * vocab; i++) {
    out[i] = static_cast<float>(logits[i]) * temperatures[i / vocab];
  }
  return api::SUCCESS;
}

template <typename T>
static int xpu3_wrapper(Context* ctx, const T* logits, const float* temperatures, float* out, int batch, int vocab) {
  auto kernel = xpu3::plugin::scale_logits<T>;
  int32_t ret_xre = kernel<<<ctx->ncluster(), 64, ctx->xpu_stream>>>(logits, temperatures, out, batch, vocab);
  KERNEL_ASSERT_SUCCESS(ctx, ret_xre);
  return api::SUCCESS;
}

template <typename T>
int scale_logits(Context* ctx, const T* logits, const float* temperatures, T* out, int batch, int vocab) {
  WRAPPER_CHECK_CTX(ctx);
  WRAPPER_DUMP_FUNCTION_T1(ctx, "scale_logits", T);
  WRAPPER_DUMP_PARAM6(ctx, logits, temperatures, out, batch, vocab, 0);
  WRAPPER_DUMP(ctx);
  int64_t len = -1;
  WRAPPER_CHECK_SHAPE(ctx, &len, {batch, vocab});
  WRAPPER_CHECK_PTR(ctx, T, len, logits);
  WRAPPER_CHECK_PTR(ctx, float, batch, temperatures);
  WRAPPER_CHECK_PTR(ctx, T, len, out);
  ctx_guard RAII_GUARD(ctx);
  float* wide = RAII_GUARD.alloc_l3_or_gm<float>(len);
  WRAPPER_ASSERT_WORKSPACE(ctx, wide);
  int ret = api::NOT_IMPLEMENT;
  if (ctx->dev().type() == api::kCPU) {
    ret = cpu_wrapper<T>(ctx, logits, temperatures, wide, batch, vocab);
  }
  if (ctx->dev().type() == api::kXPU3) {
    ret = xpu3_wrapper<T>(ctx, logits, temperatures, wide, batch, vocab);
  }
  WRAPPER_ASSERT_SUCCESS(ctx, ret);
  return api::cast<float, T>(ctx, wide, out, len);
}

template int scale_logits(Context*, const float*, const float*, float*, int, int);
template int scale_logits(Context*, const float16*, const float*, float16*, int, int);
template int scale_logits(Context*, const bfloat16*, const float*, bfloat16*, int, int);

}  // namespace plugin
}  // namespace api
}  // namespace xpu
}  // namespace baidu
