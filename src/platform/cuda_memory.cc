#include <cuda_runtime_api.h>

#include <exception>

#include "base/message.h"
#include "platform/device_memory.h"

namespace regard {
namespace {

// The error's text; takes it from the thread, or the next caller of the runtime would find it.
const char* text_of(cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(error);
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess) {
    return status == cudaStreamCaptureStatusActive;
  }
  static_cast<void>(cudaGetLastError());
  return false;
}

}  // namespace

DeviceGuard::DeviceGuard(const char* where, const Device& device) {
  if (device.type != DeviceType::kCuda) return;
  int current = 0;
  cudaError_t error = cudaGetDevice(&current);
  // Also where the device is current already: it is in a thread that has never called CUDA, which
  // has no context yet, and cuDNN's engines call the driver, which needs one.
  if (error == cudaSuccess) error = cudaSetDevice(device.index);
  if (error == cudaSuccess) {
    if (current != device.index) previous_ = current;
    return;
  }
  try {
    status_ = invalid(where, "device (cuda:", device.index,
                      ") must be one that the driver has: ", text_of(error));
  } catch (const std::exception&) {  // give_back must not throw
    status_ = Status::out_of_memory(where);
  }
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) static_cast<void>(cudaSetDevice(previous_));
}

Status copy_to_host(const char* where, const TensorView& view, void* destination, std::size_t bytes,
                    void* stream) {
  const DeviceGuard guard(where, view.device);
  if (!guard.status().ok()) return guard.status();
  auto* const on = static_cast<cudaStream_t>(stream);
  cudaError_t error = cudaMemcpyAsync(destination, view.data, bytes, cudaMemcpyDeviceToHost, on);
  if (error == cudaSuccess) error = cudaStreamSynchronize(on);
  if (error == cudaSuccess) return {};
  return failure(StatusCode::kInternal, where, "CUDA: ", text_of(error));
}

DevicePools::~DevicePools() {
  // The driver keeps a pool until the last of its blocks is freed.
  for (const Pool& pool : pools_) {
    static_cast<void>(cudaMemPoolDestroy(static_cast<cudaMemPool_t>(pool.handle)));
  }
}

int DevicePools::find_pool(std::int32_t device, void** handle) {
  const std::lock_guard lock(mutex_);
  for (const Pool& pool : pools_) {
    if (pool.device == device) *handle = pool.handle;
  }
  if (*handle != nullptr) return cudaSuccess;
  pools_.reserve(pools_.size() + 1);  // a pool that is made is kept
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t made = nullptr;
  cudaError_t error = cudaMemPoolCreate(&made, &properties);
  std::uint64_t keep = ~std::uint64_t{0};  // else every synchronisation gives the memory back
  if (error == cudaSuccess) {
    error = cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &keep);
  }
  if (error == cudaSuccess) pools_.push_back({device, *handle = made});
  return error;
}

Expected<Workspace> DevicePools::lease(const Device& device, std::size_t bytes, void* stream) {
  const DeviceGuard guard("attention", device);
  if (!guard.status().ok()) return guard.status();
  auto* const on = static_cast<cudaStream_t>(stream);
  void* data = nullptr;
  cudaError_t error = cudaSuccess;
  if (is_captured(on)) {  // the memory is the graph's, whatever pool, and none may be made now
    error = cudaMallocAsync(&data, bytes, on);
  } else {
    void* pool = nullptr;
    error = static_cast<cudaError_t>(find_pool(device.index, &pool));
    if (error == cudaSuccess) {
      error = cudaMallocFromPoolAsync(&data, bytes, static_cast<cudaMemPool_t>(pool), on);
    }
  }
  if (error == cudaSuccess) return Workspace{data, bytes};
  return failure(StatusCode::kWorkspace, "attention", "cannot allocate a workspace of ", bytes,
                 " bytes on cuda:", device.index, ": ", text_of(error));
}

void DevicePools::give_back(const Device& device, Workspace block, void* stream) noexcept {
  const DeviceGuard guard("attention", device);  // the default stream is the current device's
  const cudaError_t error = cudaFreeAsync(block.data, static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
}

void DevicePools::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (const Pool& pool : pools_) {
    static_cast<void>(cudaMemPoolTrimTo(static_cast<cudaMemPool_t>(pool.handle), 0));
  }
}

std::int64_t DevicePools::total_bytes() const {
  const std::lock_guard lock(mutex_);
  std::int64_t total = 0;
  for (const Pool& pool : pools_) {
    std::uint64_t bytes = 0;
    if (cudaMemPoolGetAttribute(static_cast<cudaMemPool_t>(pool.handle),
                                cudaMemPoolAttrReservedMemCurrent, &bytes) == cudaSuccess) {
      total += static_cast<std::int64_t>(bytes);
    }
  }
  return total;
}

}  // namespace regard
