#include <numeric>
#include "xpu/plugin.h"
#include "xpu/refactor/impl_public/wrapper_check.h"

namespace xpu3 {
namespace plugin {
__attribute__((global)) void count_tokens(const int64_t* token_ids, const int* lengths, int64_t* counts, int batch,
                                          int width);
}  // namespace plugin
}  // namespace xpu3

namespace baidu {
namespace xpu {
namespace api {
namespace plugin {

static int cpu_wrapper(Context* ctx, const int64_t* token_ids, const int* lengths, int64_t* counts, int batch,
                       int width) {
  for (int b = 0; b < batch; b++) {
    counts[b] = 0;
    for (int i = 0; i < lengths[b]; i++) counts[b] += token_ids[b * width + i] >= 0 ? 1 : 0;
  }
  return api::SUCCESS;
}

static int xpu2or3_wrapper(Context* ctx, const int64_t* token_ids, const int* lengths, int64_t* counts, int batch,
                           int width) {
  using XPU_INT64 = typename XPUIndexType<int64_t>::type;
  auto kernel = xpu3::plugin::count_tokens;
  int32_t ret_xre = kernel<<<1, 64, ctx->xpu_stream>>>(reinterpret_cast<const XPU_INT64*>(token_ids), lengths,
                                                       reinterpret_cast<XPU_INT64*>(counts), batch, width);
  KERNEL_ASSERT_SUCCESS(ctx, ret_xre);
  return api::SUCCESS;
}

int count_tokens(Context* ctx, const int64_t* token_ids, const VectorParam<int32_t>& lengths, int64_t* counts,
                 int width) {
  WRAPPER_CHECK_CTX(ctx);
  WRAPPER_DUMP_FUNCTION_T1(ctx, "count_tokens", int64_t);
  WRAPPER_DUMP_PARAM4(ctx, token_ids, lengths, counts, width);
  WRAPPER_DUMP(ctx);
  int batch = lengths.len;
  WRAPPER_ASSERT_GT(ctx, width, 0);
  WRAPPER_ASSERT_LE(ctx, std::accumulate(lengths.cpu, lengths.cpu + batch, 0), batch * width);
  WRAPPER_CHECK_PTR(ctx, int64_t, batch* width, token_ids);
  WRAPPER_CHECK_PTR(ctx, int64_t, batch, counts);
  if (ctx->dev().type() == api::kCPU) {
    return cpu_wrapper(ctx, token_ids, lengths.cpu, counts, batch, width);
  }
  if (ctx->dev().type() == api::kXPU2 || ctx->dev().type() == api::kXPU3) {
    ctx_guard RAII_GUARD(ctx);
    VectorParam<int32_t> on_xpu = lengths.to_xpu(RAII_GUARD);
    return xpu2or3_wrapper(ctx, token_ids, on_xpu.xpu, counts, batch, width);
  }
  WRAPPER_UNIMPLEMENTED(ctx);
}

}  // namespace plugin
}  // namespace api
}  // namespace xpu
}  // namespace baidu
