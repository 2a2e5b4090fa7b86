#include "bench/costs/ratios.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "core/measure/call_counts.h"
#include "regard/dtype.h"

namespace regard::bench {
namespace {

/// "bf16", or "bf16 kv=i8" where keys have another type.
std::string types_name(const AttentionParams& p) {
  std::string name = to_string(p.dtype_q);
  if (p.dtype_k != p.dtype_q) name += std::string(" kv=") + to_string(p.dtype_k);
  return name;
}

/// "plain", or the first feature that changes scores or what is seen.
std::string mask_name(const AttentionParams& p) {
  for (const Feature feature :
       {Feature::kAttnMask, Feature::kAttnBias, Feature::kAlibi, Feature::kSoftcap, Feature::kSinks,
        Feature::kWindowLeft, Feature::kCausal}) {
    if (p.features.has(feature)) return to_string(feature);
  }
  return "plain";
}

}  // namespace

std::string kind_name(const CostObservation& time) {
  return to_string(kind_of(time.params, time.backward));
}

double Ratios::add(const Selection& selection, const CostObservation& time) {
  const Verdict* verdict = selection.find(BackendRef(time.backend));
  if (verdict == nullptr) return -1.0;
  const PredictedTime& predicted = time.backward ? verdict->backward_time : verdict->forward_time;
  if (!predicted.known()) return -1.0;
  const double ratio = time.seconds / predicted.seconds;
  const std::string backend = to_string(verdict->backend), kind = kind_name(time);
  groups_["all"].push_back(ratio);
  groups_[backend].push_back(ratio);
  groups_[backend + " " + kind + " " + types_name(time.params)].push_back(ratio);
  if (verdict->backend != selection.chosen) return ratio;
  groups_["chosen"].push_back(ratio);
  for (const std::string& part : {kind, types_name(time.params), mask_name(time.params)}) {
    groups_["chosen " + part].push_back(ratio);
  }
  return ratio;
}

void Ratios::print() const {
  std::printf("\n%-34s %6s %15s   quartiles of measured / predicted\n", "times", "count",
              "within 1.3 x");
  for (auto [name, all] : groups_) {
    std::sort(all.begin(), all.end());
    const auto good = static_cast<double>(std::count_if(all.begin(), all.end(), is_good));
    std::printf("%-34s %6zu %13.1f %%   %.2f %.2f %.2f\n", name.c_str(), all.size(),
                100.0 * good / static_cast<double>(all.size()), all[all.size() / 4],
                all[all.size() / 2], all[all.size() * 3 / 4]);
  }
}

}  // namespace regard::bench
