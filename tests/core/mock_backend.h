#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/plan/context_impl.h"
#include "regard/attention.h"

namespace regard::test {

/// A backend made of a record: plans nothing real, executes nothing.
class MockBackend : public Backend {
 public:
  explicit MockBackend(BackendInfo info) : info_(std::move(info)) {}
  const BackendInfo& info() const override { return info_; }
  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return workspace; }
  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override {
    ++plans;
    planned_seqlens_kv.push_back(key.params().seqlen_kv);
    if ((refuse_plan && refuse_plan(key)) || refused_isa == env.isa) {
      return Status(plan_refusal, "[mock] engine says no");
    }
    KernelPlan kernel;
    kernel.kernel = "mock";
    kernel.workspace_bytes = planned_workspace >= 0 ? planned_workspace : workspace;
    return kernel;
  }
  Status prepare(const KernelPlan&, const AttentionParams&, const Buffers&) const override {
    ++preparations;
    return {};
  }
  Status execute(const KernelPlan&, const AttentionParams&, const Buffers&,
                 const Launch&) const override {
    ++executions;
    if (refuse_execute) return Status(*refuse_execute, "[mock] engine says no");
    return {};
  }
  std::int64_t backward_workspace_bytes(const AttentionKey&, const Env&) const override {
    return backward_workspace;
  }
  Expected<KernelPlan> plan_backward(const AttentionKey&, const Env&) const override {
    if (refuse_backward) return Status(StatusCode::kRefusedAtPlan, "[mock] engine says no");
    KernelPlan kernel;
    kernel.kernel = "mock_backward";
    kernel.workspace_bytes = backward_workspace;
    return kernel;
  }
  Status execute_backward(const KernelPlan&, const AttentionParams&, const Buffers& buffers,
                          const GradBuffers&, const Launch&) const override {
    ++backward_executions;
    saw_outputs = buffers.lse.present() || buffers.saved_stats.present();
    return {};
  }

  std::int64_t workspace = 0;
  std::int64_t backward_workspace = 0;
  bool refuse_backward = false;
  std::int64_t planned_workspace = -1;  // -1: the same
  std::function<bool(const AttentionKey&)> refuse_plan;
  std::optional<Isa> refused_isa;  // of a machine that plan() refuses
  StatusCode plan_refusal = StatusCode::kRefusedAtPlan;
  std::optional<StatusCode> refuse_execute;
  mutable int preparations = 0;
  mutable std::vector<std::int64_t> planned_seqlens_kv;
  mutable int plans = 0;
  mutable int executions = 0;
  mutable int backward_executions = 0;
  mutable bool saw_outputs = false;  // of the forward, in a backward

 private:
  BackendInfo info_;
};

/// A record that claims everything a CPU backend can, in every float type.
inline BackendInfo generous_info(const std::string& name) {
  BackendInfo info;
  info.ref = {BackendId::kCustom, name};
  info.summary = "a mock";
  info.determinism = Determinism::kBatchInvariant;
  Claims claims;
  claims.offered = true;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBf16, Dtype::kF16}) {
    claims.dtypes.push_back({dtype, dtype, dtype, 1e-6});
  }
  for (int i = 0; i < kFeatureCount; ++i) claims.features.set(static_cast<Feature>(i));
  claims.head_dim_qk = {1, 1024, 1};
  claims.head_dim_v = {1, 1024, 1};
  info.forward = claims;
  info.backward = claims;
  return info;
}

/// An Env that reads nothing from this machine.
inline Env described_env() {
  Env env;
  env.isa = env.isa_available = Isa::kAvx2;
  env.cpu_model = "described CPU";
  env.concurrency = 2;
  env.version = version();
  env.compiler = "described";
  return env;
}

/// Adds a backend to a Context without a conformance suite, as its last candidate.
inline void add_backend(Context& context, const std::string& name,
                        std::shared_ptr<const Backend> backend) {
  ContextImpl::of(context).update([&](Settings& settings) {
    settings.cpu.push_back({{BackendId::kCustom, name}, std::move(backend)});
    ++settings.generations.registry;
  });
}

/// A trace that keeps every call: `add` with itself as the user.
struct TracedCalls {
  std::vector<CallTrace> list;
  static void add(void* user, const CallTrace& call) {
    static_cast<TracedCalls*>(user)->list.push_back(call);
  }
};

inline AttentionParams case_params(const std::string& text) {
  return parse_case(text).value().params;
}

inline Policy only(std::vector<BackendRef> refs) {
  Policy policy;
  policy.only = std::move(refs);
  return policy;
}
inline Policy prefer(std::vector<BackendRef> refs) {
  Policy policy;
  policy.prefer = std::move(refs);
  return policy;
}
inline Policy deny(std::vector<BackendRef> refs) {
  Policy policy;
  policy.deny = std::move(refs);
  return policy;
}

inline const BackendRef kMath{BackendId::kMath};
inline const BackendRef kFlash{BackendId::kFlash};
inline const BackendRef kEfficient{BackendId::kEfficient};
inline const BackendRef kCudnn{BackendId::kCudnn};
inline BackendRef custom(const std::string& name) { return {BackendId::kCustom, name}; }

}  // namespace regard::test
