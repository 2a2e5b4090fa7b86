#include "core/resolve_policy.h"

#include <algorithm>
#include <optional>

#include "core/backend_names.h"
#include "core/scope_stack.h"

namespace regard {
namespace {

using Refs = std::vector<BackendRef>;

struct Source {
  const Policy* policy;
  std::string name;
};

// Open scopes from the outermost that counts (a kReplace scope hides those outside it) inwards.
std::vector<const ScopeStack::Node*> visible_scopes() {
  std::vector<const ScopeStack::Node*> scopes;
  for (const ScopeStack::Node* node = ScopeStack::top().get(); node; node = node->outer.get()) {
    scopes.push_back(node);
    if (node->mode == ScopedPolicy::kReplace) break;
  }
  std::reverse(scopes.begin(), scopes.end());
  return scopes;
}

void add_unique(Refs& refs, const Refs& more) {
  for (const BackendRef& ref : more) {
    if (!contains(refs, ref)) refs.push_back(ref);
  }
}

template <class T, class Pick>
void combine(std::optional<T>& into, const std::optional<T>& from, Pick pick) {
  if (from) into = into ? pick(*into, *from) : *from;
}

// Merges what every source contributes to: deny, require and the limits.
void merge_restrictions(Policy& into, const Policy& from) {
  add_unique(into.deny, from.deny);
  combine(into.require, from.require, [](auto a, auto b) { return std::max(a, b); });
  combine(into.max_error, from.max_error, [](auto a, auto b) { return std::min(a, b); });
  combine(into.max_workspace_bytes, from.max_workspace_bytes,
          [](auto a, auto b) { return std::min(a, b); });
}

// The scopes of a thread as one policy: `only` narrows, the innermost wins elsewhere.
Policy merge_scopes(const std::vector<const ScopeStack::Node*>& scopes, std::string* conflict,
                    Status* status) {
  Policy merged;
  std::string only_scope;
  for (std::size_t i = 0; i < scopes.size(); ++i) {
    const Policy& scope = scopes[i]->policy;
    const std::string name = "scope " + std::to_string(i + 1);
    if (status->ok()) *status = validate(scope, name.c_str());
    merge_restrictions(merged, scope);
    if (scope.prefer) merged.prefer = scope.prefer;
    if (scope.on_fallback) merged.on_fallback = scope.on_fallback;
    if (scope.assume_finite) merged.assume_finite = scope.assume_finite;
    if (!scope.only) continue;
    if (!merged.only) {
      merged.only = scope.only;
    } else {
      Refs both;
      for (const BackendRef& ref : *scope.only) {
        if (contains(*merged.only, ref)) both.push_back(ref);
      }
      if (both.empty() && conflict->empty()) {
        *conflict = "only of " + only_scope + " (" + join_backends(*merged.only) +
                    ") and only of " + name + " (" + join_backends(*scope.only) +
                    ") have no backend in common";
      }
      merged.only = std::move(both);
    }
    only_scope = name;
  }
  return merged;
}

// The highest source that sets a field decides; sources below it that differ are warned about.
template <class Field>
std::string take_highest(ResolvedPolicy& resolved, const std::vector<Source>& sources,
                         Field Policy::*field, const char* what) {
  std::string winner;
  for (const Source& source : sources) {
    const Field& value = source.policy->*field;
    if (!value) continue;
    if (winner.empty()) {
      resolved.policy.*field = value;
      winner = source.name;
    } else if (value != resolved.policy.*field) {
      resolved.warnings.push_back(std::string(what) + " of " + source.name + " is overruled by " +
                                  winner);
    }
  }
  return winner;
}

void find_conflict(ResolvedPolicy& resolved, const std::vector<Source>& sources) {
  const Policy& policy = resolved.policy;
  if (!resolved.conflict.empty() || !policy.only) return;
  if (policy.only->empty()) {
    resolved.conflict = "only of " + resolved.only_source + " names no backend";
    return;
  }
  for (const BackendRef& ref : *policy.only) {
    if (!contains(policy.deny, ref)) return;
  }
  std::string deniers;
  for (const Source& source : sources) {
    if (source.policy->deny.empty()) continue;
    deniers += (deniers.empty() ? "" : " and ") + source.name;
  }
  resolved.conflict = "only of " + resolved.only_source + " (" + join_backends(*policy.only) +
                      ") and deny of " + deniers + " (" + join_backends(policy.deny) +
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

std::shared_ptr<const ResolvedPolicy> resolve_policy(const Policy& call, const Policy& context,
                                                     const Policy& environment) {
  auto resolved = std::make_shared<ResolvedPolicy>();
  const Policy scopes = merge_scopes(visible_scopes(), &resolved->conflict, &resolved->status);
  const std::vector<Source> sources = {{&call, "call policy"},
                                       {&scopes, "scope"},
                                       {&context, "context policy"},
                                       {&environment, "environment"}};
  for (const Source& source : sources) {
    if (resolved->status.ok()) resolved->status = validate(*source.policy, source.name.c_str());
    merge_restrictions(resolved->policy, *source.policy);
  }
  resolved->only_source = take_highest(*resolved, sources, &Policy::only, "only");
  resolved->prefer_source = take_highest(*resolved, sources, &Policy::prefer, "prefer");
  take_highest(*resolved, sources, &Policy::on_fallback, "on_fallback");
  take_highest(*resolved, sources, &Policy::assume_finite, "assume_finite");
  if (resolved->only_source == "environment") resolved->only_source = "REGARD_BACKEND";
  if (resolved->prefer_source == "environment") resolved->prefer_source = "REGARD_BACKEND";
  // A scope conflict matters only where the scopes' only is the one that holds.
  if (resolved->only_source != "scope") resolved->conflict.clear();
  find_conflict(*resolved, sources);
  resolved->hash = hash_value(resolved->policy);
  return resolved;
}

}  // namespace regard
