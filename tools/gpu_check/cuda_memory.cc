#include <cuda_runtime_api.h>

#include <cstdio>
#include <string>

#include "tools/gpu_check/device_memory.h"

namespace regard::gpu_check {
namespace {

// The error's text; takes it from the thread, or the next caller of the runtime would find it.
std::string text_of(cudaError_t error) {
  if (error == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());
  return std::string("CUDA: ") + cudaGetErrorString(error);
}

Status status_of(cudaError_t error) {
  if (error == cudaSuccess) return {};
  return Status(StatusCode::kInternal, "[gpu_check] " + text_of(error));
}

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~CudaMemory() override {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }

  Device device() const override { return {DeviceType::kCuda, 0}; }
  void* allocate(std::size_t bytes) override {
    void* data = nullptr;
    return text_of(cudaMalloc(&data, bytes)).empty() ? data : nullptr;
  }
  void free(void* data) override { cudaFree(data); }
  bool upload(void* to, const void* from, std::size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  bool download(void* to, const void* from, std::size_t bytes) override {
    return copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  std::string wait() override { return text_of(cudaStreamSynchronize(stream_)); }
  void* stream() const override { return stream_; }

  Status replay(Status (*launch)(void*), void* state) override {
    // Relaxed would let a backend wait or allocate unseen.
    cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal);
    if (error != cudaSuccess) return status_of(error);
    Status launched = launch(state);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runs = nullptr;
    error = cudaStreamEndCapture(stream_, &graph);
    if (launched.ok() && error == cudaSuccess) error = cudaGraphInstantiate(&runs, graph, 0);
    if (launched.ok() && error == cudaSuccess) error = cudaGraphLaunch(runs, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    if (runs != nullptr) cudaGraphExecDestroy(runs);
    if (graph != nullptr) cudaGraphDestroy(graph);
    Status replayed = status_of(error);
    return launched.ok() ? replayed : launched;
  }
  double time(int count, const std::function<void()>& launch) override {
    cudaEventRecord(begin_, stream_);
    for (int i = 0; i < count; ++i) launch();
    cudaEventRecord(end_, stream_);
    cudaEventSynchronize(end_);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin_, end_);
    return ms;
  }

 private:
  bool copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, stream_) == cudaSuccess &&
           cudaStreamSynchronize(stream_) == cudaSuccess;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceMemory> cuda_memory() {
  int count = 0;
  const std::string said = text_of(cudaGetDeviceCount(&count));  // a driver that is too old, say
  if (said.empty() && count != 0) return std::make_unique<CudaMemory>();
  std::fprintf(stderr, "regard_gpu_check: %s\n", said.empty() ? "no device" : said.c_str());
  return nullptr;
}

}  // namespace regard::gpu_check
