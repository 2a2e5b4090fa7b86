#include "core/select/select.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/mask_blocks.h"
#include "core/select/predictions.h"
#include "core/select/tuning.h"
#include "core/text/backend_names.h"
#include "core/text/thrown_by.h"
#include "regard/machine_rates.h"
#include "regard/padding.h"
#include "regard/self_check.h"

namespace regard {
namespace {

// The order of the tuning table for this key, or null.
const std::vector<BackendRef>* tuning_order(const SelectInputs& inputs) {
  const AttentionParams& params = inputs.key.params();
  if (inputs.tuning.rules.empty() || !allows_tuning(inputs.policy.policy)) return nullptr;
  if (!tuning_mismatch(inputs.tuning, inputs.env, params.device.type).empty()) return nullptr;
  return tuned_order(inputs.tuning, params);
}

// A backend and what gave it its place in the order.
struct Candidate {
  const BackendEntry* entry;
  const Preference* preference = nullptr;  // null: no policy prefers it
  bool tuned = false;                      // the tuning table names it
};

// Candidates from the first to try to the last: what policies prefer, then the tuning table's
// order, then the built-in one.
std::vector<Candidate> candidate_order(const SelectInputs& inputs) {
  std::vector<Candidate> order;
  order.reserve(inputs.backends.size());
  const auto append = [&](const BackendRef& ref, const Preference* preference, bool tuned) {
    for (const BackendEntry& entry : inputs.backends) {
      const auto same = [&](const Candidate& taken) { return taken.entry == &entry; };
      if (entry.ref == ref && std::ranges::none_of(order, same)) {
        order.push_back({&entry, preference, tuned});
      }
    }
  };
  for (const Preference& preference : inputs.policy.preferred) {
    append(preference.ref, &preference, false);
  }
  if (const auto* tuned = tuning_order(inputs)) {
    for (const BackendRef& ref : *tuned) append(ref, nullptr, true);
  }
  for (const BackendEntry& entry : inputs.backends) append(entry.ref, nullptr, false);
  return order;
}

// The claim of the less exact direction, or null; the backward's, where the forward has run.
const DtypeClaim* loosest_claim(const BackendInfo& info, const SelectInputs& inputs,
                                const KernelLevel& level) {
  const AttentionParams& p = inputs.key.params();
  if (inputs.policy.is_of_backward) return find_dtypes(info.backward, p, level);
  const DtypeClaim* loosest = find_dtypes(info.forward, p, level);
  if (loosest == nullptr || !p.features.has(Feature::kNeedsGrad)) return loosest;
  const DtypeClaim* backward = find_dtypes(info.backward, p, level);
  return backward != nullptr && backward->error_bound > loosest->error_bound ? backward : loosest;
}

// The best level at which the claim does not hold; false where the backend has none.
bool lower_isa(const DtypeClaim& claim, const BackendInfo& info, KernelLevel* level) {
  if (claim.min_sm > info.min_sm) {
    level->sm = claim.min_sm - 1;
  } else if (!info.min_isa.includes(claim.min_isa)) {
    level->isa = isa_without(level->isa, claim.min_isa);
  } else {
    return false;
  }
  return true;
}

// The machine's, or the best below it whose kernels are exact enough where the machine's are not.
KernelLevel level_within(const BackendInfo& info, const SelectInputs& inputs) {
  const KernelLevel machine = level_of(inputs.env);
  const std::optional<double>& limit = inputs.policy.policy.max_error;
  if (!limit) return machine;
  KernelLevel level = machine;
  const DtypeClaim* claim = nullptr;
  do {
    claim = loosest_claim(info, inputs, level);
    if (claim == nullptr) return machine;
    if (error_bound_of(*claim, inputs.key.params()) <= *limit) return level;
  } while (lower_isa(*claim, info, &level));
  return machine;
}

// One candidate under judgement. With a list of refusals every rule is evaluated; without one the
// first failure ends it.
class CandidateEvaluation {
 public:
  CandidateEvaluation(const BackendEntry& entry, const SelectInputs& inputs,
                      std::vector<Refusal>* refusals)
      : entry_(entry),
        info_(entry.backend->info()),
        inputs_(inputs),
        key_(inputs.key_for(info_)),
        env_(inputs.env, level_within(info_, inputs)),
        refusals_(refusals) {}

