#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "regard/status.h"
#include "regard/tensor.h"

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
  /// Milliseconds that `count` launches take, the last one's work included.
  virtual double time(int count, const std::function<void()>& launch) = 0;
};

/// A block of it; data() is null where there was no room.
class Buffer {
 public:
  Buffer(DeviceMemory& memory, std::size_t bytes)
      : memory_(&memory), data_(memory.allocate(std::max<std::size_t>(bytes, 256))) {}
  ~Buffer() {
    if (data_ != nullptr) memory_->free(data_);
  }
  Buffer(Buffer&& other) noexcept
      : memory_(other.memory_), data_(std::exchange(other.data_, nullptr)) {}
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  DeviceMemory* memory_;
  void* data_;
};

std::unique_ptr<DeviceMemory> host_memory();
/// Null where there is no device.
std::unique_ptr<DeviceMemory> cuda_memory();

}  // namespace regard::gpu_check
