#pragma once

#include <string>

#include "regard/backend.h"

namespace regard::absent {

inline constexpr const char* kNoCuda = "configure with -DREGARD_CUDA=ON";

/// A backend of the list that this build lacks: it refuses and states what to do.
class AbsentBackend final : public Backend {
 public:
  AbsentBackend(BackendId id, DeviceType device, std::string summary, std::string reason);

  const BackendInfo& info() const override { return info_; }
  std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const override;
  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override;
  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override;

 private:
  BackendInfo info_;
};

}  // namespace regard::absent
