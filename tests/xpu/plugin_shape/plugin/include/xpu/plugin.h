// The project's own header, in the layout and with the declarations of FastDeploy's plugin: found before the emulator's.
#pragma once
#include "xpu/xdnn.h"

namespace baidu {
namespace xpu {
namespace api {
namespace plugin {

DLL_EXPORT int gather_steps(Context* ctx, const int64_t* step_idx, const bool* stop_flags, int64_t* out, int* running,
                            int batch);

template <typename T>
DLL_EXPORT int scale_logits(Context* ctx, const T* logits, const float* temperatures, T* out, int batch, int vocab);

DLL_EXPORT int count_tokens(Context* ctx, const int64_t* token_ids, const VectorParam<int32_t>& lengths,
                            int64_t* counts, int width);

}  // namespace plugin
}  // namespace api
}  // namespace xpu
}  // namespace baidu
