#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "base/message.h"
#include "core/text/number_parse.h"
#include "regard/features.h"
#include "regard/selection.h"

// The words of refusals and fixes: the only place that makes sentences of them.

namespace regard {
namespace {

constexpr std::string_view kPolicyFieldPrefix = "policy.";

// "max_error" of "policy.max_error".
std::string name_of(const Fix& fix) {
  std::string_view name = fix.field;
  if (name.starts_with(kPolicyFieldPrefix)) name.remove_prefix(kPolicyFieldPrefix.size());
  return std::string(name);
}

// The tensor whose alignment a fix sets, "" for none.
std::string aligned_tensor(const Fix& fix) {
  for (const TensorLayout& layout : kTensorLayouts) {
    if (fix.field == layout.align_field) return layout.tensor;
  }
  return "";
}

// "16 bytes" of the log2 4.
std::string alignment_text(const std::string& log2) {
  std::int32_t n = 0;
  if (!parse_number(log2, &n) || n < 0 || n > kMaxAlignLog2) return concat("2^", log2, " bytes");
  return concat(1 << n, " bytes");
}

// "bf16,i8,f32" names the types of q, of k and v, and of out.
std::string dtypes_text(const std::string& value) {
  const std::size_t first = value.find(',');
  if (first == std::string::npos) return value;
  const std::size_t second = value.find(',', first + 1);
  return concat("q=", value.substr(0, first), " kv=", value.substr(first + 1, second - first - 1),
                " out=", value.substr(second + 1));
}

// How a feature goes away that is no tensor or option of its own.
const char* undo_text(std::string_view feature) {
  struct Undo {
    Feature feature;
    const char* text;
  };
  constexpr Undo kUndo[] = {
      {Feature::kGqa, "give k and v as many heads as q"},
      {Feature::kHeadDimsDiffer, "make head_dim_v equal to head_dim_qk"},
      {Feature::kKvDtypesDiffer, "give v the dtype of k"},
      {Feature::kScales, "keep k and v without scales, in a float type"},
      {Feature::kChannelScales, "keep k without scales, in a float type"},
      {Feature::kSeqlenQGreaterKv, "reduce seqlen_q to seqlen_kv"},
      {Feature::kNonFiniteBehindMask, "set assume_finite to true"},
  };
  for (const Undo& undo : kUndo) {
    if (feature == to_string(undo.feature)) return undo.text;
  }
  return nullptr;
}

// The change in the imperative. `object` names what changes: "it" where the sentence just did.
std::string instruction(const Fix& fix, const std::string& object) {
  switch (fix.op) {
    case Fix::Op::kNone: return "";
    case Fix::Op::kAtMost: return concat("reduce ", object, " to ", fix.value);
    case Fix::Op::kClear: {
      if (const char* undo = undo_text(fix.field)) return undo;
      if (fix.value.empty()) return concat("remove ", object);
      return concat("remove ", fix.value, " from ", object);
    }
    case Fix::Op::kSet: break;
  }
  if (fix.value.empty()) return concat("add ", object);
  if (fix.field == "dtype") return concat("set ", object, " to ", dtypes_text(fix.value));
  if (const std::string tensor = aligned_tensor(fix); !tensor.empty()) {
    return concat("align ", object == "it" ? object : tensor, " to ", alignment_text(fix.value));
  }
  const bool is_limit =
      fix.field == "policy.max_error" || fix.field == "policy.max_workspace_bytes";
  const char* verb = is_limit ? "raise " : fix.field == "policy.require" ? "lower " : "set ";
  return concat(verb, object, " to ", fix.value);
}

// What the backend does, needs or is, without the fix.
std::string statement(const Refusal& r) {
  const char* direction = r.in_backward ? " in a backward" : "";
  const std::string field = r.fix.field.empty() ? to_string(r.code) : name_of(r.fix);
  switch (r.code) {
    case RefusalCode::kNotBuilt:
      return concat("is not part of this build", r.limit.empty() ? "" : ": ", r.limit);
    case RefusalCode::kDevice: return concat("needs ", r.limit, ", got ", r.actual);
    case RefusalCode::kIsa: return concat("needs at least ", r.limit, ", got ", r.actual);
    case RefusalCode::kDenied: return concat("is listed in deny (", r.limit, ")");
    case RefusalCode::kNotInOnly:
      if (r.limit.empty()) return "is not listed in only, which is empty";
      return concat("is not listed in only (", r.limit, ")");
    case RefusalCode::kDirection: return "computes no gradients";
    case RefusalCode::kDtype: return concat("does not support ", r.actual, direction);
    case RefusalCode::kFeature:
      if (r.limit.empty()) return concat("does not support ", r.actual, direction);
      return concat("supports ", r.actual, " ", r.limit, direction);
    case RefusalCode::kHeadDimQk:
    case RefusalCode::kHeadDimV:
    case RefusalCode::kLayout:
      return concat("supports ", field, " ", r.limit, direction, ", got ", r.actual);
    case RefusalCode::kAlignment:
      return concat("needs ", aligned_tensor(r.fix), " aligned to ", r.limit, direction, ", got ",
                    r.actual);
    case RefusalCode::kDeterminism:
      return concat("has determinism ", r.actual, ", require is ", r.limit);
    case RefusalCode::kErrorBound:
      return concat("has a stated error of ", r.actual, ", max_error allows ", r.limit);
    case RefusalCode::kWorkspace:
      if (r.fix.op == Fix::Op::kNone) return concat("needs more than ", r.limit, " of workspace");
      return concat("needs ", r.actual, " bytes of workspace, max_workspace_bytes allows ",
                    r.limit);
    case RefusalCode::kLearned:
    case RefusalCode::kCustom:
    case RefusalCode::kCount: break;
  }
  return concat(r.limit, r.actual.empty() || r.limit.empty() ? "" : ": ", r.actual, direction);
}

// The fix in the words that fit the statement.
std::string remedy(const Refusal& r) {
  switch (r.code) {
    case RefusalCode::kNotInOnly: return r.fix.op == Fix::Op::kSet ? "add it" : to_string(r.fix);
    case RefusalCode::kDenied: return "remove it";
    case RefusalCode::kFeature:
    case RefusalCode::kHeadDimQk:
    case RefusalCode::kHeadDimV:
    case RefusalCode::kLayout:
    case RefusalCode::kAlignment:
    case RefusalCode::kDeterminism:
    case RefusalCode::kErrorBound:
    case RefusalCode::kWorkspace: return instruction(r.fix, "it");
    default: return to_string(r.fix);
  }
}

// Whether another backend is a way out: where the policy, the build or the device is the obstacle,
// it is not.
bool may_use_another(RefusalCode code) {
  switch (code) {
    case RefusalCode::kIsa:
    case RefusalCode::kDirection:
    case RefusalCode::kDtype:
    case RefusalCode::kFeature:
    case RefusalCode::kHeadDimQk:
    case RefusalCode::kHeadDimV:
    case RefusalCode::kLayout:
    case RefusalCode::kAlignment:
    case RefusalCode::kLearned:
    case RefusalCode::kCustom: return true;
    default: return false;
  }
}

}  // namespace

const char* to_string(RefusalCode code) noexcept {
  constexpr const char* kNames[] = {
      "not_built",   "device",      "isa",         "denied",     "not_in_only", "direction",
      "dtype",       "feature",     "head_dim_qk", "head_dim_v", "layout",      "alignment",
      "determinism", "error_bound", "workspace",   "learned",    "custom"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(RefusalCode::kCount));
  const auto i = static_cast<std::size_t>(code);
  return i < std::size(kNames) ? kNames[i] : "?";
}

std::string to_string(const Fix& fix) { return instruction(fix, name_of(fix)); }

std::string to_string(const Refusal& refusal, const BackendRef& alternative) {
  std::string out = statement(refusal);
  const std::string fix = remedy(refusal);
  if (!fix.empty()) out += "; " + fix;
  if (alternative.id == BackendId::kError || !may_use_another(refusal.code)) return out;
  return out + (fix.empty() ? "; use " : ", or use ") + to_string(alternative);
}

}  // namespace regard
