#include "tools/guide/support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace regard::guide {
namespace {

/// The element types of q, of k and v, and of out.
struct Types {
  Dtype q, kv, out;
  friend bool operator==(const Types&, const Types&) = default;
};

std::string text_of(const Types& t) {
  if (t.q == t.kv && t.kv == t.out) return to_string(t.q);
  if (t.q == t.kv) return fmt::format("{}, out {}", to_string(t.q), to_string(t.out));
  return fmt::format("{}, kv {}, out {}", to_string(t.q), to_string(t.kv), to_string(t.out));
}

bool is_of(const DtypeClaim& claim, const Types& types) {
  return Types{claim.q, claim.kv, claim.out} == types;
}

std::string text_of(const HeadDimClaim& claim) {
  const bool unlimited = claim.max == std::numeric_limits<std::int64_t>::max();
  std::string text = unlimited ? fmt::format("any from {}", claim.min)
                               : fmt::format("{} to {}", claim.min, claim.max);
  if (claim.multiple_of != 1) text += fmt::format(", multiple of {}", claim.multiple_of);
  return text;
}

std::string layouts_of(const Claims& claims) {
  std::string text;
  for (std::size_t i = 0; i < claims.layouts.size(); ++i) {
    if (!claims.layouts[i]) continue;
    text += (text.empty() ? "" : ", ") + std::string(to_string(static_cast<Layout>(i)));
  }
  return text;
}

/// The bound of each instruction set: "4.0e-03; 6.0e-03 from avx512_bf16 or neon_bf16".
std::string bounds_of(const Claims& claims, const Types& types) {
  std::string bounds, last;
  for (const DtypeClaim& claim : claims.dtypes) {
    if (!is_of(claim, types)) continue;
    const std::string text = fmt::format("{:.1e}", claim.error_bound);
    if (text == last && claim.min_isa != Isa::kScalar) {
      bounds += fmt::format(" or {}", to_string(claim.min_isa));
      continue;
    }
    last = text;
    bounds += (bounds.empty() ? "" : "; ") + last;
    if (claim.min_isa != Isa::kScalar) bounds += fmt::format(" from {}", to_string(claim.min_isa));
    if (claim.min_sm != 0) bounds += fmt::format(" from sm{}", claim.min_sm);
  }
  return bounds;
}

/// The bound on one machine; "" where no claim holds there.
std::string bound_on(const Claims& claims, const Types& types, const Env& env) {
  const std::int32_t sm = std::max(env.sm_version, std::int32_t{0});  // or kSmUnread
  std::string bound;
  for (const DtypeClaim& claim : claims.dtypes) {
    const bool holds = env.isa.includes(claim.min_isa) && claim.min_sm <= sm;
    if (is_of(claim, types) && holds) bound = fmt::format("{:.1e}", claim.error_bound);
  }
  return bound;
}

/// A machine with every instruction set, for documents.
Env any_machine() {
  Env env;
  for (const Isa& isa : named_isas()) {
    if (isa.includes(env.isa)) env.isa = isa;
  }
  env.sm_version = 100;
  return env;
}

class MatrixBuilder {
 public:
  MatrixBuilder(const std::vector<BackendInfo>& infos, DeviceType device, const Env* env)
      : device_(device), env_(env == nullptr ? any_machine() : *env), every_machine_(!env) {
    for (const BackendInfo& info : infos) {
      if (info.device != device) continue;
      const auto same = [&](const auto& known) { return known.ref == info.ref; };
      if (!info.built) {
        matrix_.absent.push_back({to_string(info.ref), info.not_built_reason});
      } else if (std::none_of(built_.begin(), built_.end(), same)) {
        built_.push_back(info);
        matrix_.backends.push_back(to_string(info.ref));
      }
    }
  }

