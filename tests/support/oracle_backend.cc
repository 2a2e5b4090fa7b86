#include "tests/support/oracle_backend.h"

#include <cmath>
#include <cstddef>

#include "conformance/problem.h"
#include "oracle/gradients.h"
#include "oracle/number.h"

namespace regard::test {
namespace {

template <class T>
void write(const TensorView& view, const std::vector<T>& numbers) {
  if (!view.present()) return;
  std::size_t n = 0;
  conformance::for_each_element(view, [&](const auto&, unsigned char* element) {
    oracle::encode(static_cast<double>(numbers[n++]), element, view.dtype);
  });
}

AttentionOptions options_of(const AttentionParams& p) {
  AttentionOptions options;
  options.window_left = p.window_left;
  options.window_right = p.window_right;
  options.diagonal = p.diagonal;
  options.softmax_scale = p.softmax_scale;
  options.softcap = p.softcap;
  options.dropout_p = p.dropout_p;
  options.scores_kind = p.scores_kind;
  options.score_function = p.score_function;
  options.mask_function = p.mask_function;
  options.block_size_q = p.block_size_q;
  options.block_size_kv = p.block_size_kv;
  return options;
}

/// Row maxima and sums: e^(lse - maximum).
void write_stats(const TensorView& view, const oracle::Truth& truth) {
  if (!view.present()) return;
  std::size_t n = 0;
  conformance::for_each_element(view, [&](const auto& at, unsigned char* element) {
    const std::size_t row = n++ / 2;
    const auto lse = static_cast<double>(truth.lse[row]);
    const double max = std::isinf(lse) && lse < 0 ? lse : truth.rows[row].row_max;
    const double sum = std::isinf(max) ? (max > 0 ? 1.0 : 0.0) : std::exp(lse - max);
    oracle::encode(at[3] == 0 ? max : sum, element, view.dtype);
  });
}

}  // namespace

bool OracleBackend::supports(const AttentionKey& key, const Env& env,
                             std::vector<Refusal>* refusals) const {
  const bool by_record = Backend::supports(key, env, refusals);
  if (!own_rule || own_rule(key.params())) return by_record;
  if (refusals != nullptr && !own_refusal.limit.empty()) refusals->push_back(own_refusal);
  return false;
}

Expected<KernelPlan> OracleBackend::plan(const AttentionKey&, const Env&) const {
  KernelPlan plan;
  plan.kernel = "oracle";
  plan.workspace_bytes = 64;
  return plan;
}

Status OracleBackend::execute(const KernelPlan&, const AttentionParams& params,
                              const Buffers& buffers, const Launch&) const {
  if (cannot_run && cannot_run(params))
    return Status(StatusCode::kInternal, "[mock] cannot run it");
  AttentionRequest request;
  static_cast<Buffers&>(request) = buffers;
  request.options = options_of(params);
  if (misread) misread(request);
  const Expected<oracle::Truth> truth = oracle::compute(request, fault_);
  if (!truth) return truth.status();
  write(buffers.out, truth->out);
  write(buffers.lse, truth->lse);
  write(buffers.scores_out, truth->scores);
  write_stats(buffers.saved_stats, *truth);
  return {};
}

Status OracleBackend::execute_backward(const KernelPlan&, const AttentionParams& params,
                                       const Buffers& buffers, const GradBuffers& gradients,
                                       const Launch&) const {
  AttentionGradRequest request;
  static_cast<Buffers&>(request) = buffers;
  static_cast<GradBuffers&>(request) = gradients;
  request.options = options_of(params);
  const Expected<oracle::GradTruth> truth = oracle::compute_gradients(request, fault_);
  if (!truth) return truth.status();
  write(gradients.d_q, truth->d_q.exact);
  write(gradients.d_k, truth->d_k.exact);
  write(gradients.d_v, truth->d_v.exact);
  write(gradients.d_bias, truth->d_bias.exact);
  write(gradients.d_sinks, truth->d_sinks.exact);
  const TensorView* const captured[oracle::kCapturedCount] = {
      &gradients.d_captured0, &gradients.d_captured1, &gradients.d_captured2,
      &gradients.d_captured3, &gradients.d_captured4, &gradients.d_captured5,
      &gradients.d_captured6, &gradients.d_captured7};
  for (int slot = 0; slot < oracle::kCapturedCount; ++slot) {
    write(*captured[slot], truth->d_captured[slot].exact);
  }
  return {};
}

BackendInfo oracle_grad_info() {
  BackendInfo info = oracle_info();
  info.forward.features.set(Feature::kSavedStats);
  info.backward = info.forward;
  info.backward.features = info.forward.features.with({Feature::kDLse, Feature::kDelta});
  return info;
}

BackendInfo oracle_info() {
  BackendInfo info;
  info.ref = {BackendId::kCustom, "mock"};
  info.summary = "the oracle as a backend";
  info.determinism = Determinism::kBatchInvariant;
  info.forward.offered = true;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBf16, Dtype::kF16}) {
    info.forward.dtypes.push_back({dtype, dtype, dtype, 1e-2});
  }
  info.forward.features = {Feature::kCausal,
                           Feature::kWindowLeft,
                           Feature::kWindowRight,
                           Feature::kSoftcap,
                           Feature::kScoreFunction,
                           Feature::kMaskFunction,
                           Feature::kCaptured,
                           Feature::kScoreCallback,
                           Feature::kBlockMask,
                           Feature::kDiagonalBottomRight,
                           Feature::kDiagonalOffset,
                           Feature::kDropout,
                           Feature::kDropoutOrigin,
                           Feature::kDiagonalPerSequence,
                           Feature::kAttnMask,
                           Feature::kAttnBias,
                           Feature::kAlibi,
                           Feature::kSinks,
                           Feature::kSegmentIds,
                           Feature::kSeqlensQ,
                           Feature::kSeqlensKv,
                           Feature::kLse,
                           Feature::kScoresOut,
                           Feature::kGqa,
                           Feature::kHeadDimsDiffer,
                           Feature::kSeqlenQGreaterKv,
                           Feature::kNonFiniteBehindMask};
  info.forward.head_dim_qk = {1, 1024, 1};
  info.forward.head_dim_v = {1, 1024, 1};
  return info;
}

}  // namespace regard::test
