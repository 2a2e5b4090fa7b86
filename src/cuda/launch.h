#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "cuda/block.cuh"
#include "regard/status.h"

// Launches of kernels, for .cu files alone. A kernel is a struct with
//
//   Args                     plain data, handed over by value
//   kThreads, kSharedBytes   of a block; more than kStaticShared is requested at the launch
//   kBlocks                  on a multiprocessor at once: what its registers must leave room for
//   run(block, args)         one block's work: the tasks index(), index() + count(), ... of the
//   grid
//   kMinSm                   if its instructions need one: the smallest compute capability * 10

namespace regard::cuda {

/// Whether the architecture that is being compiled has a kernel's instructions. Where it has not,
/// the kernel's plans are made for no device but one that a build was not made for.
template <class Kernel>
__device__ constexpr bool has_instructions() {
#if defined(__CUDA_ARCH__)
  if constexpr (requires { Kernel::kMinSm; }) return __CUDA_ARCH__ >= Kernel::kMinSm * 10;
#endif
  return true;
}

/// Shared memory that every device gives a block unasked.
inline constexpr int kStaticShared = 48 * 1024;

template <class Kernel>
inline constexpr bool kIsDynamic = (Kernel::kSharedBytes > kStaticShared);

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
    kernel_entry(const __grid_constant__ typename Kernel::Args args) {
  if constexpr (has_instructions<Kernel>() && kIsDynamic<Kernel>) {
    extern __shared__ uint4 chunks[];
    Kernel::run(DeviceBlock(reinterpret_cast<unsigned char*>(chunks)), args);
  } else if constexpr (has_instructions<Kernel>()) {
    __shared__ alignas(16) unsigned char shared[Kernel::kSharedBytes];
    Kernel::run(DeviceBlock(shared), args);
  } else {
    __trap();  // unwritten results must not pass for some
  }
}

/// Launches on one stream. Grids have one dimension, whose limit is 2^31 - 1; larger ones go round.
class DeviceRunner {
 public:
  explicit DeviceRunner(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  template <class Kernel>
  void launch(const typename Kernel::Args& args, std::int64_t tasks) {
    static_assert(sizeof(args) <= 4096, "what a launch can hand over");
    if (tasks <= 0 || error_ != cudaSuccess) return;
    constexpr std::int64_t kMaxBlocks = 0x7fffffff;
    const auto blocks = static_cast<unsigned>(tasks < kMaxBlocks ? tasks : kMaxBlocks);
    void* list[] = {const_cast<typename Kernel::Args*>(&args)};
    const auto* const entry = reinterpret_cast<const void*>(&kernel_entry<Kernel>);
    constexpr int kDynamic = kIsDynamic<Kernel> ? Kernel::kSharedBytes : 0;
    if constexpr (kDynamic > 0) {
      // At every launch, for it holds for a device alone; a capture allows it.
      error_ = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, kDynamic);
    }
    // Not <<<>>>, whose error is the thread's last one, and that may be an earlier call's.
    if (error_ == cudaSuccess) {
      error_ =
          cudaLaunchKernel(entry, dim3(blocks), dim3(Kernel::kThreads), list, kDynamic, stream_);
    }
    if (error_ != cudaSuccess) static_cast<void>(cudaGetLastError());
  }

  Status status(const char* backend) const {
    if (error_ == cudaSuccess) return Status();
    return Status(StatusCode::kInternal, "[execute] " + std::string(backend) + ": CUDA error " +
                                             cudaGetErrorName(error_) + ": " +
                                             cudaGetErrorString(error_));
  }

 private:
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace regard::cuda