  SupportMatrix build() {
    if (built_.empty()) return std::move(matrix_);
    for (const Types& types : all_types()) {
      AttentionParams params = plain();
      params.dtype_q = types.q;
      params.dtype_k = params.dtype_v = types.kv;
      params.dtype_out = types.out;
      matrix_.types.push_back(row(text_of(types), params, [&](const Claims& claims) {
        return every_machine_ ? bounds_of(claims, types) : bound_on(claims, types, env_);
      }));
    }
    for (int f = 0; f < kFeatureCount; ++f) add_feature(static_cast<Feature>(f));
    add_limits();
    add_sizes("head_dim_qk", &Claims::head_dim_qk, &AttentionParams::head_dim_qk);
    add_sizes("head_dim_v", &Claims::head_dim_v, &AttentionParams::head_dim_v);
    return std::move(matrix_);
  }

 private:
  AttentionParams plain() const {
    AttentionParams params;
    params.device.type = device_;
    params.seqlen_q = params.seqlen_kv = 64;
    params.head_dim_qk = params.head_dim_v = 64;
    const bool has_f32 = std::any_of(built_.begin(), built_.end(), [](const BackendInfo& info) {
      return !bounds_of(info.forward, {Dtype::kF32, Dtype::kF32, Dtype::kF32}).empty();
    });
    if (!has_f32) params.dtype_q = params.dtype_k = params.dtype_v = params.dtype_out = Dtype::kF16;
    return params;
  }

  std::vector<Types> all_types() const {
    std::vector<Types> all;
    for (const BackendInfo& info : built_) {
      for (const DtypeClaim& claim : info.forward.dtypes) {
        const Types types{claim.q, claim.kv, claim.out};
        if (std::find(all.begin(), all.end(), types) == all.end()) all.push_back(types);
      }
    }
    return all;
  }

  /// Types that the backend computes, so that a refusal is of the feature alone.
  static AttentionParams with_types_of(const BackendInfo& info, AttentionParams params) {
    const Types wanted{params.dtype_q, params.dtype_k, params.dtype_out};
    const auto& claims = info.forward.dtypes;
    const auto claimed = [&](const DtypeClaim& claim) { return is_of(claim, wanted); };
    if (claims.empty() || std::any_of(claims.begin(), claims.end(), claimed)) return params;
    params.dtype_q = claims.front().q;
    params.dtype_k = params.dtype_v = claims.front().kv;
    params.dtype_out = claims.front().out;
    return params;
  }

  /// The refusals of a record, those that name the feature alone where one is given.
  std::vector<Refusal> refusals_of(const BackendInfo& info, AttentionParams params,
                                   const char* feature) const {
    // Whether non-finite values are allowed behind masks is a row of its own.
    const bool non_finite = params.features.has(Feature::kNonFiniteBehindMask);
    if (non_finite) params.features.set(Feature::kCausal);
    const Expected<AttentionKey> key = AttentionKey::make(params, !non_finite);
    std::vector<Refusal> refusals;
    if (!key || check_claims(info, *key, env_, &refusals)) return {};
    if (feature != nullptr) {
      std::erase_if(refusals, [&](const Refusal& refusal) {
        return refusal.code == RefusalCode::kFeature && refusal.actual != feature;
      });
    }
    return refusals;
  }

  template <class Yes>
  std::vector<SupportCell> cells(const AttentionParams& params, const char* feature,
                                 Claims BackendInfo::*direction, const Yes& yes) const {
    std::vector<std::vector<Refusal>> refusals;
    BackendRef alternative;
    for (const BackendInfo& info : built_) {
      const AttentionParams own = feature == nullptr ? params : with_types_of(info, params);
      refusals.push_back(refusals_of(info, own, feature));
      const bool is_first = alternative.id == BackendId::kError;
      if (refusals.back().empty() && is_first) alternative = info.ref;
    }
    std::vector<SupportCell> found;
    for (std::size_t i = 0; i < built_.size(); ++i) {
      if (refusals[i].empty()) {
        found.push_back({SupportCell::Kind::kYes, yes(built_[i].*direction)});
        continue;
      }
      std::string text;
      for (const Refusal& refusal : refusals[i]) {
        text += (text.empty() ? "" : "; ") + to_string(refusal, alternative);
      }
      found.push_back({SupportCell::Kind::kNo, text});
    }
    return found;
  }

