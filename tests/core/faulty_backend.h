#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "mock_backend.h"

namespace regard::test {

/// Another backend's results, but every k-th row of out, counted over [B,Hq,Sq], is wrong by a
/// share of itself. `every` = 0: none is.
class FaultyBackend : public Backend {
 public:
  FaultyBackend(std::shared_ptr<const Backend> inner, std::string name)
      : inner_(std::move(inner)), info_(inner_->info()) {
    info_.ref = {BackendId::kCustom, std::move(name)};
  }
  /// In the inner backend's place.
  explicit FaultyBackend(std::shared_ptr<const Backend> inner)
      : inner_(std::move(inner)), info_(inner_->info()) {}
  const BackendInfo& info() const override { return info_; }
  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override {
    return inner_->supports(key, env, refusals);
  }
  std::int64_t workspace_bytes(const AttentionKey& key, const Env& env) const override {
    return inner_->workspace_bytes(key, env);
  }
  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    return inner_->plan(key, env);
  }
  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override {
    const Status status = inner_->execute(plan, params, buffers, launch);
    const std::int64_t k = every.load();
    if (!status.ok() || k == 0) return status;
    const TensorView& out = buffers.out;
    std::int64_t n = 0;
    for (std::int64_t b = 0; b < out.shape[0]; ++b) {
      for (std::int64_t h = 0; h < out.shape[1]; ++h) {
        for (std::int64_t i = 0; i < out.shape[2]; ++i) {
          if (++n % k == 0)
            spoil(out, b * out.strides[0] + h * out.strides[1] + i * out.strides[2]);
        }
      }
    }
    return status;
  }

  std::atomic<std::int64_t> every{0};

 private:
  // The types of which tests call it; a high bit of the first element's fraction, or its sign.
  static void spoil(const TensorView& out, std::int64_t at) {
    if (out.dtype == Dtype::kF32) {
      static_cast<float*>(out.data)[at] += 0.25f;
    } else if (out.dtype == Dtype::kF64) {
      static_cast<double*>(out.data)[at] += 0.25;
    } else {
      static_cast<std::uint16_t*>(out.data)[at] ^= 0x8000 | 0x0040;
    }
  }

  std::shared_ptr<const Backend> inner_;
  BackendInfo info_;
};

/// A built-in backend of a Context.
inline std::shared_ptr<const Backend> backend_of(Context& context, const BackendRef& ref) {
  for (const BackendEntry& entry : ContextImpl::of(context).settings()->cpu) {
    if (entry.ref == ref) return entry.backend;
  }
  return nullptr;
}

}  // namespace regard::test
