#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "oracle/oracle.h"
#include "regard/backend.h"
#include "regard/context.h"

namespace regard::test {

/// A backend that answers with the oracle's truth, or with what is left of it after a planted
/// fault: right by construction, slow, and free to claim whatever a test wants.
class OracleBackend : public Backend {
 public:
  explicit OracleBackend(BackendInfo info, oracle::Fault fault = oracle::Fault::kNone)
      : info_(std::move(info)), fault_(fault) {}

  const BackendInfo& info() const override { return info_; }
  bool supports(const AttentionKey& key, const Env& env,
                std::vector<Refusal>* refusals) const override;
  std::int64_t workspace_bytes(const AttentionKey&, const Env&) const override { return 64; }
  Expected<KernelPlan> plan(const AttentionKey& key, const Env& env) const override;
  Status execute(const KernelPlan& plan, const AttentionParams& params, const Buffers& buffers,
                 const Launch& launch) const override;
  std::int64_t backward_workspace_bytes(const AttentionKey&, const Env&) const override {
    return 64;
  }
  Expected<KernelPlan> plan_backward(const AttentionKey& key, const Env& env) const override {
    return plan(key, env);
  }
  Status execute_backward(const KernelPlan& plan, const AttentionParams& params,
                          const Buffers& buffers, const GradBuffers& gradients,
                          const Launch& launch) const override;

  /// Where set: a further rule of supports(); false refuses with `own_refusal` (or, where its limit
  /// is empty, without a reason).
  std::function<bool(const AttentionParams&)> own_rule;
  Refusal own_refusal;
  /// Where set: execute() fails on these, claimed or not.
  std::function<bool(const AttentionParams&)> cannot_run;
  /// Where set: changes the request that the oracle answers (a feature silently dropped).
  std::function<void(AttentionRequest&)> misread;

 private:
  BackendInfo info_;
  oracle::Fault fault_;
};

/// Claims of every float dtype and of everything that the oracle knows, under the name "mock".
BackendInfo oracle_info();

/// The same with saved_stats and a backward of the same claims.
BackendInfo oracle_grad_info();

/// Accepts anything: for putting wrong backends into a Context.
class NoSuite final : public ConformanceSuite {
 public:
  Status run(Context&, const BackendRef&) const override { return {}; }
};

}  // namespace regard::test