  void run() {
    // Policy first: with text wanted or not, a denied backend never plans.
    enabled_ = check_policy();
    if (!enabled_ && refusals_ == nullptr) return;
    usable_ = read_backend();
    if (!usable_) return;
    const DtypeClaim* claim = loosest_claim(info_, inputs_, level());
    if (claim != nullptr) error_bound_ = error_bound_of(*claim, key_.params());
    if (max_bytes() == kInt64Max) {
      usable_ = refuse([&] {
        return Refusal{RefusalCode::kWorkspace, concat(kInt64Max, " bytes"), "more", {}};
      });
    }
    const bool is_enabled = enabled_;
    if (!check_limits()) enabled_ = false;
    lacks_memory_ = lacks_memory_ && is_enabled;
  }

  bool admissible() const { return enabled_ && usable_; }
  /// It would be admissible without max_workspace_bytes.
  bool lacks_memory() const { return usable_ && lacks_memory_; }
  /// Claims read no extents; what a backend refuses beyond them may depend on the exact ones.
  bool depends_on_exact() const { return depends_on_exact_; }
  KernelLevel level() const { return level_of(env_.get()); }

  Verdict verdict() const {
    Verdict v;
    v.backend = entry_.ref;
    v.device = info_.device;
    v.built = info_.built;
    v.enabled = enabled_;
    v.usable = usable_;
    v.workspace_bytes = workspace_bytes_;
    v.backward_workspace_bytes = backward_workspace_bytes_;
    v.error_bound = error_bound_;
    v.determinism = info_.determinism;
    v.needs_exact_extents = info_.needs_exact_extents;
    return v;
  }

 private:
  // `make` builds the Refusal, where one is wanted.
  template <class Make>
  bool refuse(Make&& make) {
    if (refusals_ != nullptr) refusals_->push_back(make());
    return false;
  }

  // What the backend states for the key. One that throws instead is not usable.
  bool read_backend() {
    const Env& env = env_.get();
    const Backend& backend = *entry_.backend;
    const char* function = "supports";
    bool usable = false;
    const auto thrown = thrown_by([&] {
      usable = backend.supports(key_, env, refusals_);
      depends_on_exact_ =
          info_.needs_exact_extents && (usable || check_claims(info_, key_, env, nullptr));
      usable = usable && check_learned();
      if (!usable) return;
      function = "workspace_bytes";
      workspace_bytes_ = backend.workspace_bytes(key_, env);
      if (!key_.params().features.has(Feature::kNeedsGrad)) return;
      const std::optional<std::int64_t>& limit = inputs_.policy.policy.max_workspace_bytes;
      function = limit ? "backward_workspace_within" : "backward_workspace_bytes";
      backward_workspace_bytes_ = limit ? backend.backward_workspace_within(key_, env, *limit)
                                        : backend.backward_workspace_bytes(key_, env);
    });
    if (!thrown) return usable;
    workspace_bytes_ = -1;
    return refuse([&] {
      return Refusal{RefusalCode::kCustom, concat("throws in ", function), *thrown, {}};
    });
  }

  // What policy can exclude without a look at the problem.
  bool check_policy() {
    const Policy& policy = inputs_.policy.policy;
    bool ok = true;
    if (contains(policy.deny, entry_.ref)) {
      ok = refuse([&] {
        const std::string name = to_string(entry_.ref);
        return Refusal{RefusalCode::kDenied,
                       join_backends(policy.deny),
                       name,
                       {Fix::Op::kClear, "policy.deny", name}};
      });
    }
    if (policy.only && !contains(*policy.only, entry_.ref)) {
      ok = refuse([&] {
        const std::string name = to_string(entry_.ref);
        const std::string allowed = join_backends(*policy.only);
        const std::string both = allowed.empty() ? name : allowed + "," + name;
        return Refusal{
            RefusalCode::kNotInOnly, allowed, name, {Fix::Op::kSet, "policy.only", both}};
      });
    }
    if (policy.require && info_.built && info_.determinism < *policy.require) {
      ok = refuse([&] {
        const char* level = to_string(info_.determinism);
        return Refusal{RefusalCode::kDeterminism,
                       to_string(*policy.require),
                       level,
                       {Fix::Op::kSet, "policy.require", level}};
      });
    }
    return ok;
  }

