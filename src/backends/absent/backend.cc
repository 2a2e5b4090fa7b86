#include "backends/absent/backend.h"

#include <utility>

#include "base/checked.h"

namespace regard::absent {

AbsentBackend::AbsentBackend(BackendId id, DeviceType device, std::string summary,
                             std::string reason) {
  info_.ref.id = id;
  info_.summary = std::move(summary);
  info_.device = device;
  info_.built = false;
  info_.not_built_reason = std::move(reason);
}

std::int64_t AbsentBackend::workspace_bytes(const AttentionKey&, const Env&) const {
  return kInt64Max;
}

Expected<KernelPlan> AbsentBackend::plan(const AttentionKey&, const Env&) const {
  return Status(StatusCode::kInternal, "[plan] " + to_string(info_.ref) +
                                           " is not part of this build and cannot be chosen");
}

Status AbsentBackend::execute(const KernelPlan&, const AttentionParams&, const Buffers&,
                              const Launch&) const {
  return Status(StatusCode::kInternal,
                "[execute] " + to_string(info_.ref) + " is not part of this build and cannot run");
}

}  // namespace regard::absent
