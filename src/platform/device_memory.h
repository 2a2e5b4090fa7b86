#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensor.h"

// What the core itself does on a CUDA device. In a build without CUDA nothing here can be done, and
// each function states so.

namespace regard {

/// Makes a device the calling thread's current one while it lives, and binds its context to the
/// thread; nothing for a CPU.
class DeviceGuard {
 public:
  DeviceGuard(const char* where, const Device& device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  /// Not ok where the driver has no such device.
  const Status& status() const noexcept { return status_; }

 private:
  Status status_;
  [[maybe_unused]] int previous_ = -1;  // -1: nothing to restore, as ever without CUDA
};

/// Copies the first `bytes` of the view's memory and waits for the stream.
Status copy_to_host(const char* where, const TensorView& view, void* destination, std::size_t bytes,
                    void* stream);

/// The memory that a Context leases for calls on its devices: one pool of the driver's for each,
/// which keeps what is freed until trim(). Leases begin and end in the order of a stream, so that a
/// block never serves two calls at a time, and the calls can be captured in a graph.
class DevicePools {
 public:
  DevicePools() = default;
  ~DevicePools();
  DevicePools(const DevicePools&) = delete;
  DevicePools& operator=(const DevicePools&) = delete;

  Expected<Workspace> lease(const Device& device, std::size_t bytes, void* stream);
  void give_back(const Device& device, Workspace block, void* stream) noexcept;
  void trim() noexcept;
  /// Bytes that the pools hold, leased or not.
  std::int64_t total_bytes() const;

 private:
  /// The device's pool, made where there is none; the driver's error.
  int find_pool(std::int32_t device, void** handle);

  struct Pool {
    std::int32_t device;
    void* handle;
  };
  mutable std::mutex mutex_;
  std::vector<Pool> pools_;
};

}  // namespace regard
