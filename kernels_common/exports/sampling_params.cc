// Exports build_sampling_params.
#include "target.h"

namespace specdec::ffi {
namespace {

Function build_sampling_params(TensorView temperature, TensorView top_p, TensorView top_k, TensorView min_p,
                               TensorView seed_of_slot, TensorView prompt_lens, TensorView step_idx,
                               TensorView cu_seqlens_q_output, TensorView batch_id_per_token_output,
                               TensorView row_temperature, TensorView row_top_p, TensorView row_top_k,
                               TensorView row_min_p, TensorView row_seed, TensorView position SPECDEC_OPTIONS) {
  TargetOperands op("build_sampling_params");
  SamplingParamsArgs a;
  const int64_t m = op.extent(temperature, 0);
  a.slots = op.extent(cu_seqlens_q_output, 0) - 1;
  a.rows = op.extent(batch_id_per_token_output, 0);
  op.within("cu_seqlens_q_output", "B", a.slots, m);
  op.within("temperature", "M", m, target::kMostSlots);
  a.temperature = op.data<const float>("temperature", temperature, {m});
  a.top_p = op.data<const float>("top_p", top_p, {m});
  a.top_k = op.data<const int32_t>("top_k", top_k, {m});
  a.min_p = op.data<const float>("min_p", min_p, {m});
  a.seed = op.data<const int64_t>("seed", seed_of_slot, {m});
  a.prompt_lens = op.data<const int64_t>("prompt_lens", prompt_lens, {m});
  a.step_idx = op.data<const int64_t>("step_idx", step_idx, {m});
  a.cu_seqlens_q_output = op.data<const int32_t>("cu_seqlens_q_output", cu_seqlens_q_output, {a.slots + 1});
  a.batch_id_per_token_output =
      op.data<const int32_t>("batch_id_per_token_output", batch_id_per_token_output, {a.rows});
  a.row_temperature = op.data<float>("row_temperature", row_temperature, {a.rows});
  a.row_top_p = op.data<float>("row_top_p", row_top_p, {a.rows});
  a.row_top_k = op.data<int32_t>("row_top_k", row_top_k, {a.rows});
  a.row_min_p = op.data<float>("row_min_p", row_min_p, {a.rows});
  a.row_seed = op.data<int64_t>("row_seed", row_seed, {a.rows});
  a.position = op.data<int64_t>("position", position, {a.rows});
  return SPECDEC_PLAN(op, target::build_sampling_params, a);
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(build_sampling_params, build_sampling_params)

}  // namespace
}  // namespace specdec::ffi
