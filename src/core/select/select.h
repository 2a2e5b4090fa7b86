#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/policy/resolve_policy.h"
#include "core/select/claims.h"
#include "core/select/learned.h"
#include "regard/backend.h"
#include "regard/context.h"
#include "regard/selection.h"

namespace regard {

/// A backend that may be chosen; built-in ones are not owned.
struct BackendEntry {
  BackendRef ref;
  std::shared_ptr<const Backend> backend;
};

/// Everything that a decision may depend on; nothing else is read.
struct SelectInputs {
  const AttentionKey& key;    // extents rounded
  const AttentionKey& exact;  // of the same problem, for backends with needs_exact_extents
  const Env& env;
  const ResolvedPolicy& policy;
  const TuningTable& tuning;
  std::span<const BackendEntry> backends;  // in built-in order
  std::span<const LearnedRefusal> learned;
  std::span<const DeniedBackend> denied;

  /// What a backend is judged and planned by.
  const AttentionKey& key_for(const BackendInfo& info) const noexcept {
    return info.needs_exact_extents ? exact : key;
  }
};

/// `env` as a machine of that level; a copy only where it is of another one.
class EnvAtLevel {
 public:
  EnvAtLevel(const Env& env, const KernelLevel& level) : env_(&env) {
    if (level_of(env) == level) return;
    env_ = &copy_.emplace(env);
    copy_->isa = level.isa;
    copy_->sm_version = level.sm;
  }
  EnvAtLevel(const EnvAtLevel&) = delete;
  EnvAtLevel& operator=(const EnvAtLevel&) = delete;

  const Env& get() const { return *env_; }

 private:
  std::optional<Env> copy_;
  const Env* env_;
};

/// The chosen backend, without reasons.
struct Decision {
  const BackendEntry* entry = nullptr;  // null: nothing can run
  KernelLevel level{};  // the machine's, or a lesser one that policy.max_error requires
  // A backend was judged by exact extents: others of their class may be decided otherwise.
  bool depends_on_exact = false;
};

/// Decides; builds no text.
Decision decide(const SelectInputs& inputs);

/// The same decision with every reason of every backend. `params` are those requested (unrounded).
Selection select(const SelectInputs& inputs, const AttentionParams& params);

}  // namespace regard
