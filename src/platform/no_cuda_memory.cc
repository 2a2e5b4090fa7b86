#include "base/message.h"
#include "platform/device_memory.h"

namespace regard {

DeviceGuard::DeviceGuard(const char*, const Device&) {}
DeviceGuard::~DeviceGuard() = default;

Status copy_to_host(const char* where, const TensorView&, void*, std::size_t, void*) {
  return invalid(where, "device (cuda) must be cpu: this build has no CUDA support");
}

DevicePools::~DevicePools() = default;

Expected<Workspace> DevicePools::lease(const Device&, std::size_t bytes, void*) {
  return failure(StatusCode::kWorkspace, "attention", "cannot allocate a workspace of ", bytes,
                 " bytes on a CUDA device: this build has no CUDA support");
}

void DevicePools::give_back(const Device&, Workspace, void*) noexcept {}
void DevicePools::trim() noexcept {}
std::int64_t DevicePools::total_bytes() const { return 0; }

}  // namespace regard
