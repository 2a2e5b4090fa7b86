#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/message.h"
#include "core/plan/context_impl.h"
#include "core/select/predictions.h"
#include "core/select/selection_text.h"
#include "core/select/tuning.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"

namespace regard {
namespace {

// Whether causality alone hides keys, and none of them from every row: then no key is padding, and
// what is not finite in one shows in the rows that see it, whatever the others hold.
bool hides_no_padding(const AttentionParams& p) {
  constexpr FeatureSet kHidesMore{Feature::kWindowLeft,     Feature::kWindowRight,
                                  Feature::kDiagonalOffset, Feature::kDiagonalPerSequence,
                                  Feature::kAttnMask,       Feature::kAttnBias,
                                  Feature::kAlibi,          Feature::kSegmentIds,
                                  Feature::kSeqlensQ,       Feature::kSeqlensKv,
                                  Feature::kBlockMask,      Feature::kPacked,
                                  Feature::kPaged};
  if (!p.features.has(Feature::kCausal)) return false;
  if (p.features.without(kHidesMore) != p.features) return false;
  return p.features.has(Feature::kDiagonalBottomRight) || p.seqlen_q >= p.seqlen_kv;
}

bool assumes_finite(const AttentionParams& params, const ResolvedPolicy& policy) {
  return policy.policy.assume_finite.value_or(hides_no_padding(params));
}

// The two keys of a problem: of its class of extents, and of its own.
struct Keys {
  AttentionKey rounded, exact;
};

Expected<Keys> keys_of(const AttentionParams& params, const ResolvedPolicy& policy) {
  const bool assume_finite = assumes_finite(params, policy);
  const auto rounded = AttentionKey::make(params, assume_finite);
  if (!rounded) return rounded.status();
  const auto exact = AttentionKey::make(params, assume_finite, KeyExtents::kExact);
  if (!exact) return exact.status();
  return Keys{*rounded, *exact};
}

// What calls before this one have found out.
struct Hindrances {
  std::vector<LearnedRefusal> learned;
  std::vector<DeniedBackend> denied;
};

SelectInputs inputs_of(const Keys& keys, const Env& env, const ResolvedPolicy& policy,
                       const Settings& settings, const Hindrances& known) {
  return {keys.rounded,  keys.exact,      env,
          policy,        settings.tuning, settings.backends(keys.rounded.params().device.type),
          known.learned, known.denied};
}

Status no_backend(ContextImpl& context, const SelectInputs& inputs, const AttentionParams& params) {
  auto selection = std::make_shared<const Selection>(select(inputs, params));
  Log& log = context.tracer->log();
  if (log.wants(LogLevel::kSelect)) log.write_selection(*selection);
  std::string message = "[plan] " + no_backend_message(*selection);
  return Status(StatusCode::kNoBackend, std::move(message), std::move(selection));
}

// A backend's plan must state what its workspace_bytes returned: selection used the latter.
Status check_kernel_plan(const BackendEntry& entry, const KernelPlan& kernel,
                         std::int64_t stated_bytes) {
  if (kernel.workspace_bytes == stated_bytes && stated_bytes >= 0 && stated_bytes % 64 == 0 &&
      kernel.workers >= 1) {
    return {};
  }
  return Status(StatusCode::kInternal, "[plan] " + to_string(entry.ref) + " plans " +
                                           std::to_string(kernel.workspace_bytes) +
                                           " workspace bytes on " + std::to_string(kernel.workers) +
                                           " workers, but stated " + std::to_string(stated_bytes) +
                                           " (expected equal, a multiple of 64)");
}

struct Pair {
  KernelPlan forward;
  KernelPlan backward;  // with needs_grad
};

// One direction's plan, checked. `plan` and `bytes` are the backend's functions for it.
template <class Plan, class Bytes>
Expected<KernelPlan> plan_kernel(const BackendEntry& entry, const char* function, Plan plan,
                                 Bytes bytes) {
  Expected<KernelPlan> kernel = Status(StatusCode::kInternal, "");
  const auto thrown = thrown_by([&] {
    kernel = plan();
    if (!kernel) return;
    Status status = check_kernel_plan(entry, *kernel, bytes());
    if (!status.ok()) kernel = std::move(status);
  });
  if (!thrown) return kernel;
  return failure(StatusCode::kInternal, "plan", to_string(entry.ref), " threw in ", function, ": ",
                 *thrown);
}

// The backward's plan, of no more bytes than the limit where the backend can do with them.
Expected<KernelPlan> plan_backward(const BackendEntry& entry, const AttentionKey& key,
                                   const Env& env, const std::optional<std::int64_t>& limit) {
  const Backend& backend = *entry.backend;
  std::int64_t bytes = 0;
  Expected<KernelPlan> kernel = plan_kernel(
      entry, "plan_backward",
      [&] {
        bytes = limit ? backend.backward_workspace_within(key, env, *limit) : 0;
        return backend.plan_backward(key, env);
      },
      [&] { return backend.backward_workspace_bytes(key, env); });
  if (kernel && limit) kernel->workspace_bytes = bytes;
  return kernel;
}

// A variant's plan, of no more workspace than the default's, by which the backend was chosen.
Expected<KernelPlan> plan_variant(const BackendEntry& entry, const AttentionKey& key,
                                  const Env& env, const std::string& variant) {
  const Backend& backend = *entry.backend;
  std::int64_t bytes = 0;
  Expected<KernelPlan> kernel = plan_kernel(
      entry, "plan_variant",
      [&] {
        Expected<KernelPlan> made = backend.plan_variant(key, env, variant);
        if (made) bytes = std::min(made->workspace_bytes, backend.workspace_bytes(key, env));
        return made;
      },
      [&] { return bytes; });
  if (kernel) kernel->variant = variant;
  return kernel;
}

// The forward's plan: of the variant that the tuning table names, if any.
Expected<KernelPlan> plan_forward(const BackendEntry& entry, const AttentionKey& key,
                                  const Env& env, const TuningTable& tuning) {
  const Backend& backend = *entry.backend;
  std::string variant;
  const bool names_some =
      !tuning.variants.empty() && tuning_mismatch(tuning, env, key.params().device.type).empty();
  const auto thrown = thrown_by([&] {
    if (!names_some) return;
    variant = tuned_variant(tuning, key.params(), entry.ref, backend.variants(key, env));
  });
  if (thrown) {
    return failure(StatusCode::kInternal, "plan", to_string(entry.ref),
                   " threw in variants: ", *thrown);
  }
  if (!variant.empty()) {
    Expected<KernelPlan> kernel = plan_variant(entry, key, env, variant);
    if (kernel) kernel->variant_source = "tuning table " + tuning.source;
    return kernel;
  }
  return plan_kernel(
      entry, "plan", [&] { return backend.plan(key, env); },
      [&] { return backend.workspace_bytes(key, env); });
}

Expected<Pair> plan_pair(const BackendEntry& entry, const AttentionKey& key, const Env& env,
                         const TuningTable& tuning, const std::optional<std::int64_t>& limit) {
  Pair pair;
  Expected<KernelPlan> forward = plan_forward(entry, key, env, tuning);
  if (!forward) return forward.status();
  pair.forward = *std::move(forward);
  if (!key.params().features.has(Feature::kNeedsGrad)) return pair;
  Expected<KernelPlan> backward = plan_backward(entry, key, env, limit);
  if (!backward) return backward.status();
  pair.backward = *std::move(backward);
  return pair;
}

bool is_refusal(StatusCode code) {
  return code == StatusCode::kRefusedAtPlan || code == StatusCode::kUnavailable;
}

struct MadePlan {
  Plan plan;
  bool depends_on_exact = false;
  bool may_be_cached = true;  // a backend that is unavailable now may be chosen next time
};

// Whether the record claims the forward of these params.
bool computes_forward(const BackendInfo& info, const AttentionParams& params, KernelLevel level) {
  constexpr FeatureSet kOthers{Feature::kNeedsGrad, Feature::kDLse, Feature::kDelta,
                               Feature::kScoresOut, Feature::kOutAmax};
  const FeatureSet wanted = params.features.without(kOthers);
  return find_dtypes(info.forward, params, level) != nullptr &&
         wanted.without(info.forward.features).empty();
}

// How calls of the key are checked: with the rows of MATH on this machine; those of MATH itself
// with its scalar kernels.
PlannedCheck plan_check(const ContextImpl& context, const Settings& settings,
                        const ResolvedPolicy& policy, const AttentionKey& key,
                        const Decision& decision) {
  PlannedCheck check;
  check.every = policy.policy.self_check.value_or(0);
  const RowReference* const rows = context.self_checks->reference();
  if (check.every == 0 || policy.is_of_backward || rows == nullptr) return check;
  check.checks = context.self_checks;
  check.refusal = self_check_refusal(key.params());
  if (!check.refusal.empty()) return check;
  const BackendRef math = BackendId::kMath;
  check.isa = decision.entry->ref == math ? Isa::kScalar : decision.level.isa;
  const auto is_math = [&](const BackendEntry& entry) { return entry.ref == math; };
  const auto entry = std::ranges::find_if(settings.cpu, is_math);
  const KernelLevel level{check.isa, 0};
  const DtypeClaim* const ours =
      entry != settings.cpu.end() ? find_dtypes(entry->backend->info().forward, key.params(), level)
                                  : nullptr;
  const DtypeClaim* const theirs =
      find_dtypes(decision.entry->backend->info().forward, key.params(), decision.level);
  if (ours == nullptr || theirs == nullptr) {
    check.refusal = "math does not support these element types";
  } else if (!computes_forward(entry->backend->info(), key.params(), level)) {
    check.refusal = "math does not support this problem";
  } else if (check.isa == decision.level.isa && decision.entry->ref == math) {
    check.refusal = "math on this machine has one kernel, and nothing to compare it with";
  } else {
    check.bound = error_bound_of(*ours, key.params()) + error_bound_of(*theirs, key.params());
    check.bytes = saturating_add(rows->workspace_bytes(key.params(), check.isa),
                                 self_check_row_bytes(key.params().head_dim_v));
  }
  return check;
}

// Selects and plans until a backend's own planner agrees with its record.
Expected<MadePlan> make_plan(ContextImpl& context, const Keys& keys,
                             const std::shared_ptr<const ResolvedPolicy>& policy,
                             std::shared_ptr<const Settings> settings,
                             const AttentionParams& params) {
  const std::shared_ptr<const Env> env =
      with_concurrency(context.env_for(params.device), settings->generations.concurrency);
  settings = order_for(std::move(settings), params.device.type, *env);
  Hindrances known{context.learned.find(keys.rounded, keys.exact), context.self_checks->denied()};
  MadePlan made;
  while (true) {
    const SelectInputs inputs = inputs_of(keys, *env, *policy, *settings, known);
    context.cache.count_selection();
    const Decision decision = decide(inputs);
    if (decision.entry == nullptr) return no_backend(context, inputs, params);
    const AttentionKey& key = inputs.key_for(decision.entry->backend->info());
    const EnvAtLevel machine(*env, decision.level);
    Expected<Pair> pair = plan_pair(*decision.entry, key, machine.get(), settings->tuning,
                                    policy->policy.max_workspace_bytes);
    if (!pair && is_refusal(pair.status().code())) {
      const bool lasting = pair.status().code() == StatusCode::kRefusedAtPlan;
      known.learned.push_back(
          {decision.entry->ref, key, decision.level, pair.status().message(), lasting});
      if (lasting) context.learned.add(known.learned.back());
      made.may_be_cached = made.may_be_cached && lasting;
      continue;
    }
    if (!pair) return pair.status();
    made.depends_on_exact = decision.depends_on_exact;
    PlannedCheck check = plan_check(context, *settings, *policy, key, decision);
    if (Status s = context.self_checks->reserve(check.bytes); !s.ok()) return s;
    made.plan = PlanImpl::wrap(std::make_shared<const PlanImpl>(PlanImpl{
        keys.rounded, keys.exact, params, policy, settings, env, context.executor, context.tracer,
        std::move(known.learned), *decision.entry, decision.level, std::move(pair->forward),
        std::move(pair->backward), std::move(known.denied), std::move(check)}));
    const Replay* const replay = PlanImpl::of(made.plan)->settings->replay.get();
    if (replay == nullptr) return made;
    const Status same = replay->check(*PlanImpl::of(made.plan));
    if (!same.ok()) return same;
    return made;
  }
}

// Whether a plan of these candidates may be one of exact extents.
bool may_need_exact(const Settings& settings, DeviceType device) {
  for (const BackendEntry& entry : settings.backends(device)) {
    const BackendInfo& info = entry.backend->info();
    if (info.needs_exact_extents && info.device == device) return true;
  }
  return false;
}

}  // namespace

void learn_refusal(ContextImpl& context, const PlanImpl& plan, const Status& refusal) {
  context.learned.add(
      {plan.entry.ref, plan.planned(), plan.level, refusal.message(), /*lasting=*/true});
  context.cache.erase(plan.entry.ref, plan.planned());
}

SelectInputs PlanImpl::inputs(const AttentionKey& exact_key) const {
  return {
      key,     exact_key, *env, *policy, settings->tuning, settings->backends(asked.device.type),
      learned, denied};
}

PredictedTime PlanImpl::predicted(const AttentionParams& params, Direction direction) const noexcept
    try {
  const CostModel model = cost_model(settings->tuning, *env, params.device.type);
  return predict_time(model, entry.ref, params, direction == Direction::kBackward);
} catch (...) {
  return {};  // out of memory: the call itself went well
}

Plan::Plan() = default;
Plan::~Plan() = default;
Plan::Plan(const Plan&) = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(const Plan&) = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::Plan(std::shared_ptr<const PlanImpl> impl) noexcept : impl_(std::move(impl)) {}

const BackendRef& Plan::backend() const noexcept { return impl_->entry.ref; }
const AttentionParams& Plan::params() const noexcept { return impl_->planned().params(); }
const KernelPlan& Plan::kernel() const noexcept { return impl_->kernel; }
std::int64_t Plan::workspace_bytes() const noexcept { return impl_->kernel.workspace_bytes; }
const KernelPlan& Plan::backward_kernel() const noexcept { return impl_->backward; }
std::int64_t Plan::backward_workspace_bytes() const noexcept {
  return impl_->backward.workspace_bytes;
}
std::int64_t Plan::self_check_bytes() const noexcept { return impl_->check.bytes; }
const Policy& Plan::policy() const noexcept { return impl_->policy->policy; }
Selection Plan::selection() const { return select(impl_->inputs(impl_->exact), impl_->asked); }

Selection PlannedCall::selection() const {
  const PlanImpl& impl = *PlanImpl::of(plan);
  const bool assume_finite = assumes_finite(*params, *impl.policy);
  const auto exact = AttentionKey::make(*params, assume_finite, KeyExtents::kExact);
  return select(impl.inputs(*exact), *params);
}

std::vector<std::string> Plan::variants() const {
  const EnvAtLevel machine(*impl_->env, impl_->level);
  return impl_->entry.backend->variants(impl_->planned(), machine.get());
}

Expected<Plan> Plan::with_variant(std::string_view variant) const try {
  const EnvAtLevel machine(*impl_->env, impl_->level);
  Expected<KernelPlan> kernel =
      variant.empty()
          ? plan_forward(impl_->entry, impl_->planned(), machine.get(), TuningTable{})
          : plan_variant(impl_->entry, impl_->planned(), machine.get(), std::string(variant));
  if (!kernel) return kernel.status();
  PlanImpl copy = *impl_;
  copy.kernel = *std::move(kernel);
  return PlanImpl::wrap(std::make_shared<const PlanImpl>(std::move(copy)));
} catch (...) {
  return status_of_exception("with_variant");
}

std::string to_string(const KernelPlan& k) {
  std::string text =
      concat(k.kernel, " (", to_string(k.isa), "), workers ", k.workers, ", tile_q ", k.tile_q,
             ", tile_kv ", k.tile_kv, ", workspace ", bytes_text(k.workspace_bytes));
  if (!k.variant.empty()) text += concat(", variant ", k.variant);
  if (!k.variant_source.empty()) text += concat(" of ", k.variant_source);
  return text;
}

std::string Plan::to_string() const {
  std::string text = regard::to_string(backend()) + ": " + regard::to_string(impl_->kernel);
  if (!impl_->backward.kernel.empty()) text += "; backward " + regard::to_string(impl_->backward);
  const PlannedCheck& check = impl_->check;
  if (check.every > 0 && check.checks != nullptr) {
    text += concat("; self-check of 1 call in ", check.every, ", ");
    text += check.refusal.empty() ? bytes_text(check.bytes) : "none: " + check.refusal;
  }
  return text;
}

namespace {

Expected<Plan> plan_under(ContextImpl& context, const AttentionParams& params,
                          std::shared_ptr<const Settings> settings,
                          std::shared_ptr<const ResolvedPolicy> policy) {
  PlanCacheKey cache_key;
  cache_key.policy = std::move(policy);
  if (!cache_key.policy->status.ok()) return cache_key.policy->status;
  cache_key.generations = settings->generations;
  cache_key.generations.denials = context.self_checks->denials();
  const bool assume_finite = assumes_finite(params, *cache_key.policy);
  Keys keys;
  Expected<AttentionKey> key = AttentionKey::make(params, assume_finite);
  if (!key) return key.status();
  cache_key.key = keys.rounded = *key;
  Plan found = context.cache.find(cache_key);
  if (found.empty()) {
    key = AttentionKey::make(params, assume_finite, KeyExtents::kExact);
    if (!key) return key.status();
    keys.exact = *key;
  }
  if (found.empty() && may_need_exact(*settings, params.device.type)) {
    cache_key.key = keys.exact;
    found = context.cache.find(cache_key);
  }
  if (!found.empty()) {
    context.executor->prepare(found.kernel());
    context.executor->prepare(found.backward_kernel());
    return found;
  }

  context.cache.count_miss();
  Log& log = context.tracer->log();
  log.write_warnings_once(context.env->warnings);
  if (Status status = env_status(*context.env); !status.ok()) return status;
  const Expected<MadePlan> made = make_plan(context, keys, cache_key.policy, settings, params);
  if (!made) return made.status();
  cache_key.key = made->depends_on_exact ? keys.exact : keys.rounded;
  if (made->may_be_cached) context.cache.insert(cache_key, made->plan);
  context.executor->prepare(made->plan.kernel());
  context.executor->prepare(made->plan.backward_kernel());
  if (log.wants(LogLevel::kSelect)) log.write_selection(made->plan.selection());
  return made->plan;
}

}  // namespace

Expected<Plan> plan_described(ContextImpl& context, const AttentionParams& params,
                              const Policy& policy) {
  std::shared_ptr<const Settings> settings = context.settings();
  std::shared_ptr<const ResolvedPolicy> resolved = policy_for(context, *settings, policy);
  return plan_under(context, params, std::move(settings), std::move(resolved));
}

Expected<Plan> plan_backward_of(ContextImpl& context, const AttentionParams& params,
                                const PlanImpl& forward, const Policy& policy) {
  return plan_under(context, params, context.settings(),
                    restrict_to_forward(*forward.policy, forward.entry.ref, policy));
}

Expected<Plan> plan(Context& context, const AttentionParams& params, const Policy& policy) try {
  AttentionParams canonical = params;
  canonicalize(canonical);
  if (Status status = validate(canonical, "plan"); !status.ok()) return status;
  return plan_described(ContextImpl::of(context), canonical, policy);
} catch (...) {
  return status_of_exception("plan");
}

namespace {

// What explain answers for words that describe would refuse: no candidate is judged.
Selection invalid_selection(const AttentionParams& params, const Status& status) {
  Selection selection;
  selection.params = params;
  selection.key_params = params;
  unless_out_of_memory(status);
  selection.decided_by = "invalid problem";
  selection.warnings.push_back(status.message());
  return selection;
}

// A value of the environment that cannot be used makes every plan fail, whatever could run.
void refuse_all(const Status& status, Selection& selection) {
  unless_out_of_memory(status);
  selection.warnings.push_back(status.message());
  selection.decided_by = "environment";
  selection.chosen = {};
  selection.runner_up.reset();
  for (Verdict& verdict : selection.candidates) verdict.chosen = false;
}

// select for a problem given in words; `settings` hold the candidates. `context`, which
// knows what calls have found out, may be null.
Selection explain_with(const AttentionParams& params, const Env& env, const ResolvedPolicy& policy,
                       const Settings& settings, ContextImpl* context) {
  AttentionParams canonical = params;
  canonicalize(canonical);
  if (Status status = validate(canonical, "explain"); !status.ok()) {
    return invalid_selection(canonical, status);
  }
  if (!policy.status.ok()) return invalid_selection(canonical, policy.status);
  const Expected<Keys> keys = keys_of(canonical, policy);
  if (!keys) return invalid_selection(canonical, keys.status());
  Hindrances known;
  if (context != nullptr) {
    known = {context->learned.find(keys->rounded, keys->exact), context->self_checks->denied()};
  }
  Selection selection = select(inputs_of(*keys, env, policy, settings, known), canonical);
  if (Status status = env_status(env); !status.ok()) refuse_all(status, selection);
  return selection;
}

}  // namespace

namespace {

Selection explain_on(ContextImpl& context, const AttentionParams& params, const Policy& policy,
                     const Env& env, bool with_findings) {
  const auto settings = order_for(context.settings(), params.device.type, env);
  return explain_with(params, env, *policy_for(context, *settings, policy), *settings,
                      with_findings ? &context : nullptr);
}

// The machine's facts for problems on the device.
Env described_for(const Device& device, const Env& machine) {
  if (device.type != DeviceType::kCuda) return machine;
  return env_on_device(with_devices(machine), device.index);
}

}  // namespace

Policy resolved_policy(Context& context, const Policy& call) {
  const ContextImpl& impl = ContextImpl::of(context);
  return policy_for(impl, *impl.settings(), call)->policy;
}

Selection explain(Context& context, const AttentionParams& params, const Policy& policy) {
  ContextImpl& impl = ContextImpl::of(context);
  const auto env = with_concurrency(impl.env_for(params.device), context.concurrency());
  return explain_on(impl, params, policy, *env, /*with_findings=*/true);
}

Selection explain(Context& context, const AttentionParams& params, const Policy& policy,
                  const Env& machine) {
  // Another machine's libraries have refused nothing yet.
  return explain_on(ContextImpl::of(context), params, policy, described_for(params.device, machine),
                    /*with_findings=*/false);
}

Selection explain(const AttentionParams& params, const Policy& policy, const Env& machine) {
  const Env env = described_for(params.device, machine);
  BuiltinBackends builtin = builtin_candidates(env);
  Settings settings;
  settings.cpu = std::move(builtin.cpu);
  settings.cuda = std::move(builtin.cuda);
  return explain_with(params, env, *resolve_policy(policy, {}, environment_policy(env)), settings,
                      nullptr);
}

}  // namespace regard