  bool check_learned() {
    for (const DeniedBackend& denied : inputs_.denied) {
      if (denied.ref != entry_.ref) continue;
      return refuse([&] {
        return Refusal{RefusalCode::kLearned, "failed a self-check", denied.text, {}};
      });
    }
    for (const LearnedRefusal& learned : inputs_.learned) {
      if (learned.ref == entry_.ref && learned.level == level() && learned.key == key_) {
        return refuse([&] {
          return Refusal{RefusalCode::kLearned,
                         learned.lasting ? "was refused by its library" : "is unavailable now",
                         learned.text,
                         {}};
        });
      }
    }
    return true;
  }

  // The workspaces of a pair are never held at once.
  std::int64_t max_bytes() const {
    if (inputs_.policy.is_of_backward) return backward_workspace_bytes_;
    return std::max(workspace_bytes_, backward_workspace_bytes_);
  }

  bool check_limits() {
    const Policy& policy = inputs_.policy.policy;
    bool ok = true;
    const bool is_exact = !policy.max_error || error_bound_ <= *policy.max_error;
    if (!is_exact) {
      ok = refuse([&] {
        const std::string bound = error_text(error_bound_);
        return Refusal{RefusalCode::kErrorBound,
                       error_text(*policy.max_error),
                       bound,
                       {Fix::Op::kSet, "policy.max_error", bound}};
      });
    }
    if (usable_ && policy.max_workspace_bytes && max_bytes() > *policy.max_workspace_bytes) {
      lacks_memory_ = is_exact;
      ok = refuse([&] {
        const std::string bytes = std::to_string(max_bytes());
        return Refusal{RefusalCode::kWorkspace,
                       std::to_string(*policy.max_workspace_bytes),
                       bytes,
                       {Fix::Op::kSet, "policy.max_workspace_bytes", bytes}};
      });
    }
    return ok;
  }

