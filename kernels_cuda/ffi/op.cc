// From an exported op to its launches: operands on one device, and a plan, which is a function of the stream.
#include "../ops/ops.h"

#include <cstdint>
#include <stdexcept>

#include "device.h"
#include "specdec_ffi/bind.h"

namespace specdec::cuda {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;

#if defined(SPECDEC_HOST_ARCH)  // kernels on the host, for tests
constexpr DLDeviceType kDevice = kDLCPU;
#else
constexpr DLDeviceType kDevice = kDLCUDA;
#endif

}  // namespace

int bind_op(const OpSignature& op, void (*launch)(const void* args, Context stream), const void* given, int count,
            void* plan) {
  TVM_FFI_SAFE_CALL_BEGIN();
  ffi::Bound bound = ffi::bind(op, {static_cast<const AnyView*>(given), count}, 0, kDevice,
                               [](const OperandInfo&, const ffi::TensorView&, void*) {});
  *static_cast<Any*>(plan) = Function::FromTyped([name = op.name, launch, bound = std::move(bound)](int64_t stream) {
    const auto handle = reinterpret_cast<cudaStream_t>(stream);
    try {
      const DeviceGuard guard(bound.device);
      require_stream_of(bound.device, handle);
      launch(bound.args.data(), handle);
    } catch (const CudaError& error) {
      TVM_FFI_THROW(RuntimeError) << name << " [cuda]: on cuda:" << bound.device << ", stream " << stream << ": "
                                  << error.what() << "; " << hint_of(error.code);
    } catch (const std::invalid_argument& error) {
      TVM_FFI_THROW(ValueError) << name << " [cuda]: " << error.what();
    }
  });
  TVM_FFI_SAFE_CALL_END();
}

int list_limits(const OpSignature& op, List<Limit> limits, void* map) {
  TVM_FFI_SAFE_CALL_BEGIN();
  *static_cast<Any*>(map) = ffi::limits_of(op, limits);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace specdec::cuda
