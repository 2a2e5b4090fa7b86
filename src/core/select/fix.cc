#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/checked.h"
#include "base/message.h"
#include "core/text/backend_names.h"
#include "core/text/case_words.h"
#include "core/text/number_parse.h"
#include "core/text/thrown_by.h"
#include "function/uses.h"
#include "regard/selection.h"

namespace regard {
namespace {

constexpr const char* kApplyFix = "apply_fix";
constexpr std::string_view kPolicyPrefix = "policy.";

// ---- one text reader per field type

template <class T>
requires(std::is_arithmetic_v<T>) bool read(std::string_view text, T* out) {
  return parse_number(text, out);
}
bool read(std::string_view text, bool* out) {
  *out = text == "true" || text == "1";
  return *out || text == "false" || text == "0";
}
bool read(std::string_view text, std::string* out) {
  *out = text;
  return true;
}
bool read(std::string_view text, Dtype* out) {
  const std::optional<Dtype> dtype = parse_dtype_word(text);
  if (dtype) *out = *dtype;
  return dtype.has_value();
}
template <class E>
requires(std::is_enum_v<E>) bool read(std::string_view text, E* out) {
  for (int i = 0;; ++i) {  // names end where to_string has no more
    const std::string_view name = to_string(static_cast<E>(i));
    if (name == "?") return false;
    if (name != text) continue;
    *out = static_cast<E>(i);
    return true;
  }
}
bool read(std::string_view text, Device* out) {
  const std::size_t colon = text.find(':');
  out->index = 0;
  return read(text.substr(0, colon), &out->type) &&
         (colon == std::string_view::npos || read(text.substr(colon + 1), &out->index));
}
bool read(std::string_view text, Expression* out) {
  *out = {};
  if (text.empty()) return true;
  Expected<Expression> parsed = Expression::parse(text);
  if (parsed) *out = *std::move(parsed);
  return parsed.ok();
}
bool read(std::string_view text, FeatureSet* out) {
  *out = {};
  if (text.empty()) return true;
  return for_each_part(text, ',', [&](std::string_view part) {
    const std::optional<Feature> feature = parse_feature(part);
    if (feature) out->set(*feature);
    return feature.has_value();
  });
}
bool read(std::string_view text, std::vector<BackendRef>* out) {
  Expected<std::vector<BackendRef>> refs = parse_backend_list(text);
  if (refs) *out = *std::move(refs);
  return refs.ok();
}
template <class T>
bool read(std::string_view text, std::optional<T>* out) {
  T value{};
  if (!read(text, &value)) return false;
  *out = std::move(value);
  return true;
}

Status unreadable_value(const Fix& fix) {
  return invalid(kApplyFix, "value ", quoted(fix.value), " cannot be read as one of ", fix.field);
}
Status unknown_field(const Fix& fix) {
  return invalid(kApplyFix, "field ", quoted(fix.field),
                 " must be a field of the params, a feature or policy.<field>");
}

// ---- the policy

void clear(std::vector<BackendRef>& refs, const std::string& name) {
  if (name.empty()) refs.clear();
  std::erase_if(refs, [&](const BackendRef& ref) { return to_string(ref) == name; });
}
template <class T>
void clear(std::optional<T>& field, const std::string&) {
  field.reset();
}

Status apply_to_policy(const Fix& fix, Policy* policy) {
  const std::string_view name = std::string_view(fix.field).substr(kPolicyPrefix.size());
  Status status = unknown_field(fix);
  for_each_policy_field(*policy, [&](const char* field_name, auto& field) {
    if (name != field_name) return;
    status = {};
    if (fix.op == Fix::Op::kClear) {
      clear(field, fix.value);
    } else if (!read(fix.value, &field)) {
      status = unreadable_value(fix);
    }
  });
  return status;
}

// ---- features

bool is_integer_code(Dtype dtype) { return dtype == Dtype::kI8 || dtype == Dtype::kU4; }

// Undoes a feature with all that belongs to it. Those that canonicalize derives from other fields
// are undone there.
void clear(Feature feature, AttentionParams& p) {
  p.features.set(feature, false);
  switch (feature) {
    case Feature::kCausal:
    case Feature::kWindowRight: p.window_right = kUnlimited; break;
    case Feature::kWindowLeft: p.window_left = kUnlimited; break;
    case Feature::kDiagonalBottomRight:
    case Feature::kDiagonalOffset:
    case Feature::kDiagonalPerSequence: p.diagonal = Diagonal::kTopLeft; break;
    case Feature::kSoftcap: p.softcap = 0.0; break;
    case Feature::kScoreFunction: p.score_function = {}; break;
    case Feature::kMaskFunction: p.mask_function = {}; break;
    case Feature::kCaptured:
      if (function::uses_of(p.score_function).captured) p.score_function = {};
      if (function::uses_of(p.mask_function).captured) p.mask_function = {};
      break;
    case Feature::kDropout: p.dropout_p = 0.0; break;
    case Feature::kScoresOut: p.scores_kind = ScoresKind::kNone; break;
    case Feature::kGqa: p.num_heads_kv = p.num_heads_q; break;
    case Feature::kHeadDimsDiffer:
      p.head_dim_v = p.head_dim_qk;
      if (p.dtype_v == Dtype::kU4 && p.head_dim_v % 2 != 0) p.dtype_v = p.dtype_q;
      break;
    case Feature::kKvDtypesDiffer:
      if (p.dtype_k == Dtype::kU4 && p.head_dim_v % 2 != 0) p.dtype_k = p.dtype_q;
      p.dtype_v = p.dtype_k;
      break;
    case Feature::kScales:  // integers mean nothing without them
      if (is_integer_code(p.dtype_k)) p.dtype_k = p.dtype_q;
      if (is_integer_code(p.dtype_v)) p.dtype_v = p.dtype_q;
      break;
    case Feature::kScalesPerToken:  // which u4 has always
      if (p.dtype_k == Dtype::kU4) p.dtype_k = p.dtype_q;
      if (p.dtype_v == Dtype::kU4) p.dtype_v = p.dtype_q;
      break;
    case Feature::kChannelScales:
      if (p.dtype_k == Dtype::kI8) p.dtype_k = p.dtype_q;
      break;
    case Feature::kPositions:  // nothing else says where queries stand without new rows
      if (!p.features.has(Feature::kAppendKv)) p.features.set(Feature::kRotary, false);
      break;
    case Feature::kSeqlenQGreaterKv:
      p.seqlen_q = std::min(p.seqlen_q, p.seqlen_kv);
      // A length of keys that is data may be 0.
      p.features = p.features.without({Feature::kSeqlensKv, Feature::kPacked, Feature::kPaged,
                                       Feature::kAppendKv, Feature::kCacheLeftpad});
      break;
    case Feature::kSeqlensKv:
      p.features =
          p.features.without({Feature::kPaged, Feature::kAppendKv, Feature::kCacheLeftpad});
      [[fallthrough]];
    case Feature::kPaged:  // packed queries have packed keys then
      if (p.features.has(Feature::kPacked) && p.total_kv == 0) {
        p.total_kv = saturating_mul(p.batch, p.seqlen_kv);
        p.features = p.features.without({Feature::kAppendKv, Feature::kCacheLeftpad});
      }
      break;
    default: break;  // the bit is all, or canonicalize clears what it leaves
  }
}

// ---- params

// "bf16", or q, kv and out one by one: "bf16,i8,f32". A bias of q's own type stays of q's type.
Status set_dtypes(const Fix& fix, AttentionParams& p) {
  std::vector<Dtype> dtypes;
  const bool readable = for_each_part(fix.value, ',', [&](std::string_view part) {
    const std::optional<Dtype> dtype = parse_dtype_word(part);
    if (dtype) dtypes.push_back(*dtype);
    return dtype.has_value();
  });
  if (!readable || (dtypes.size() != 1 && dtypes.size() != 3)) return unreadable_value(fix);
  p.dtype_q = dtypes[0];
  p.dtype_k = p.dtype_v = dtypes[dtypes.size() / 2];
  p.dtype_out = dtypes.size() == 1 ? default_dtype_out(dtypes[0]) : dtypes[2];
  return {};
}

void follow_dtype(Dtype before, AttentionParams& p) {
  if (p.dtype_bias == before && before != Dtype::kF32 && before != Dtype::kF64) {
    p.dtype_bias = is_float(p.dtype_q) && !is_f8(p.dtype_q) ? p.dtype_q : Dtype::kF32;
  }
}

Status set_field(const Fix& fix, AttentionParams& p) {
  Status status = unknown_field(fix);
  for_each_field(p, [&](const char* name, auto& field) {
    if (fix.field != name) return;
    status = {};
    using Field = std::remove_cvref_t<decltype(field)>;
    Field value = field;
    if (!read(fix.value, &value)) {
      status = unreadable_value(fix);
    } else if (fix.op == Fix::Op::kSet) {
      field = value;
    } else if constexpr (std::is_arithmetic_v<Field>) {
      field = std::min(field, value);
    } else {
      status = invalid(kApplyFix, fix.field, " has no order; expected a set, not an at_most");
    }
  });
  p.rotary_dim = std::min(p.rotary_dim, p.head_dim_qk / 2 * 2);
  if (p.features.has(Feature::kHadamard) && p.head_dim_qk > 0) {  // a matrix has a power of two
    p.head_dim_qk =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(p.head_dim_qk)));
  }
  return status;
}

