// NVIDIA GPUs as a target of kernels_common/exports: operands on one device, and a plan that launches there.
#pragma once

#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "../ops/ops.h"
#include "device.h"
#include "specdec_ffi/operands.h"

namespace specdec::cuda {

constexpr int64_t kMostProposeWidth = kMostDraftWidth;

}  // namespace specdec::cuda

namespace specdec::ffi {

namespace target = specdec::cuda;
using tvm::ffi::Function;

// Kernels get plain addresses.
class TargetOperands : public Operands {
 public:
#if defined(SPECDEC_HOST_ARCH)  // kernels on the host, for tests
  static constexpr DLDeviceType kDevice = kDLCPU;
#else
  static constexpr DLDeviceType kDevice = kDLCUDA;
#endif
  explicit TargetOperands(const char* op) : Operands(op, kDevice), op_(op) {}

  // T is void or const void, char or const char.
  template <typename T>
  T* floats(const char* argument, const TensorView& x, Shape shape, FloatType* type) const {
    return static_cast<T*>(Operands::floats(argument, x, shape, type));
  }
  template <typename T>
  T* bytes(const char* argument, const TensorView& x, Shape shape) const {
    return static_cast<T*>(Operands::bytes(argument, x, shape));
  }
  template <typename T>
  T* bytes_like(const char* argument, const TensorView& x, Shape shape, const TensorView& model) const {
    return static_cast<T*>(Operands::bytes_like(argument, x, shape, model));
  }

  // A function of the stream (a cudaStream_t as an integer) that launches on the operands' device.
  template <typename Launch>
  Function plan(Launch launch) const {
    return Function::FromTyped([op = op_, device = device_index(), launch = std::move(launch)](int64_t stream) {
      try {
        const cuda::DeviceGuard guard(device);
        cuda::require_stream_of(device, reinterpret_cast<cudaStream_t>(stream));
        launch(reinterpret_cast<cudaStream_t>(stream));
      } catch (const cuda::CudaError& error) {
        TVM_FFI_THROW(RuntimeError) << op << " [cuda]: on cuda:" << device << ", stream " << stream << ": "
                                    << error.what() << "; " << cuda::cure_of(error.code);
      } catch (const std::invalid_argument& error) {
        TVM_FFI_THROW(ValueError) << op << " [cuda]: " << error.what();
      }
    });
  }

 private:
  const char* op_;
};

}  // namespace specdec::ffi

// Exports take no options; the plan that they return.
#define SPECDEC_OPTIONS
#define SPECDEC_PLAN(operands, op, args) operands.plan([=](cudaStream_t stream) { op(args, stream); })
