#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/resolve_policy.h"
#include "regard/backend.h"
#include "regard/context.h"
#include "regard/selection.h"

namespace regard {

/// A backend that may be chosen; built-in ones are not owned.
struct BackendEntry {
  BackendRef ref;
  std::shared_ptr<const Backend> backend;
};

/// A refusal that a backend's library spoke at plan time against what the record allowed.
struct LearnedRefusal {
  BackendRef ref;
  AttentionKey key;
  std::string text;
};

/// Everything that a decision may depend on; nothing else is read.
struct SelectInputs {
  const AttentionKey& key;
  const Env& env;
  const ResolvedPolicy& policy;
  const TuningTable& tuning;
  std::span<const BackendEntry> backends;  // in built-in order
  std::span<const LearnedRefusal> learned;
};

/// `env` with another instruction set; a copy only where it has another one.
class EnvAtIsa {
 public:
  EnvAtIsa(const Env& env, Isa isa) : env_(&env) {
    if (env.isa == isa) return;
    env_ = &copy_.emplace(env);
    copy_->isa = isa;
  }
  EnvAtIsa(const EnvAtIsa&) = delete;
  EnvAtIsa& operator=(const EnvAtIsa&) = delete;

  const Env& get() const { return *env_; }

 private:
  std::optional<Env> copy_;
  const Env* env_;
};

/// The chosen backend, without reasons.
struct Decision {
  const BackendEntry* entry = nullptr;  // null: nothing can run
  Isa isa = Isa::kScalar;  // the machine's, or a lesser one that policy.max_error asks for
  bool fell_back = false;  // not the first that policy.prefer names
};

/// Decides; builds no text.
Decision decide(const SelectInputs& inputs);

/// The same decision with every reason of every backend. `params` are those asked (unrounded).
Selection select(const SelectInputs& inputs, const AttentionParams& params);

}  // namespace regard
