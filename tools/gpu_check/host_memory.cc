#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tools/gpu_check/device_memory.h"

namespace regard::gpu_check {
namespace {

class HostMemory final : public DeviceMemory {
 public:
  Device device() const override { return {}; }
  void* allocate(std::size_t bytes) override {
    return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  }
  void free(void* data) override { std::free(data); }
  bool upload(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  bool download(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
    return true;
  }
  std::string wait() override { return ""; }
  void* stream() const override { return nullptr; }
  Status replay(Status (*launch)(void*), void* state) override { return launch(state); }
  double time(int count, const std::function<void()>& launch) override {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) launch();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  }
};

}  // namespace

std::unique_ptr<DeviceMemory> host_memory() { return std::make_unique<HostMemory>(); }

}  // namespace regard::gpu_check
