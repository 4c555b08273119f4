#include "xpu/plugin.h"
#include "xpu/refactor/impl/launch_strategy.h"
#include "xpu/refactor/impl_public/wrapper_check.h"

namespace xpu3 {
namespace plugin {
__attribute__((global)) void gather_steps(const int64_t* step_idx, const bool* stop_flags, int64_t* out, int* running,
                                          int batch);
}  // namespace plugin
}  // namespace xpu3

namespace baidu {
namespace xpu {
namespace api {
namespace plugin {

static int cpu_wrapper(Context* ctx, const int64_t* step_idx, const bool* stop_flags, int64_t* out, int* running,
                       int batch) {
  for (int i = 0; i < batch; i++) {
    assert(step_idx[i] < std::numeric_limits<int64_t>::max());
    out[i] = stop_flags[i] ? -1 : step_idx[i];
    running[i] = stop_flags[i] ? 0 : 1;
  }
  return api::SUCCESS;
}

static int xpu3_wrapper(Context* ctx, const int64_t* step_idx, const bool* stop_flags, int64_t* out, int* running,
                        int batch) {
  xpu3::plugin::gather_steps<<<ctx->ncluster(), 64, ctx->xpu_stream>>>(
      reinterpret_cast<const xpu3::int64_t*>(step_idx), stop_flags, reinterpret_cast<xpu3::int64_t*>(out), running,
      batch);
  return api::SUCCESS;
}

int gather_steps(Context* ctx, const int64_t* step_idx, const bool* stop_flags, int64_t* out, int* running, int batch) {
  WRAPPER_CHECK_CTX(ctx)
  WRAPPER_DUMP_FUNCTION_T1(ctx, "gather_steps", int64_t)
  WRAPPER_DUMP_PARAM5(ctx, step_idx, stop_flags, out, running, batch)
  WRAPPER_DUMP(ctx)
  WRAPPER_ASSERT_GT(ctx, batch, 0)
  WRAPPER_CHECK_PTR(ctx, int64_t, batch, step_idx)
  WRAPPER_CHECK_PTR(ctx, bool, batch, stop_flags)
  WRAPPER_CHECK_2PTRS(ctx, int64_t, batch, step_idx, out)
  WRAPPER_CHECK_PTR(ctx, int, batch, running)
  if (ctx->dev().type() == api::kCPU) {
    return cpu_wrapper(ctx, step_idx, stop_flags, out, running, batch);
  }
  if (ctx->dev().type() == api::kXPU3) {
    return xpu3_wrapper(ctx, step_idx, stop_flags, out, running, batch);
  }
  WRAPPER_UNIMPLEMENTED(ctx)
}

}  // namespace plugin
}  // namespace api
}  // namespace xpu
}  // namespace baidu
