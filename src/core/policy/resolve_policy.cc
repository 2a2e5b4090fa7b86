#include "core/policy/resolve_policy.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "core/policy/scope_stack.h"
#include "core/text/backend_names.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

using Refs = std::vector<BackendRef>;

// What one source contributes; a thread's scopes are one source each.
struct Source {
  const Policy* policy;
  PolicySource kind;
  std::size_t scope = 0;  // from 1, the outermost; 0: no scope

  std::string label() const {
    if (scope > 0) return "scope " + std::to_string(scope);
    return to_string(kind);
  }
};

// All sources, the highest first. Of the open scopes the innermost is the highest; a kReplace scope
// hides those outside it.
std::vector<Source> sources_of(const Policy& call, const Policy& context,
                               const Policy& environment) {
  std::vector<Source> sources = {{&call, PolicySource::kCall}};
  for (const ScopeStack::Node* node = ScopeStack::top().get(); node; node = node->outer.get()) {
    sources.push_back({&node->policy, PolicySource::kScope});
    if (node->mode == ScopedPolicy::kReplace) break;
  }
  for (std::size_t i = 1; i < sources.size(); ++i) sources[i].scope = sources.size() - i;
  sources.push_back({&context, PolicySource::kContext});
  sources.push_back({&environment, PolicySource::kEnvironment});
  return sources;
}

template <class T>
void add_unique(std::vector<T>& values, const T& value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

template <class T, class Pick>
void combine(std::optional<T>& into, const std::optional<T>& from, Pick pick) {
  if (from) into = into ? pick(*into, *from) : *from;
}

// Merges what every source contributes to: deny, require and the limits.
void merge_restrictions(Policy& into, const Policy& from) {
  for (const BackendRef& ref : from.deny) add_unique(into.deny, ref);
  combine(into.require, from.require, [](auto a, auto b) { return std::max(a, b); });
  combine(into.max_error, from.max_error, [](auto a, auto b) { return std::min(a, b); });
  combine(into.max_workspace_bytes, from.max_workspace_bytes,
          [](auto a, auto b) { return std::min(a, b); });
}

// Merges sources from the highest to the lowest.
class Resolver {
 public:
  explicit Resolver(ResolvedPolicy& resolved) : resolved_(resolved) {}

  void add(const Source& source) {
    merge_restrictions(resolved_.policy, *source.policy);
    add_preferences(source);  // before the source's own only, which does not remove them
    add_only(source);
    take_highest(source, &Policy::on_fallback, "on_fallback", on_fallback_);
    take_highest(source, &Policy::assume_finite, "assume_finite", assume_finite_);
    take_highest(source, &Policy::self_check, "self_check", self_check_);
    take_highest(source, &Policy::self_check_deny, "self_check_deny", self_check_deny_);
    take_highest(source, &Policy::self_check_dir, "self_check_dir", self_check_dir_);
  }

 private:
  void warn_overruled(const std::string& field, PolicySource source, const std::string& by) {
    add_unique(resolved_.warnings, field + " of " + to_string(source) + " is overruled by " + by);
  }

  // Appends what the source prefers, less what a higher only excludes.
  void add_preferences(const Source& source) {
    const Policy& policy = *source.policy;
    if (!policy.prefer) return;
    const std::optional<Refs>& only = resolved_.policy.only;
    Refs removed;
    for (const BackendRef& ref : *policy.prefer) {
      if (only && !contains(*only, ref)) {
        removed.push_back(ref);
        continue;
      }
      const auto same = [&](const Preference& entry) { return entry.ref == ref; };
      if (std::ranges::none_of(resolved_.preferred, same)) {
        resolved_.preferred.push_back({ref, source.kind});
      }
    }
    // Where the source's only names the same, the warning about that only covers both.
    if (removed.empty() || policy.prefer == policy.only) return;
    warn_overruled("prefer (" + join_backends(removed) + ")", source.kind,
                   std::string("only of ") + to_string(*resolved_.only_source));
  }

  // The highest source's only holds; nested scopes narrow it.
  void add_only(const Source& source) {
    const std::optional<Refs>& theirs = source.policy->only;
    std::optional<Refs>& only = resolved_.policy.only;
    if (!theirs) return;
    if (!only) {
      only = theirs;
      resolved_.only_source = source.kind;
    } else if (source.kind == PolicySource::kScope && source.kind == resolved_.only_source) {
      narrow(*only, source);
    } else {
      if (theirs != only) warn_overruled("only", source.kind, to_string(*resolved_.only_source));
      return;
    }
    only_label_ = source.label();
  }

  void narrow(Refs& only, const Source& outer) {
    const Refs& theirs = *outer.policy->only;
    Refs both;
    for (const BackendRef& ref : only) {
      if (contains(theirs, ref)) both.push_back(ref);
    }
    if (both.empty() && resolved_.conflict.empty()) {
      resolved_.conflict = "only of " + outer.label() + " (" + join_backends(theirs) +
                           ") and only of " + only_label_ + " (" + join_backends(only) +
                           ") have no backend in common";
    }
    only = std::move(both);
  }

  // The highest source that sets the field decides. Scopes overrule each other without a warning.
  template <class Field>
  void take_highest(const Source& source, Field Policy::*field, const char* name,
                    PolicySource& winner) {
    const Field& theirs = source.policy->*field;
    Field& ours = resolved_.policy.*field;
    if (!theirs) return;
    if (!ours) {
      ours = theirs;
      winner = source.kind;
    } else if (theirs != ours && source.kind != winner) {
      warn_overruled(name, source.kind, to_string(winner));
    }
  }

  ResolvedPolicy& resolved_;
  std::string only_label_;  // of the source that set or narrowed it last
  PolicySource on_fallback_{}, assume_finite_{};
  PolicySource self_check_{}, self_check_deny_{}, self_check_dir_{};
};

void find_conflict(ResolvedPolicy& resolved, const std::vector<Source>& sources) {
  const Policy& policy = resolved.policy;
  if (!resolved.conflict.empty() || !policy.only) return;
  const std::string only_source = to_string(*resolved.only_source);
  if (policy.only->empty()) {
    resolved.conflict = "only of " + only_source + " names no backend";
    return;
  }
  for (const BackendRef& ref : *policy.only) {
    if (!contains(policy.deny, ref)) return;
  }
  std::vector<std::string> deniers;
  for (const Source& source : sources) {
    const bool environment = source.kind == PolicySource::kEnvironment;
    const char* name = environment ? "REGARD_DENY" : to_string(source.kind);
    if (!source.policy->deny.empty()) add_unique(deniers, std::string(name));
  }
  std::string names;
  for (const std::string& denier : deniers) names += (names.empty() ? "" : " and ") + denier;
  resolved.conflict = "only of " + only_source + " (" + join_backends(*policy.only) +
                      ") and deny of " + names + " (" + join_backends(policy.deny) +
                      ") leave no backend";
}

}  // namespace

