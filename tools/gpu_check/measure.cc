#include "tools/gpu_check/measure.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "conformance/run.h"

namespace regard::gpu_check {
namespace {

constexpr int kRuns = 7;

// Device memory that is freed with its owner.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) {
    if (cudaMalloc(&data_, std::max<std::size_t>(bytes, 256)) != cudaSuccess) data_ = nullptr;
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  ~Stream() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

  /// Milliseconds of `count` launches on the device.
  double time(int count, const std::function<void()>& launch) {
    cudaEventRecord(begin_, stream_);
    for (int i = 0; i < count; ++i) launch();
    cudaEventRecord(end_, stream_);
    cudaEventSynchronize(end_);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin_, end_);
    return ms;
  }
  /// The median of a launch, over runs of some 50 ms.
  double median(const std::function<void()>& launch, double* spread = nullptr) {
    time(2, launch);
    const double once = std::max(time(1, launch), 1e-3);
    const int count = static_cast<int>(std::clamp(50.0 / once, 1.0, 2000.0));
    std::vector<double> runs;
    for (int i = 0; i < kRuns; ++i) runs.push_back(time(count, launch) / count);
    std::sort(runs.begin(), runs.end());
    const double middle = runs[kRuns / 2];
    if (spread != nullptr) *spread = (runs.back() - runs.front()) / middle;
    return middle;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Numbers of a few magnitudes (f32, f16 or bf16): an all-zero product would run cooler and faster.
void fill(const Buffer& buffer, std::size_t bytes, Dtype dtype) {
  std::vector<unsigned char> host(bytes);
  std::uint64_t state = 0x9e3779b97f4a7c15u;
  const std::size_t size = static_cast<std::size_t>(size_of(dtype));
  for (std::size_t at = 0; at + size <= bytes; at += size) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const float value = static_cast<float>(static_cast<int>(state >> 40) % 2001 - 1000) / 500.0f;
    const std::uint16_t half = dtype == Dtype::kF16 ? f16_from_f32(value) : bf16_from_f32(value);
    std::memcpy(host.data() + at, dtype == Dtype::kF32 ? static_cast<const void*>(&value) : &half,
                size);
  }
  cudaMemcpy(buffer.data(), host.data(), bytes, cudaMemcpyHostToDevice);
}

TensorView on_device(const Buffer& buffer, Dtype dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = make_view(buffer.data(), dtype, shape);
  view.device = {DeviceType::kCuda, 0};
  return view;
}

// The tensors of a case without edits of the scores, and the plan that runs it.
class Bench {
 public:
  explicit Bench(const AttentionParams& p) : p_(p) {
    const Dtype t = p.dtype_q;
    AttentionGradRequest& r = request_;
    r.q = take(t, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk}, true);
    r.k = take(t, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk}, true);
    r.v = take(t, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v}, true);
    r.out = take(t, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v}, false);
    if (!p.features.has(Feature::kNeedsGrad)) return;
    r.lse = take(Dtype::kF32, {p.batch, p.num_heads_q, p.seqlen_q}, false);
    r.saved.stats = r.lse;
    r.saved.kind = SavedContext::Kind::kLse;
    r.d_out = take(t, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_v}, true);
    r.d_q = take(t, {p.batch, p.num_heads_q, p.seqlen_q, p.head_dim_qk}, false);
    r.d_k = take(t, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_qk}, false);
    r.d_v = take(t, {p.batch, p.num_heads_kv, p.seqlen_kv, p.head_dim_v}, false);
  }

  std::string error() const { return error_; }

  Timing run(const Plan& plan) {
    const bool backward = p_.features.has(Feature::kNeedsGrad);
    const auto bytes = std::max(plan.workspace_bytes(), plan.backward_workspace_bytes());
    const Buffer workspace(static_cast<std::size_t>(bytes));
    Launch launch;
    launch.stream = stream_.get();
    launch.workspace = {workspace.data(), static_cast<std::size_t>(bytes)};
    Timing timing;
    const auto call = [&](bool back) {
      const Status status = back ? execute_backward(plan, request_, request_, launch)
                                 : execute(plan, request_, launch);
      if (!status.ok() && timing.error.empty()) timing.error = status.to_string();
    };
    call(false);
    const std::function<void()> timed = [&] { call(backward); };
    timing.ms = stream_.median(timed, &timing.spread);
    timing.clock_mhz = sm_clock_mhz();
    cudaStreamSynchronize(stream_.get());
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 16; ++i) timed();
    const auto end = std::chrono::steady_clock::now();
    timing.host_us = std::chrono::duration<double, std::micro>(end - begin).count() / 16;
    const cudaError_t error = cudaStreamSynchronize(stream_.get());
    if (error != cudaSuccess) timing.error = cudaGetErrorString(error);
    timing.tflops = flops() / timing.ms * 1e-9;
    return timing;
  }

 private:
  TensorView take(Dtype dtype, std::initializer_list<std::int64_t> shape, bool input) {
    std::size_t bytes = static_cast<std::size_t>(size_of(dtype));
    for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
    buffers_.emplace_back(bytes);
    if (buffers_.back().data() == nullptr) {
      error_ = "the device has no memory left";
    } else if (input) {
      fill(buffers_.back(), bytes, dtype);
    }
    return on_device(buffers_.back(), dtype, shape);
  }

  double flops() const {
    const double pairs = static_cast<double>(p_.batch * p_.num_heads_q) *
                         static_cast<double>(p_.seqlen_q) * static_cast<double>(p_.seqlen_kv);
    const double forward = 2.0 * pairs * static_cast<double>(p_.head_dim_qk + p_.head_dim_v);
    const double causal = p_.features.has(Feature::kCausal) && p_.seqlen_q > 1 ? 0.5 : 1.0;
    return forward * causal * (p_.features.has(Feature::kNeedsGrad) ? 2.5 : 1.0);
  }

  const AttentionParams& p_;
  Stream stream_;
  std::vector<Buffer> buffers_;
  AttentionGradRequest request_;
  std::string error_;
};

}  // namespace