  template <class Yes>
  SupportRow row(const std::string& name, AttentionParams params, const Yes& yes,
                 const char* feature = nullptr) const {
    SupportRow found{name, cells(params, feature, &BackendInfo::forward, yes), {}};
    params.features.set(Feature::kNeedsGrad);
    found.backward = cells(params, feature, &BackendInfo::backward, yes);
    return found;
  }

  void add_feature(Feature feature) {
    if (feature == Feature::kNeedsGrad) return;  // the columns of gradients state it
    AttentionParams params = plain();
    params.features.set(feature);
    const auto yes = [](const Claims&) { return std::string("yes"); };
    SupportRow found = row(to_string(feature), params, yes, to_string(feature));
    const auto clear = [](std::vector<SupportCell>* row) { row->assign(row->size(), {}); };
    if (feature == Feature::kDLse || feature == Feature::kDelta) clear(&found.forward);
    const bool is_output = feature == Feature::kScoresOut || feature == Feature::kOutAmax;
    if (is_output) clear(&found.backward);  // no input of a backward
    matrix_.features.push_back(std::move(found));
  }

  void add_sizes(const char* name, HeadDimClaim Claims::*claim,
                 std::int64_t AttentionParams::*size) {
    for (const BackendInfo& info : built_) {
      const std::int64_t max = (info.forward.*claim).max;
      if (max == std::numeric_limits<std::int64_t>::max()) continue;
      AttentionParams params = plain();
      params.*size = max + 1;
      const auto yes = [](const Claims&) { return std::string("yes"); };
      matrix_.sizes.push_back(row(fmt::format("{} {}", name, max + 1), params, yes));
    }
  }

  template <class Value>
  void add_limit(const char* name, const Value& value) {
    SupportLimit limit{name, {}};
    for (const BackendInfo& info : built_) limit.values.push_back(value(info));
    matrix_.limits.push_back(std::move(limit));
  }

  void add_limits() {
    using Info = BackendInfo;
    add_limit("head_dim_qk", [](const Info& i) { return text_of(i.forward.head_dim_qk); });
    add_limit("head_dim_v", [](const Info& i) { return text_of(i.forward.head_dim_v); });
    add_limit("layouts", [](const Info& i) { return layouts_of(i.forward); });
    add_limit("alignment in bytes",
              [](const Info& i) { return std::to_string(1 << i.forward.min_align_log2); });
    add_limit("determinism", [](const Info& i) { return std::string(to_string(i.determinism)); });
  }

  DeviceType device_;
  Env env_;
  bool every_machine_;
  std::vector<BackendInfo> built_;
  SupportMatrix matrix_;
};

}  // namespace

SupportMatrix support_matrix(const std::vector<BackendInfo>& infos, DeviceType device,
                             const Env* env) {
  return MatrixBuilder(infos, device, env).build();
}

std::vector<RefusedRequest> refused_requests(const SupportMatrix& matrix) {
  std::vector<RefusedRequest> found;
  const auto add = [&](const std::string& request, const std::string& backend,
                       const std::string& sentence) {
    for (RefusedRequest& known : found) {
      if (known.request != request || known.sentence != sentence) continue;
      known.backends.push_back(backend);
      return;
    }
    found.push_back({request, {backend}, sentence});
  };
  for (const auto* rows : {&matrix.types, &matrix.features, &matrix.sizes}) {
    for (const SupportRow& row : *rows) {
      for (std::size_t i = 0; i < matrix.backends.size(); ++i) {
        if (row.forward[i].kind == SupportCell::Kind::kNo) {
          add(row.name, matrix.backends[i], row.forward[i].text);
        } else if (row.backward[i].kind == SupportCell::Kind::kNo) {
          add(row.name + ", gradients", matrix.backends[i], row.backward[i].text);
        }
      }
    }
  }
  return found;
}

}  // namespace regard::guide
