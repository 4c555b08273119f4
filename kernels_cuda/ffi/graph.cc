// Exports capture_graph: a function's launches as one CUDA graph.
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "device.h"

namespace specdec::cuda {
namespace {

using tvm::ffi::Function;

class Stream {
 public:
  Stream() { check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Graph {
 public:
  explicit Graph(cudaGraph_t graph) : graph_(graph) {}
  ~Graph() {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaGraph_t get() const { return graph_; }

 private:
  cudaGraph_t graph_;
};

class GraphExec {
 public:
  GraphExec(const Graph& graph, int device) : device_(device) {
    check("cudaGraphInstantiate", cudaGraphInstantiate(&exec_, graph.get(), 0));
  }
  ~GraphExec() { cudaGraphExecDestroy(exec_); }
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  void launch(cudaStream_t stream) const {
    const DeviceGuard guard(device_);
    check("cudaGraphLaunch", cudaGraphLaunch(exec_, stream));
  }

 private:
  int device_;
  cudaGraphExec_t exec_ = nullptr;
};

// Runs `launches(stream)` on a capturing stream. Other threads are not restricted.
std::shared_ptr<const GraphExec> record(const Function& launches, int device) {
  const DeviceGuard guard(device);
  const Stream stream;
  cudaGraph_t captured = nullptr;
  check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  try {
    launches(reinterpret_cast<int64_t>(stream.get()));
  } catch (...) {
    // The launch's error says more than that of the broken capture.
    cudaStreamEndCapture(stream.get(), &captured);
    const Graph dropped(captured);
    cudaGetLastError();
    throw;
  }
  check("cudaStreamEndCapture", cudaStreamEndCapture(stream.get(), &captured));
  const Graph graph(captured);
  return std::make_shared<const GraphExec>(graph, device);
}

Function capture_graph(const Function& launches, int64_t device) {
  try {
    return Function::FromTyped([exec = record(launches, static_cast<int>(device)), device](int64_t stream) {
      try {
        exec->launch(reinterpret_cast<cudaStream_t>(stream));
      } catch (const CudaError& error) {
        TVM_FFI_THROW(RuntimeError) << "captured step [cuda]: on cuda:" << device << ", stream " << stream << ": "
                                    << error.what() << "; " << hint_of(error.code);
      }
    });
  } catch (const CudaError& error) {
    TVM_FFI_THROW(RuntimeError) << "capture_step [cuda]: on cuda:" << device << ": " << error.what() << "; "
                                << hint_of(error.code);
  }
  TVM_FFI_UNREACHABLE();
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(capture_graph, capture_graph)

}  // namespace
}  // namespace specdec::cuda