  const BackendEntry& entry_;
  const BackendInfo& info_;
  const SelectInputs& inputs_;
  const AttentionKey& key_;
  EnvAtLevel env_;
  std::vector<Refusal>* refusals_;
  bool enabled_ = false;
  bool usable_ = false;
  bool depends_on_exact_ = false;
  bool lacks_memory_ = false;
  std::int64_t workspace_bytes_ = -1;
  std::int64_t backward_workspace_bytes_ = -1;
  double error_bound_ = -1.0;
};

// A candidate, and what came of its evaluation.
struct Judged {
  const Candidate* candidate;
  bool admissible, lacks_memory;
};

// The candidate that runs, or null: the first admissible one. Where max_workspace_bytes excludes
// one before it, and neither a policy nor a tuning table gave the first its place, it is the one of
// those that are left that is predicted to be faster than that first one. Times depend on
// the number of threads: where bits must not, the order stands.
const Candidate* choose(const SelectInputs& inputs, const std::vector<Judged>& judged) {
  const auto is_admissible = [](const Judged& each) { return each.admissible; };
  const auto first = std::ranges::find_if(judged, is_admissible);
  if (first == judged.end()) return nullptr;
  const auto gave_up = [](const Judged& each) { return each.lacks_memory; };
  const AttentionParams& params = inputs.key.params();
  const Candidate& usual = *first->candidate;
  if (std::none_of(judged.begin(), first, gave_up) || usual.preference != nullptr || usual.tuned ||
      params.device.type != DeviceType::kCpu || !allows_tuning(inputs.policy.policy)) {
    return &usual;
  }
  const CostModel model = cost_model(inputs.tuning, inputs.env, params.device.type);
  const Candidate* fastest = &usual;
  double least = predicted_seconds(model, usual.entry->ref, params);
  for (auto each = first + 1; each != judged.end(); ++each) {
    if (!each->admissible) continue;
    const double seconds = predicted_seconds(model, each->candidate->entry->ref, params);
    if (seconds < 0.0 || !(seconds < least)) continue;
    fastest = each->candidate;
    least = seconds;
  }
  return fastest;
}

// Whether `chosen` is not the first backend that policies prefer.
bool is_fallback(const ResolvedPolicy& policy, const BackendRef& chosen) {
  return !policy.preferred.empty() && policy.preferred.front().ref != chosen;
}

bool forbids_fallback(const Policy& policy) {
  return policy.on_fallback.value_or(OnFallback::kAllow) == OnFallback::kError;
}

// The source of the chosen candidate's place; where nothing can run (`chosen` is null), of the end
// of the order.
std::string decided_by(const SelectInputs& inputs, const Candidate* chosen, bool by_time) {
  const ResolvedPolicy& policy = inputs.policy;
  if (by_time) return "predicted times within max_workspace_bytes";
  if (!policy.conflict.empty()) return "conflict";
  if (chosen != nullptr && chosen->preference != nullptr) {
    const PolicySource source = chosen->preference->source;
    return std::string(to_string(source)) +
           (source == policy.only_source ? " (only, prefer)" : " (prefer)");
  }
  if (policy.only_source) return std::string(to_string(*policy.only_source)) + " (only)";
  if (chosen != nullptr && chosen->tuned) return "tuning table " + inputs.tuning.source;
  return "built-in order";
}

/// What a self-check leaves out, by name.
void add_self_check_notes(const SelectInputs& inputs, Selection& selection) {
  const AttentionParams& params = inputs.key.params();
  const auto note = [&](const std::string& text) {
    selection.warnings.push_back("self_check " + text);
  };
  const std::string refusal = self_check_refusal(params);
  if (!refusal.empty()) return note("checks nothing: " + refusal);
  if (params.features.has(Feature::kNeedsGrad)) {
    note("compares the forward; gradients are not checked");
  }
  if (params.features.has(Feature::kScoresOut)) note("does not compare scores_out");
  if (params.features.has(Feature::kOutAmax)) note("does not compare out_amax");
}

void add_warnings(const SelectInputs& inputs, Selection& selection) {
  selection.warnings = inputs.policy.warnings;
  if (!inputs.policy.conflict.empty()) selection.warnings.push_back(inputs.policy.conflict);
  if (!inputs.tuning.empty()) {
    const std::string mismatch =
        tuning_mismatch(inputs.tuning, inputs.env, inputs.key.params().device.type);
    if (!mismatch.empty()) {
      selection.warnings.push_back("tuning table " + inputs.tuning.source +
                                   " is skipped: it was made for " + mismatch);
    } else if (!inputs.tuning.rules.empty() && !allows_tuning(inputs.policy.policy)) {
      selection.warnings.push_back("the order of tuning table " + inputs.tuning.source +
                                   " is skipped: policy.require is " +
                                   to_string(*inputs.policy.policy.require));
    }
  }
  const auto warn_unknown = [&](const std::vector<BackendRef>& refs, const char* what) {
    for (const BackendRef& ref : refs) {
      const auto same = [&](const BackendEntry& entry) { return entry.ref == ref; };
      if (std::none_of(inputs.backends.begin(), inputs.backends.end(), same)) {
        selection.warnings.push_back(std::string(what) + " names " + to_string(ref) +
                                     ", which is not registered");
      }
    }
  };
  for (const LearnedRefusal& learned : inputs.learned) {
    selection.warnings.push_back(
        to_string(learned.ref) + " supports this problem, but " +
        (learned.lasting ? "its library refused it: " : "its library is unavailable now: ") +
        learned.text);
  }
  const Policy& policy = inputs.policy.policy;
  if (policy.self_check.value_or(0) > 0) add_self_check_notes(inputs, selection);
  if (policy.only) warn_unknown(*policy.only, "only");
  if (policy.prefer && policy.prefer != policy.only) warn_unknown(*policy.prefer, "prefer");
}

/// The mask function with the causal mask and the window beside it, which may be of the caller's
/// function, too.
Expected<Expression> with_window(const AttentionParams& params) {
  std::string mask = concat("(", params.mask_function.text(), ")");
  const auto narrow = [&](const char* distance, std::int64_t width) {
    if (width < 0 || width > std::numeric_limits<std::int32_t>::max()) return;
    mask += concat("&", distance, "<=", width);
  };
  narrow("kv_idx-q_pos", params.window_right);
  narrow("q_pos-kv_idx", params.window_left);
  return Expression::parse(mask);
}

/// The problem may be another machine's, so that no instructions of this one's are used.
std::optional<MaskShares> mask_shares(const AttentionParams& params) {
  const FeatureSet data{Feature::kSeqlensQ, Feature::kSeqlensKv, Feature::kPacked, Feature::kPaged};
  if (params.mask_function.empty() || params.features.without(data) != params.features) return {};
  if (params.diagonal == Diagonal::kOffset) return {};
  constexpr std::int64_t kMaxBlocks = 1 << 16, kMaxElements = 1 << 22;
  const MaskBlocksOptions options{MaskShares::kMaskBlock, MaskShares::kMaskBlock, Isa::kScalar,
                                  kMaxBlocks, kMaxElements};
  AttentionParams whole = params;
  const Expected<Expression> mask = with_window(params);
  if (!mask) return {};
  whole.mask_function = *mask;
  // Where a window needs no diagonal, all of them agree.
  if (whole.diagonal == Diagonal::kUnnamed) whole.diagonal = Diagonal::kTopLeft;
  const Expected<MaskBlocks> blocks = mask_blocks(whole, {}, options, "explain");
  if (!blocks || blocks->known.empty()) return {};
  const auto all = static_cast<double>(blocks->known.size());
  return MaskShares{static_cast<double>(blocks->empty) / all,
                    static_cast<double>(blocks->partial) / all};
}

void apply_fallback_rule(const ResolvedPolicy& policy, Selection& selection) {
  if (!selection.ok() || !is_fallback(policy, selection.chosen)) return;
  const OnFallback rule = policy.policy.on_fallback.value_or(OnFallback::kAllow);
  if (rule == OnFallback::kAllow) return;
  std::string warning = "fallback from " + to_string(policy.preferred.front().ref) +
                        ", which is preferred and cannot run, to " + to_string(selection.chosen);
  if (rule == OnFallback::kError) warning += " is an error; set on_fallback to allow or warn";
  selection.warnings.push_back(std::move(warning));
  if (rule != OnFallback::kError) return;
  selection.decided_by = "on_fallback=error";
  selection.chosen = {};
  for (Verdict& verdict : selection.candidates) verdict.chosen = false;
}

}  // namespace

Decision decide(const SelectInputs& inputs) {
  if (!inputs.policy.conflict.empty()) return {};
  const bool is_limited = inputs.policy.policy.max_workspace_bytes.has_value();
  const std::vector<Candidate> order = candidate_order(inputs);
  std::vector<Judged> judged;
  std::vector<KernelLevel> levels;
  bool depends_on_exact = false;
  for (const Candidate& candidate : order) {
    CandidateEvaluation evaluation(*candidate.entry, inputs, nullptr);
    evaluation.run();
    depends_on_exact = depends_on_exact || evaluation.depends_on_exact();
    judged.push_back({&candidate, evaluation.admissible(), evaluation.lacks_memory()});
    levels.push_back(evaluation.level());
    // Without a limit the first that can run does.
    if (evaluation.admissible() && !is_limited) break;
  }
  const Candidate* const chosen = choose(inputs, judged);
  if (chosen == nullptr) return {};
  const BackendRef& ref = chosen->entry->ref;
  if (forbids_fallback(inputs.policy.policy) && is_fallback(inputs.policy, ref)) return {};
  return {chosen->entry, levels[static_cast<std::size_t>(chosen - order.data())], depends_on_exact};
}

Selection select(const SelectInputs& inputs, const AttentionParams& params) {
  Selection selection;
  selection.params = params;
  selection.key_params = inputs.key.params();
  selection.policy = inputs.policy.policy;
  for (const EnvVariable& v : inputs.env.variables) {
    if (v.set) selection.environment.push_back(v);
  }
  selection.mask_shares = mask_shares(params);
  const auto model =
      std::make_shared<const CostModel>(cost_model(inputs.tuning, inputs.env, params.device.type));
  selection.paths = predict_paths(params, *path_costs(model, inputs.env.isa, inputs.policy.policy));
  const bool conflict = !inputs.policy.conflict.empty();
  const std::vector<Candidate> order = candidate_order(inputs);
  std::vector<Judged> judged;
  for (const Candidate& candidate : order) {
    std::vector<Refusal> refusals;
    CandidateEvaluation evaluation(*candidate.entry, inputs, &refusals);
    evaluation.run();
    Verdict verdict = evaluation.verdict();
    verdict.refusals = std::move(refusals);
    judged.push_back({&candidate, evaluation.admissible(), evaluation.lacks_memory()});
    selection.candidates.push_back(std::move(verdict));
  }
  const Candidate* const chosen = conflict ? nullptr : choose(inputs, judged);
  bool by_time = false;
  if (chosen != nullptr) {
    const auto at = static_cast<std::size_t>(chosen - order.data());
    by_time = std::any_of(judged.begin(), judged.begin() + (chosen - order.data()),
                          [](const Judged& each) { return each.admissible; });
    selection.candidates[at].chosen = true;
    selection.chosen = chosen->entry->ref;
  }
  selection.decided_by = decided_by(inputs, chosen, by_time);
  add_warnings(inputs, selection);
  apply_fallback_rule(inputs.policy, selection);
  add_predictions(*model, selection);
  return selection;
}

}  // namespace regard
