#pragma once

#include "backends/cuda_flash/wgmma_steps.cuh"
#include "cuda/launch.h"
#include "cuda/wgmma_block.h"

// Launches of wgmma's kernels, for .cu files alone.

namespace regard::cuda_flash {

/// The kernel as kernel_entry runs it.
template <class Kernel>
struct OnWgmmaBlock : Kernel {
  __device__ __forceinline__ static void run(const cuda::DeviceBlock& block,
                                             const typename Kernel::Args& args) {
    Kernel::run(cuda::WgmmaBlock(block.template shared<unsigned char>(0, 0)), args);
  }
};

/// The driver's function that makes a tensor map; null where the driver has none.
using EncodeMap = decltype(&cuTensorMapEncodeTiled);
EncodeMap encode_map();

/// On one stream.
class WgmmaRunner {
 public:
  using Map = CUtensorMap;

  explicit WgmmaRunner(void* stream) : run_(stream), encode_(encode_map()) {}

  Map map(const cuda::TensorBox& box);

  template <class Kernel>
  void launch(const typename Kernel::Args& args, std::int64_t tasks) {
    if (is_mapped_) run_.template launch<OnWgmmaBlock<Kernel>>(args, tasks);
  }

  Status status() const;

 private:
  cuda::DeviceRunner run_;
  EncodeMap encode_;
  bool is_mapped_ = true;
};

}  // namespace regard::cuda_flash
