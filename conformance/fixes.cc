#include <algorithm>

#include "conformance/run.h"

namespace regard::conformance {
namespace {

/// Refusals that no change of params or policy can remove.
bool terminal(RefusalCode code) {
  return code == RefusalCode::kNotBuilt || code == RefusalCode::kDevice ||
         code == RefusalCode::kIsa || code == RefusalCode::kLearned;
}

/// The same requirement: a fix may leave it failing with other numbers, which is no fix.
bool same_requirement(const Refusal& a, const Refusal& b) {
  return a.code == b.code && a.fix.op == b.fix.op && a.fix.field == b.fix.field;
}

const Refusal* find_refusal(const Verdict& verdict, const Refusal& wanted) {
  const auto found =
      std::find_if(verdict.refusals.begin(), verdict.refusals.end(),
                   [&](const Refusal& other) { return same_requirement(other, wanted); });
  return found == verdict.refusals.end() ? nullptr : &*found;
}

std::string check_one(Context& context, AttentionParams params, Policy policy,
                      const BackendRef& backend, const Refusal& refusal) {
  if (const Status status = apply_fix(refusal.fix, &params, &policy); !status.ok()) {
    return "the fix of \"" + to_string(refusal) + "\" cannot be applied: " + status.to_string();
  }
  const Selection selection = explain(context, params, policy);
  const Verdict* verdict = selection.find(backend);
  if (verdict == nullptr) return "the fix of \"" + to_string(refusal) + "\" removes the backend";
  if (const Refusal* still = find_refusal(*verdict, refusal)) {
    return "the fix of \"" + to_string(refusal) + "\" does not remove it: " + to_string(*still);
  }
  if (!verdict->usable && verdict->refusals.empty()) {
    return "after the fix of \"" + to_string(refusal) + "\" it refuses without a reason";
  }
  return "";
}

}  // namespace

std::string check_fixes(Context& context, const AttentionParams& params, const Policy& policy,
                        const Verdict& verdict) {
  if (verdict.refusals.empty()) return "refuses without a reason";
  for (const Refusal& refusal : verdict.refusals) {
    if (refusal.fix.op == Fix::Op::kNone) {
      if (terminal(refusal.code)) continue;
      return "refusal \"" + to_string(refusal) + "\" has no fix";
    }
    const std::string wrong = check_one(context, params, policy, verdict.backend, refusal);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace regard::conformance
