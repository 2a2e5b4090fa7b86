#include "core/select/predictions.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/text.h"
#include "core/select/tuning.h"

namespace regard {
namespace {

struct NamedExtent {
  const char* field;
  std::int64_t AttentionParams::*value;
};
constexpr NamedExtent kCheckedExtents[] = {{"seqlen_q", &AttentionParams::seqlen_q},
                                           {"seqlen_kv", &AttentionParams::seqlen_kv},
                                           {"batch", &AttentionParams::batch}};

/// The nearest extent, by powers of two, at which `other` is predicted to be faster; none within
/// 64 times.
std::optional<Fix> crossing(const CostModel& model, const AttentionParams& params,
                            const NamedExtent& extent, const BackendRef& chosen,
                            const BackendRef& other) {
  constexpr int kDoublings = 6;
  const std::int64_t value = params.*extent.value;
  for (int i = 1; i <= kDoublings; ++i) {
    for (const std::int64_t changed : {value >> i, value << i}) {
      if (changed < 1 || changed == value || value > (std::int64_t{1} << 40)) continue;
      AttentionParams at = params;
      at.*extent.value = changed;
      const double theirs = predicted_seconds(model, other, at);
      if (theirs < predicted_seconds(model, chosen, at)) {
        return Fix{Fix::Op::kSet, extent.field, std::to_string(changed)};
      }
    }
  }
  return std::nullopt;
}

std::vector<Fix> changes_for(const CostModel& model, const Selection& selection,
                             const Verdict& chosen, const Verdict& other) {
  std::vector<Fix> changes;
  const AttentionParams& params = selection.params;
  // Totals of tokens bind the lengths of packed sequences, and page tables those of pages.
  const bool are_free = !params.features.has(Feature::kPacked) &&
                        !params.features.has(Feature::kPaged) && params.tokens_q == 0 &&
                        params.tokens_kv == 0;
  const bool is_slower = predicted_seconds(model, other.backend, params) >=
                         predicted_seconds(model, chosen.backend, params);
  for (const NamedExtent& extent : kCheckedExtents) {
    if (!are_free || !is_slower) break;
    auto change = crossing(model, params, extent, chosen.backend, other.backend);
    if (change) changes.push_back(*std::move(change));
  }
  changes.push_back({Fix::Op::kSet, "policy.prefer", to_string(other.backend)});
  return changes;
}

bool is_candidate(const Verdict& verdict, bool needs_grad) {
  return verdict.status() == VerdictStatus::kUsable && verdict.refusals.empty() &&
         verdict.predicted_seconds(needs_grad) >= 0.0;
}

}  // namespace

double predicted_seconds(const CostModel& model, const BackendRef& backend,
                         const AttentionParams& params) noexcept {
  const PredictedTime forward = predict_time(model, backend, params, false);
  if (!params.features.has(Feature::kNeedsGrad) || !forward.known()) return forward.seconds;
  const PredictedTime backward = predict_time(model, backend, params, true);
  return backward.known() ? forward.seconds + backward.seconds : -1.0;
}

CostModel cost_model(const TuningTable& tuning, const Env& env, DeviceType device) {
  if (tuning.costs.empty() || !tuning_mismatch(tuning, env, device).empty()) {
    return default_costs(env);
  }
  CostModel model = tuning.costs;
  model.source = "tuning table " + tuning.source;
  return model;
}

bool allows_tuning(const Policy& policy) noexcept {
  return policy.require.value_or(Determinism::kNone) < Determinism::kThreadCountInvariant;
}

std::shared_ptr<const CostModel> path_costs(std::shared_ptr<const CostModel> model, const Isa& isa,
                                            const Policy& policy) {
  if (allows_tuning(policy)) return model;
  Env any;
  any.isa = isa;
  return std::make_shared<const CostModel>(default_costs(any));
}

void add_predictions(const CostModel& model, Selection& selection) {
  const AttentionParams& params = selection.params;
  if (params.device.type != DeviceType::kCpu) return;
  const bool needs_grad = params.features.has(Feature::kNeedsGrad);
  for (Verdict& verdict : selection.candidates) {
    if (!verdict.usable) continue;
    verdict.forward_time = predict_time(model, verdict.backend, params, false);
    if (needs_grad) verdict.backward_time = predict_time(model, verdict.backend, params, true);
    if (verdict.forward_time.known()) selection.cost_source = model.source;
  }
  const Verdict* chosen = selection.ok() ? selection.find(selection.chosen) : nullptr;
  if (chosen == nullptr || !(chosen->predicted_seconds(needs_grad) > 0.0)) return;
  selection.cache_formats = predict_cache_formats(model, selection.chosen, params);
  const Verdict* next = nullptr;
  for (const Verdict& verdict : selection.candidates) {
    if (!is_candidate(verdict, needs_grad)) continue;
    if (next == nullptr ||
        verdict.predicted_seconds(needs_grad) < next->predicted_seconds(needs_grad)) {
      next = &verdict;
    }
  }
  if (next == nullptr) return;
  selection.runner_up = {
      next->backend, next->predicted_seconds(needs_grad) / chosen->predicted_seconds(needs_grad),
      changes_for(model, selection, *chosen, *next)};
}

std::string given_up(const Selection& selection) {
  const Verdict* chosen = selection.ok() ? selection.find(selection.chosen) : nullptr;
  if (chosen == nullptr) return "";
  const bool needs_grad = selection.params.features.has(Feature::kNeedsGrad);
  for (const Verdict& verdict : selection.candidates) {
    if (&verdict == chosen) return "";
    const bool for_memory = verdict.refusals.size() == 1 && verdict.usable &&
                            verdict.refusals.front().code == RefusalCode::kWorkspace;
    if (!for_memory) continue;
    const std::int64_t bytes = std::max(verdict.workspace_bytes, verdict.backward_workspace_bytes);
    const double theirs = verdict.predicted_seconds(needs_grad);
    const double ours = chosen->predicted_seconds(needs_grad);
    std::string text =
        concat(to_string(verdict.backend), ", which needs ", bytes_text(bytes), " of workspace");
    if (theirs > 0.0 && ours > 0.0) {
      text += concat(" and is predicted to take ", seconds_text(theirs), ", ",
                     figure_text(theirs / ours), " times as long");
    }
    return text;
  }
  return "";
}

}  // namespace regard