// Dense rows bound alignment from above: more of it means padded rows.
void pad_rows_for(const Fix& fix, AttentionParams& p) {
  for (const TensorLayout& layout : kTensorLayouts) {
    if (fix.field != layout.align_field) continue;
    const std::int32_t wanted = p.*layout.align_log2;
    canonicalize(p);
    if (p.*layout.align_log2 >= wanted) return;
    p.*layout.order = Layout::kStrided;
    p.*layout.align_log2 = wanted;
  }
}

// The feature that a fix is about. Some share their name with a field, which is what is set.
std::optional<Feature> feature_of(const Fix& fix) {
  bool is_field = false;
  const AttentionParams any;
  for_each_field(any,
                 [&](const char* name, const auto&) { is_field = is_field || fix.field == name; });
  if (is_field && fix.op != Fix::Op::kClear) return std::nullopt;
  return parse_feature(fix.field);
}

Status apply_to_params(const Fix& fix, AttentionParams& p, Policy* policy) {
  const std::optional<Feature> feature = feature_of(fix);
  if (feature == Feature::kNonFiniteBehindMask) {
    policy->assume_finite = fix.op == Fix::Op::kClear;
    return {};
  }
  if (fix.op == Fix::Op::kClear) {
    if (!feature) return unknown_field(fix);
    clear(*feature, p);
    return {};
  }
  if (feature) {
    p.features.set(*feature);
    return {};
  }
  const Dtype before = p.dtype_q;
  Status status = fix.field == "dtype" ? set_dtypes(fix, p) : set_field(fix, p);
  if (!status.ok()) return status;
  follow_dtype(before, p);
  pad_rows_for(fix, p);
  return {};
}

}  // namespace

Status apply_fix(const Fix& fix, AttentionParams* params, Policy* policy) try {
  if (fix.op == Fix::Op::kNone) return invalid(kApplyFix, "fix (none) must be a change");
  if (std::string_view(fix.field).starts_with(kPolicyPrefix)) return apply_to_policy(fix, policy);
  // On a copy: a fix that cannot be read changes nothing.
  AttentionParams changed = *params;
  if (Status status = apply_to_params(fix, changed, policy); !status.ok()) return status;
  canonicalize(changed);
  const std::optional<Feature> feature = feature_of(fix);
  const bool wanted = fix.op != Fix::Op::kClear;
  if (feature && *feature != Feature::kNonFiniteBehindMask &&
      changed.features.has(*feature) != wanted) {
    return invalid(kApplyFix, "feature ", fix.field, wanted ? " (absent)" : " (present)",
                   " follows from other fields, which must be set instead");
  }
  *params = changed;
  return {};
} catch (...) {
  return status_of_exception(kApplyFix);
}

}  // namespace regard
