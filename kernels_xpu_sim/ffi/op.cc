// From an exported op to its launches on the simulated XPU: operands as global memory, the launch options, and a plan.
#include "../kernels/op.h"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "specdec_ffi/bind.h"

namespace specdec::xpu {
namespace {

using tvm::ffi::Any;
using tvm::ffi::AnyView;
using tvm::ffi::Function;
using tvm::ffi::PackedArgs;

// An index of 16 histories of 131,072 tokens takes 2 s to build, and 10 to 20 times that with every check.
constexpr double kWatchdogSeconds = 300;

// Arguments after the attributes: clusters, cores, seed, DMA policy, host threads, and the model of the device.
constexpr int kOptions = 6;

LaunchOptions options_of(const char* op, const PackedArgs& given) {
  LaunchOptions options;
  options.clusters = static_cast<int>(given[0].cast<int64_t>());
  options.cores = static_cast<int>(given[1].cast<int64_t>());
  options.sim.seed = static_cast<uint64_t>(given[2].cast<int64_t>());
  options.sim.dma = static_cast<xpu_sim::DmaPolicy>(given[3].cast<int64_t>());
  options.sim.workers = static_cast<int>(given[4].cast<int64_t>());
  options.sim.watchdog_seconds = kWatchdogSeconds;
  const std::string wrong = xpu_sim::parse_options(given[5].cast<tvm::ffi::String>(), &options.sim);
  if (!wrong.empty()) TVM_FFI_THROW(ValueError) << op << " [xpu_sim]: " << wrong;
  return options;
}

}  // namespace

int bind_op(const OpSignature& op, void (*launch)(const void* args, Context options), const void* given, int count,
            void* plan) {
  TVM_FFI_SAFE_CALL_BEGIN();
  const PackedArgs all(static_cast<const AnyView*>(given), count);
  std::vector<xpu_sim::GmSpan> spans;
  spans.reserve(static_cast<size_t>(op.operands.count));
  ffi::Bound bound =
      ffi::bind(op, all, kOptions, kDLCPU, [&](const OperandInfo& info, const ffi::TensorView& x, void* data) {
    const unsigned element = x.dtype().bits / 8;
    const size_t bytes = static_cast<size_t>(x.numel()) * element;
    const auto access = info.access == Access::kRead ? xpu_sim::GmAccess::read_only : xpu_sim::GmAccess::read_write;
    if (bytes > 0) spans.push_back({data, bytes, info.name, access, element});
  });
  LaunchOptions options = options_of(op.name, all.Slice(count - kOptions));
  const auto memory = std::make_shared<const std::vector<xpu_sim::GmSpan>>(std::move(spans));
  options.sim.gm = memory->data();
  options.sim.gm_count = memory->size();
  *static_cast<Any*>(plan) =
      Function::FromTyped([name = op.name, launch, options, memory, args = std::move(bound.args)](int64_t /*stream*/) {
    try {
      launch(args.data(), options);
    } catch (const std::invalid_argument& error) {
      TVM_FFI_THROW(ValueError) << name << " [xpu_sim]: " << error.what();
    } catch (const std::runtime_error& error) {
      TVM_FFI_THROW(RuntimeError) << name << " [xpu_sim]: " << error.what();
    }
  });
  TVM_FFI_SAFE_CALL_END();
}

int list_limits(const OpSignature& op, List<Limit> limits, void* map) {
  TVM_FFI_SAFE_CALL_BEGIN();
  *static_cast<Any*>(map) = ffi::limits_of(op, limits);
  TVM_FFI_SAFE_CALL_END();
}

}  // namespace specdec::xpu
