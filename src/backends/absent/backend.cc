#include "backends/absent/backend.h"

#include <string>
#include <utility>

#include "base/checked.h"

namespace regard::absent {
namespace {

constexpr const char* kNoCuda = "built without CUDA";

class AbsentBackend final : public Backend {
 public:
  AbsentBackend(BackendId id, DeviceType device, std::string summary, std::string reason) {
    info_.ref.id = id;
    info_.summary = std::move(summary);
    info_.device = device;
    info_.built = false;
    info_.not_built_reason = std::move(reason);
  }

  const BackendInfo& info() const override { return info_; }

  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return kInt64Max; }

  Expected<KernelPlan> plan(const AttentionKey&, const Env&) const override {
    return Status(StatusCode::kInternal, "[plan] " + to_string(info_.ref) + " is not built (" +
                                             info_.not_built_reason + ") and cannot be chosen");
  }

  Status execute(const KernelPlan&, const AttentionParams&, const Buffers&,
                 const Launch&) const override {
    return Status(StatusCode::kInternal, "[execute] " + to_string(info_.ref) + " is not built (" +
                                             info_.not_built_reason + ") and cannot run");
  }

 private:
  BackendInfo info_;
};

}  // namespace

const Backend& cuda_math() {
  static const AbsentBackend instance(BackendId::kMath, DeviceType::kCuda,
                                      "unfused and deterministic, every feature", kNoCuda);
  return instance;
}

const Backend& cuda_flash() {
  static const AbsentBackend instance(BackendId::kFlash, DeviceType::kCuda,
                                      "tiled online softmax on tensor cores", kNoCuda);
  return instance;
}

const Backend& cuda_efficient() {
  static const AbsentBackend instance(BackendId::kEfficient, DeviceType::kCuda,
                                      "tiled online softmax, constant extra memory", kNoCuda);
  return instance;
}

const Backend& cuda_cudnn() {
  static const AbsentBackend instance(BackendId::kCudnn, DeviceType::kCuda,
                                      "cuDNN's attention graphs", kNoCuda);
  return instance;
}

}  // namespace regard::absent
