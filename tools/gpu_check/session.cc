#include <algorithm>
#include <stdexcept>

#include "tools/gpu_check/phase.h"

namespace regard::gpu_check {

DeviceMemory& Session::memory() {
  if (memory_ == nullptr) memory_ = setup.rehearse ? host_memory() : cuda_memory();
  if (memory_ == nullptr) throw std::runtime_error("the device is gone");
  return *memory_;
}

CudaDeviceRunner& Session::runner() {
  if (!runner_) runner_.emplace(memory(), !setup.rehearse);
  return *runner_;
}

Bench Session::bench() {
  return {context_, memory(), setup.rehearse ? Effort{0.2, 3} : Effort{}, setup.rehearse};
}

Case case_of(const Setup& setup, const std::string& words) {
  Case c = parse_case(words).value();
  c.params.device = {setup.rehearse ? DeviceType::kCpu : DeviceType::kCuda, 0};
  if (setup.rehearse) {
    constexpr std::int64_t kMax = 64;
    c.params.seqlen_q = std::min(c.params.seqlen_q, kMax);
    c.params.seqlen_kv = std::min(c.params.seqlen_kv, kMax);
  }
  canonicalize(c);
  return c;
}

}  // namespace regard::gpu_check
