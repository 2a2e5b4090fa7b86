#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "regard/backend.h"

namespace regard::cuda {

/// The record, and the least compute capability that kernels are compiled for.
inline bool check_device(const BackendInfo& info, const AttentionKey& key, const Env& env,
                         std::vector<Refusal>* refusals) {
  constexpr std::int32_t kLeastSm = 75;
  const bool passed = check_claims(info, key, env, refusals);
  const bool on_device =
      info.device == DeviceType::kCuda && key.params().device.type == DeviceType::kCuda;
  if (!on_device || env.sm_version >= kLeastSm) return passed;
  if (refusals != nullptr) {
    const std::string actual =
        env.sm_version == 0 ? "no CUDA device" : "sm" + std::to_string(env.sm_version);
    refusals->push_back({RefusalCode::kIsa, "at least sm" + std::to_string(kLeastSm), actual, {}});
  }
  return false;
}

}  // namespace regard::cuda
