// From an exported op to a plan over the addresses of its tensors.
#include "op.h"

#include "specdec_ffi/bind.h"

namespace specdec::cpu {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;

// The argument after the attributes: the most threads.
int bind_op(const OpSignature& op, void (*launch)(const void* args, Context threads), const void* given, int count,
            void* plan) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const ffi::PackedArgs all(static_cast<const AnyView*>(given), count);
  ffi::Bound bound = ffi::bind(op, all, 1, kDLCPU, [](const OperandInfo&, const ffi::TensorView&, void*) {});
  const Context threads = all[count - 1].cast<int64_t>();
  *static_cast<Any*>(plan) = Function::FromTyped(
      [launch, threads, args = std::move(bound.args)](int64_t /*stream*/) { launch(args.data(), threads); });
  TVM_FFI_SAFE_CALL_END();
}

int list_limits(const OpSignature& op, List<Limit> limits, void* map) {
  TVM_FFI_SAFE_CALL_BEGIN();
  *static_cast<Any*>(map) = ffi::limits_of(op, limits);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace specdec::cpu