DeviceFacts read_facts(const Env& env) {
  DeviceFacts facts;
  facts.name = env.device_name;
  facts.sm_version = env.sm_version;
  facts.cudnn = env.cudnn_version;
  cudaDriverGetVersion(&facts.driver);
  cudaRuntimeGetVersion(&facts.runtime);
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) {
    facts.memory_gib = static_cast<double>(total) / (1 << 30);
  }
  return facts;
}

int sm_clock_mhz() {
  struct Library {
    void* handle = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    void* device = nullptr;
    int (*clock)(void*, int, unsigned*) = nullptr;
    Library() {
      if (handle == nullptr) return;
      const auto init = find<int()>(handle, "nvmlInit_v2");
      const auto get = find<int(unsigned, void**)>(handle, "nvmlDeviceGetHandleByIndex_v2");
      if (init != nullptr && get != nullptr && init() == 0 && get(0, &device) == 0) {
        clock = find<int(void*, int, unsigned*)>(handle, "nvmlDeviceGetClockInfo");
      }
    }
  };
  static const Library library;
  constexpr int kSmClock = 1;
  unsigned mhz = 0;
  if (library.clock == nullptr || library.clock(library.device, kSmClock, &mhz) != 0) return 0;
  return static_cast<int>(mhz);
}

double matmul_tflops() {
  void* library = dlopen("libcublas.so.13", RTLD_NOW);
  if (library == nullptr) library = dlopen("libcublas.so.12", RTLD_NOW);
  if (library == nullptr) return 0;
  const auto create = find<decltype(cublasCreate_v2)>(library, "cublasCreate_v2");
  const auto set_stream = find<decltype(cublasSetStream_v2)>(library, "cublasSetStream_v2");
  using Gemm =
      cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                     const void*, const void*, cudaDataType, int, const void*, cudaDataType, int,
                     const void*, void*, cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
  const auto gemm = find<Gemm>(library, "cublasGemmEx");
  cublasHandle_t handle = nullptr;
  if (create == nullptr || set_stream == nullptr || gemm == nullptr) return 0;
  if (create(&handle) != CUBLAS_STATUS_SUCCESS) return 0;
  Stream stream;
  set_stream(handle, stream.get());
  constexpr int kN = 8192;
  constexpr std::size_t kBytes = std::size_t{2} * kN * kN;
  const Buffer a(kBytes), b(kBytes), c(kBytes);
  fill(a, kBytes, Dtype::kBf16);
  fill(b, kBytes, Dtype::kBf16);
  const float one = 1.0f, zero = 0.0f;
  const double ms = stream.median([&] {
    gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, kN, kN, kN, &one, a.data(), CUDA_R_16BF, kN, b.data(),
         CUDA_R_16BF, kN, &zero, c.data(), CUDA_R_16BF, kN, CUBLAS_COMPUTE_32F,
         CUBLAS_GEMM_DEFAULT);
  });
  return 2.0 * kN * kN * kN / ms * 1e-9;
}

double copy_gbps() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const Buffer from(kBytes), to(kBytes);
  if (from.data() == nullptr || to.data() == nullptr) return 0;
  Stream stream;
  const double ms = stream.median([&] {
    cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get());
  });
  return 2.0 * static_cast<double>(kBytes) / ms * 1e-6;
}

Timing measure(Context& context, const Case& c, const BackendRef& backend) {
  Timing timing;
  const Expected<Plan> made = plan(context, c.params, conformance::policy_for(c, backend));
  if (!made) {
    timing.error = made.status().to_string();
    return timing;
  }
  Bench bench(c.params);
  timing.error = bench.error();
  return timing.error.empty() ? bench.run(*made) : timing;
}

}  // namespace regard::gpu_check
