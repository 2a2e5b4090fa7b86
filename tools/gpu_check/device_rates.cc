#include "tools/gpu_check/device_rates.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstddef>

#include "tools/gpu_check/numbers.h"
#include "tools/gpu_check/timing.h"

namespace regard::gpu_check {
namespace {

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

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

double matmul_tflops(DeviceMemory& memory) {
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
  set_stream(handle, static_cast<cudaStream_t>(memory.stream()));
  constexpr int kN = 8192;
  constexpr std::size_t kBytes = std::size_t{2} * kN * kN;
  const Buffer a(memory, kBytes), b(memory, kBytes), c(memory, kBytes);
  upload_numbers(memory, a, kBytes, Dtype::kBf16);
  upload_numbers(memory, b, kBytes, Dtype::kBf16);
  const float one = 1.0f, zero = 0.0f;
  bool runs = true;
  const Median median = median_time(memory, {}, [&] {
    runs = runs && gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, kN, kN, kN, &one, a.data(), CUDA_R_16BF,
                        kN, b.data(), CUDA_R_16BF, kN, &zero, c.data(), CUDA_R_16BF, kN,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
  });
  return runs && median.ms > 0 ? 2.0 * kN * kN * kN / median.ms * 1e-9 : 0;
}

double copy_gbps(DeviceMemory& memory) {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  const Buffer from(memory, kBytes), to(memory, kBytes);
  if (from.data() == nullptr || to.data() == nullptr) return 0;
  const Median median = median_time(memory, {}, [&] {
    cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice,
                    static_cast<cudaStream_t>(memory.stream()));
  });
  return 2.0 * static_cast<double>(kBytes) / median.ms * 1e-6;
}

}  // namespace regard::gpu_check
