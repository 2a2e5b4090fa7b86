#include "core/select/claims.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "base/message.h"
#include "regard/tensors.h"

namespace regard {
namespace {

// Collects refusals, or only notes that there is one: the uncached path builds no text.
class RefusalCollector {
 public:
  explicit RefusalCollector(std::vector<Refusal>* refusals) : refusals_(refusals) {}

  /// Records a failed requirement; `make` builds its text. True: go on collecting.
  template <class Make>
  bool refuse(Make&& make) {
    passed_ = false;
    if (refusals_ == nullptr) return false;
    refusals_->push_back(make());
    refusals_->back().in_backward = in_backward_;
    return true;
  }
  bool passed() const { return passed_; }

  /// What is refused from here on the forward may well compute.
  void enter_backward() { in_backward_ = true; }

 private:
  std::vector<Refusal>* refusals_;
  bool passed_ = true;
  bool in_backward_ = false;
};

std::string dtype_text(Dtype q, Dtype kv, Dtype out) {
  if (q == kv && out == default_dtype_out(q)) return to_string(q);
  return std::string("q=") + to_string(q) + " kv=" + to_string(kv) + " out=" + to_string(out);
}

std::string dtype_text(const AttentionParams& p) {
  if (p.dtype_k == p.dtype_v) return dtype_text(p.dtype_q, p.dtype_k, p.dtype_out);
  return concat("q=", to_string(p.dtype_q), " k=", to_string(p.dtype_k),
                " v=", to_string(p.dtype_v), " out=", to_string(p.dtype_out));
}

std::string sm_text(std::int32_t sm) {
  return std::to_string(sm / 10) + "." + std::to_string(sm % 10);
}

bool holds(const DtypeClaim& claim, const KernelLevel& level) {
  return level.isa.includes(claim.min_isa) && claim.min_sm <= level.sm;
}

// One claim of all types that are computed at `level`.
std::vector<DtypeClaim> claims_at(const Claims& claims, const KernelLevel& level) {
  std::vector<DtypeClaim> found;
  for (const DtypeClaim& c : claims.dtypes) {
    const auto same = [&](const DtypeClaim& other) {
      return c.q == other.q && c.kv == other.kv && c.out == other.out;
    };
    if (holds(c, level) && std::none_of(found.begin(), found.end(), same)) found.push_back(c);
  }
  return found;
}

// The claim that a caller would move to: the same q type, else the nearest size.
const DtypeClaim& nearest_dtypes(const std::vector<DtypeClaim>& claims, const AttentionParams& p) {
  for (const DtypeClaim& c : claims) {
    if (c.q == p.dtype_q) return c;
  }
  const auto distance = [&](const DtypeClaim& c) {
    return std::abs(size_of(c.q) - size_of(p.dtype_q));
  };
  return *std::min_element(
      claims.begin(), claims.end(),
      [&](const DtypeClaim& a, const DtypeClaim& b) { return distance(a) < distance(b); });
}

Refusal dtype_refusal(const std::vector<DtypeClaim>& claims, const AttentionParams& p) {
  Refusal refusal{RefusalCode::kDtype, "", dtype_text(p), {}};
  for (const DtypeClaim& c : claims) {
    if (!refusal.limit.empty()) refusal.limit += ", ";
    refusal.limit += dtype_text(c.q, c.kv, c.out);
  }
  if (claims.empty()) return refusal;
  const DtypeClaim& c = nearest_dtypes(claims, p);
  const std::string value =
      c.q == c.kv && c.out == default_dtype_out(c.q)
          ? std::string(to_string(c.q))
          : std::string(to_string(c.q)) + "," + to_string(c.kv) + "," + to_string(c.out);
  refusal.fix = {Fix::Op::kSet, "dtype", value};
  return refusal;
}

bool check_features(const Claims& claims, FeatureSet wanted, RefusalCollector& collector) {
  const FeatureSet missing = wanted.without(claims.features);
  if (missing.empty()) return true;
  for (int i = 0; i < kFeatureCount; ++i) {
    const Feature feature = static_cast<Feature>(i);
    if (!missing.has(feature)) continue;
    const bool go_on = collector.refuse([&] {
      return Refusal{
          RefusalCode::kFeature, "", to_string(feature), {Fix::Op::kClear, to_string(feature), ""}};
    });
    if (!go_on) return false;
  }
  return true;
}

std::string range_text(const HeadDimClaim& claim) {
  const std::string min = std::to_string(claim.min);
  if (claim.max == std::numeric_limits<std::int64_t>::max()) return min + " or more";
  return min + " to " + std::to_string(claim.max);
}

bool check_head_dim(const HeadDimClaim& claim, std::int64_t actual, RefusalCode code,
                    RefusalCollector& collector) {
  if (actual >= claim.min && actual <= claim.max && actual % claim.multiple_of == 0) return true;
  return collector.refuse([&] {
    Refusal refusal{code, range_text(claim), std::to_string(actual), {}};
    if (claim.multiple_of != 1)
      refusal.limit += " in multiples of " + std::to_string(claim.multiple_of);
    const char* field = code == RefusalCode::kHeadDimQk ? "head_dim_qk" : "head_dim_v";
    if (actual > claim.max) {
      refusal.fix = {Fix::Op::kAtMost, field, std::to_string(claim.max)};
    } else {
      const std::int64_t up = (actual + claim.multiple_of - 1) / claim.multiple_of;
      const std::int64_t value = std::max(claim.min, up * claim.multiple_of);
      refusal.fix = {Fix::Op::kSet, field, std::to_string(std::min(value, claim.max))};
    }
    return refusal;
  });
}

bool claims_order(const Claims& claims, Layout order) {
  return claims.layouts[static_cast<std::size_t>(order)];
}

// Rows of one head that are adjacent are in both orders.
bool claims_layout(const Claims& claims, const AttentionParams& p, const TensorLayout& layout) {
  const bool is_of_q =
      layout.order == &AttentionParams::layout_q || layout.order == &AttentionParams::layout_out;
  const std::int64_t heads = is_of_q ? p.num_heads_q : p.num_heads_kv;
  const Layout order = p.*layout.order;
  return claims_order(claims, order) ||
         (order == Layout::kBhsd && heads <= 1 && claims_order(claims, Layout::kBshd));
}

// None where params cannot hold that order: of one position they always hold bhsd.
Fix layout_fix(const AttentionParams& p, const TensorLayout& layout, Layout order) {
  AttentionParams fixed = p;
  fixed.*layout.order = order;
  canonicalize(fixed);
  if (fixed.*layout.order == p.*layout.order) return {};
  return {Fix::Op::kSet, layout.order_field, to_string(order)};
}

bool check_memory(const Claims& claims, const AttentionParams& p, RefusalCollector& collector) {
  for (const TensorLayout& layout : kTensorLayouts) {
    const Layout order = p.*layout.order;
    if (!claims_layout(claims, p, layout)) {
      const bool go_on = collector.refuse([&] {
        Refusal refusal{RefusalCode::kLayout, "", to_string(order), {}};
        for (std::size_t i = 0; i < claims.layouts.size(); ++i) {
          if (!claims.layouts[i]) continue;
          const char* name = to_string(static_cast<Layout>(i));
          if (refusal.limit.empty()) refusal.fix = layout_fix(p, layout, static_cast<Layout>(i));
          refusal.limit += (refusal.limit.empty() ? "" : " or ") + std::string(name);
        }
        return refusal;
      });
      if (!go_on) return false;
    }
    if (p.*layout.align_log2 < claims.min_align_log2) {
      const bool go_on = collector.refuse([&] {
        return Refusal{RefusalCode::kAlignment,
                       std::to_string(1 << claims.min_align_log2) + " bytes",
                       std::to_string(1 << p.*layout.align_log2) + " bytes",
                       {Fix::Op::kSet, layout.align_field, std::to_string(claims.min_align_log2)}};
      });
      if (!go_on) return false;
    }
  }
  return true;
}

/// What a caller allows; kernels compute the same without it.
constexpr FeatureSet kPermissions{Feature::kFutureScales};

bool check_direction(const Claims& claims, const AttentionParams& p, const KernelLevel& level,
                     FeatureSet wanted, RefusalCollector& collector) {
  if (find_dtypes(claims, p, level) == nullptr) {
    if (!collector.refuse([&] { return dtype_refusal(claims_at(claims, level), p); })) return false;
  }
  return check_features(claims, wanted, collector) &&
         check_head_dim(claims.head_dim_qk, p.head_dim_qk, RefusalCode::kHeadDimQk, collector) &&
         check_head_dim(claims.head_dim_v, p.head_dim_v, RefusalCode::kHeadDimV, collector) &&
         check_memory(claims, p, collector);
}

// What Feature::kQuantizedProbs adds to an error bound (docs/numerics.md).
constexpr double kE4M3Probs = 7e-2;
constexpr double kE5M2Probs = 1.3e-1;

}  // namespace

KernelLevel level_of(const Env& env) noexcept {
  return {env.isa, std::max(env.sm_version, std::int32_t{0})};
}

const DtypeClaim* find_dtypes(const Claims& claims, const AttentionParams& p,
                              const KernelLevel& level) noexcept {
  const auto find = [&](Dtype kv, const KernelLevel& at) {
    const DtypeClaim* found = nullptr;
    for (const DtypeClaim& c : claims.dtypes) {
      const bool same = c.q == p.dtype_q && c.kv == kv && c.out == p.dtype_out &&
                        c.gradients.value_or(p.dtype_gradients) == p.dtype_gradients;
      if (same && holds(c, at)) found = &c;
    }
    return found;
  };
  if (p.dtype_k == p.dtype_v) return find(p.dtype_k, level);
  // Kernels that keys and values of one type alone have do not compute two.
  const KernelLevel plain{Isa::kScalar, level.sm};
  const DtypeClaim* const of_k = find(p.dtype_k, plain);
  const DtypeClaim* const of_v = find(p.dtype_v, plain);
  if (of_k == nullptr || of_v == nullptr) return nullptr;
  return of_k->error_bound < of_v->error_bound ? of_v : of_k;
}

double error_bound_of(const DtypeClaim& claim, const AttentionParams& p) noexcept {
  if (!p.features.has(Feature::kQuantizedProbs)) return claim.error_bound;
  const auto of = [](Dtype dtype) { return dtype == Dtype::kF8E5M2 ? kE5M2Probs : kE4M3Probs; };
  const bool coarser = p.features.has(Feature::kNeedsGrad) && p.dtype_d_out == Dtype::kF8E5M2;
  return claim.error_bound + of(coarser ? p.dtype_d_out : p.dtype_q);
}

FeatureSet backward_features(const AttentionParams& params) noexcept {
  FeatureSet features =
      params.features.without({Feature::kNeedsGrad, Feature::kScoresOut, Feature::kOutAmax})
          .without(kPermissions);
  if (features.has(Feature::kSavedStats)) features.set(Feature::kLse, false);
  return features;
}

FeatureSet given_to_backward(const GradBuffers& gradients) noexcept {
  FeatureSet given;
  given.set(Feature::kSavedStats, gradients.saved.kind == SavedContext::Kind::kStats);
  given.set(Feature::kLse, gradients.saved.kind == SavedContext::Kind::kLse);
  for (const TensorSpec& spec : kTensors) {
    const TensorView* const view = spec.in(gradients);
    if (view != nullptr && view->present()) given = given.with(spec.features);
  }
  return given;
}

Backend::~Backend() = default;

Status Backend::prepare(const KernelPlan&, const AttentionParams&, const Buffers&) const {
  return {};
}

Status Backend::prepare_backward(const KernelPlan&, const AttentionParams&, const Buffers&,
                                 const GradBuffers&) const {
  return {};
}

std::vector<std::string> Backend::variants(const AttentionKey&, const Env&) const { return {}; }

Expected<KernelPlan> Backend::plan_variant(const AttentionKey&, const Env&,
                                           std::string_view variant) const {
  return failure(StatusCode::kInvalidArgument, "plan_variant", to_string(info().ref),
                 " has no variant ", variant);
}

std::int64_t Backend::backward_workspace_bytes(const AttentionKey&, const Env&) const { return 0; }

std::int64_t Backend::backward_workspace_within(const AttentionKey& key, const Env& env,
                                                std::int64_t) const {
  return backward_workspace_bytes(key, env);
}

Expected<KernelPlan> Backend::plan_backward(const AttentionKey&, const Env&) const {
  return Status(StatusCode::kInternal,
                "[plan_backward] " + to_string(info().ref) + " offers gradients and plans none");
}

Status Backend::execute_backward(const KernelPlan&, const AttentionParams&, const Buffers&,
                                 const GradBuffers&, const Launch&) const {
  return Status(StatusCode::kInternal, "[execute_backward] " + to_string(info().ref) +
                                           " offers gradients and computes none");
}

bool Backend::supports(const AttentionKey& key, const Env& env,
                       std::vector<Refusal>* refusals) const {
  return check_claims(info(), key, env, refusals);
}

bool check_claims(const BackendInfo& info, const AttentionKey& key, const Env& env,
                  std::vector<Refusal>* refusals) {
  const AttentionParams& p = key.params();
  RefusalCollector collector(refusals);
  if (!info.built) {
    collector.refuse([&] {
      return Refusal{RefusalCode::kNotBuilt, info.not_built_reason, "", {}};
    });
  }
  if (info.device != p.device.type) {
    collector.refuse([&] {
      return Refusal{
          RefusalCode::kDevice,
          info.device == DeviceType::kCuda ? "a CUDA device" : "a CPU",
          concat("a case on ", p.device.type == DeviceType::kCuda ? "a CUDA device" : "the CPU"),
          {}};
    });
  }
  if (!collector.passed()) return false;  // nothing below would help
  if (p.device.type == DeviceType::kCpu && !env.isa.includes(info.min_isa)) {
    const bool go_on = collector.refuse([&] {
      return Refusal{RefusalCode::kIsa, to_string(info.min_isa), to_string(env.isa), {}};
    });
    if (!go_on) return false;
  }
  if (p.device.type == DeviceType::kCuda && env.sm_version < info.min_sm) {
    collector.refuse([&] {
      return Refusal{RefusalCode::kDevice,
                     "a CUDA device of compute capability " + sm_text(info.min_sm) + " or newer",
                     env.sm_version == 0 ? "none" : sm_text(env.sm_version),
                     {}};
    });
    return false;
  }
  const KernelLevel level = level_of(env);
  constexpr FeatureSet kBackwardAlone{Feature::kNeedsGrad, Feature::kDLse, Feature::kDelta};
  const FeatureSet wanted = p.features.without(kBackwardAlone).without(kPermissions);
  if (!check_direction(info.forward, p, level, wanted, collector)) return false;
  if (!p.features.has(Feature::kNeedsGrad)) return collector.passed();
  if (!info.backward.offered) {
    collector.refuse([&] {
      return Refusal{RefusalCode::kDirection,
                     "forward only",
                     "needs_grad",
                     {Fix::Op::kClear, "needs_grad", ""}};
    });
    return false;
  }
  collector.enter_backward();
  check_direction(info.backward, p, level, backward_features(p), collector);
  return collector.passed();
}

}  // namespace regard