Policy environment_policy(const Env& env) {
  Policy policy;
  const std::string& only = env_value(env, "REGARD_BACKEND");
  const std::string& deny = env_value(env, "REGARD_DENY");
  // Values that do not parse are errors of the Env (env_status), reported before any selection.
  if (!only.empty()) {
    if (Expected<Refs> refs = parse_backend_list(only)) {
      policy.only = *refs;
      policy.prefer = *refs;
    }
  }
  if (!deny.empty()) {
    if (Expected<Refs> refs = parse_backend_list(deny)) policy.deny = *refs;
  }
  return policy;
}

const char* to_string(PolicySource source) noexcept {
  constexpr const char* kNames[] = {"forward", "call policy", "scope", "context policy",
                                    "REGARD_BACKEND"};
  return kNames[static_cast<std::size_t>(source)];
}

std::shared_ptr<const ResolvedPolicy> resolve_policy(const Policy& call, const Policy& context,
                                                     const Policy& environment) {
  auto resolved = std::make_shared<ResolvedPolicy>();
  const std::vector<Source> sources = sources_of(call, context, environment);
  Resolver resolver(*resolved);
  for (const Source& source : sources) {
    if (resolved->status.ok()) {
      resolved->status = unless_out_of_memory(validate(*source.policy, source.label().c_str()));
    }
    resolver.add(source);
  }
  if (!resolved->preferred.empty()) {
    Refs& prefer = resolved->policy.prefer.emplace();
    for (const Preference& entry : resolved->preferred) prefer.push_back(entry.ref);
  }
  find_conflict(*resolved, sources);
  resolved->hash = hash_value(resolved->policy);
  return resolved;
}

std::shared_ptr<const ResolvedPolicy> restrict_to_forward(const ResolvedPolicy& forward,
                                                          const BackendRef& backend,
                                                          const Policy& call) {
  auto resolved = std::make_shared<ResolvedPolicy>();
  resolved->status = unless_out_of_memory(validate(call, to_string(PolicySource::kCall)));
  resolved->is_of_backward = true;
  Policy& policy = resolved->policy;
  policy.assume_finite = forward.policy.assume_finite;
  merge_restrictions(policy, call);
  merge_restrictions(policy, forward.policy);
  policy.only = {{backend}};
  resolved->only_source = PolicySource::kForward;
  const std::string ran = "the forward ran on " + to_string(backend);
  if (call.only && !contains(*call.only, backend)) {
    policy.only->clear();
    resolved->conflict =
        ran + ", and only of call policy (" + join_backends(*call.only) + ") leaves it out";
  } else if (contains(policy.deny, backend)) {
    resolved->conflict =
        ran + ", and deny of call policy (" + join_backends(call.deny) + ") leaves it out";
  }
  resolved->hash = hash_value(policy);
  return resolved;
}

}  // namespace regard
