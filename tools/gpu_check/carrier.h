#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "conformance/run.h"

namespace regard::gpu_check {

/// Memory of a device, or host memory that plays one.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  virtual Device device() const = 0;
  virtual void* allocate(std::size_t bytes) = 0;  // aligned to 256; null when there is none
  virtual void free(void* data) = 0;
  virtual bool upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual bool download(void* to, const void* from, std::size_t bytes) = 0;
  /// Waits for everything launched; the text of an error, or "".
  virtual std::string wait() = 0;
  virtual void* stream() const = 0;
  /// Captures what `launch` launches in a graph and runs that; without graphs, launches it.
  virtual Status replay(Status (*launch)(void*), void* state) = 0;
};

std::unique_ptr<DeviceMemory> host_memory();
/// Null where there is no device.
std::unique_ptr<DeviceMemory> cuda_memory();

/// Carries every block of memory to the device and back, so that canaries, alignments and
/// comparisons hold there too. Every second call of a case replays a captured graph.
class DeviceCarrier final : public conformance::Carrier {
 public:
  DeviceCarrier(DeviceMemory& memory, bool captures) : memory_(memory), captures_(captures) {}
  Status run(const Call& call) override;
  void begin_case() { calls_ = 0; }

 private:
  DeviceMemory& memory_;
  bool captures_;
  int calls_ = 0;
};

}  // namespace regard::gpu_check
