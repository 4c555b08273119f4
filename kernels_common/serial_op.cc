#include "serial_op.h"

#include "specdec_ffi/bind.h"

namespace specdec::serial {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

int bind_op(const OpSignature& op, List<Limit> limits, void (*launch)(const void* args, Context split),
            const void* given, int count, void* plan) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const PackedArgs all(static_cast<const AnyView*>(given), count);
  Split split = {};
  int splits = count - op.operands.count - op.attributes.count;
  splits = splits < 0 ? 0 : splits > static_cast<int>(split.size()) ? static_cast<int>(split.size()) : splits;
  for (int i = 0; i < splits; ++i) split[static_cast<size_t>(i)] = all[count - splits + i].cast<int64_t>();
  ffi::Bound bound =
      ffi::bind(op, limits, all, splits, kDLCPU, [](const OperandInfo&, const ffi::TensorView&, void*) {});
  *static_cast<Any*>(plan) = Function::FromTyped(
      [launch, split, args = std::move(bound.args)](int64_t /*stream*/) { launch(args.data(), split); });
  TVM_FFI_SAFE_CALL_END();
}

int tell_limits(const OpSignature& op, List<Limit> limits, void* map) {
  TVM_FFI_SAFE_CALL_BEGIN();
  *static_cast<Any*>(map) = ffi::limits_of(op, limits);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace specdec::serial
