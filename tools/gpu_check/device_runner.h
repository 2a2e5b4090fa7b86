#pragma once

#include "conformance/run.h"
#include "tools/gpu_check/device_memory.h"

namespace regard::gpu_check {

/// Carries every block of memory to the device and back, so that canaries, alignments and
/// comparisons hold there too. Every second call of a case replays a captured graph.
class CudaDeviceRunner final : public conformance::DeviceRunner {
 public:
  CudaDeviceRunner(DeviceMemory& memory, bool captures) : memory_(memory), captures_(captures) {}
  Status run(const Call& call) override;
  void begin_case() { calls_ = 0; }

 private:
  DeviceMemory& memory_;
  bool captures_;
  int calls_ = 0;
};

}  // namespace regard::gpu_check
