#include <utility>

#include "core/context_impl.h"
#include "regard/context.h"

namespace regard {
namespace {

// "flash: not_built; math: denied" for an error's one line; the Selection has the rest.
std::string short_reasons(const Selection& selection) {
  std::string out;
  for (const Verdict& verdict : selection.candidates) {
    out += (out.empty() ? "" : "; ") + to_string(verdict.backend) + ": ";
    if (verdict.refusals.empty()) out += "can run";
    for (std::size_t i = 0; i < verdict.refusals.size(); ++i) {
      out += (i == 0 ? "" : ", ") + to_string(verdict.refusals[i]);
    }
  }
  for (const std::string& warning : selection.warnings) out += "; " + warning;
  return out;
}

SelectInputs inputs_of(const AttentionKey& key, const Env& env, const ResolvedPolicy& policy,
                       const Settings& settings) {
  return {key,
          env,
          policy,
          settings.tuning,
          settings.backends(key.params().device.type),
          settings.learned};
}

Status no_backend(ContextImpl& context, const SelectInputs& inputs, const AttentionParams& params) {
  auto selection = std::make_shared<const Selection>(select(inputs, params));
  if (context.log.wants_select()) context.log.write_selection(*selection);
  std::string message = "[plan] no backend can run " + to_string(params) + " (" +
                        selection->decided_by + "): " + short_reasons(*selection);
  return Status(StatusCode::kNoBackend, std::move(message), std::move(selection));
}

// A backend's plan must state what its workspace_bytes said: selection was judged by the latter.
Status check_kernel_plan(const BackendEntry& entry, const KernelPlan& kernel,
                         std::int64_t stated_bytes) {
  if (kernel.workspace_bytes == stated_bytes && stated_bytes >= 0 && stated_bytes % 64 == 0 &&
      kernel.slots >= 1) {
    return {};
  }
  return Status(StatusCode::kInternal, "[plan] " + to_string(entry.ref) + " plans " +
                                           std::to_string(kernel.workspace_bytes) +
                                           " workspace bytes on " + std::to_string(kernel.slots) +
                                           " slots, but stated " + std::to_string(stated_bytes) +
                                           " (expected equal, a multiple of 64)");
}

struct Pair {
  KernelPlan forward;
  KernelPlan backward;  // with needs_grad
};

Expected<Pair> plan_pair(const Backend& backend, const AttentionKey& key, const Env& env) {
  Pair pair;
  Expected<KernelPlan> forward = backend.plan(key, env);
  if (!forward) return forward.status();
  pair.forward = *std::move(forward);
  if (!key.params().features.has(Feature::kNeedsGrad)) return pair;
  Expected<KernelPlan> backward = backend.plan_backward(key, env);
  if (!backward) return backward.status();
  pair.backward = *std::move(backward);
  return pair;
}

Status check_pair(const BackendEntry& entry, const Pair& pair, const AttentionKey& key,
                  const Env& env) {
  const Backend& backend = *entry.backend;
  Status status = check_kernel_plan(entry, pair.forward, backend.workspace_bytes(key, env));
  if (!status.ok() || !key.params().features.has(Feature::kNeedsGrad)) return status;
  return check_kernel_plan(entry, pair.backward, backend.backward_workspace_bytes(key, env));
}

// Selects and plans until a backend's own planner agrees with its record.
Expected<Plan> make_plan(ContextImpl& context, PlanCacheKey& cache_key,
                         std::shared_ptr<const Settings> settings, const AttentionParams& params) {
  const AttentionKey& key = cache_key.key;
  const std::shared_ptr<const Env>& env = context.env_for(params.device.type);
  while (true) {
    const SelectInputs inputs = inputs_of(key, *env, *cache_key.policy, *settings);
    context.cache.count_selection();
    const Decision decision = decide(inputs);
    if (decision.entry == nullptr) return no_backend(context, inputs, params);
    const Backend& backend = *decision.entry->backend;
    const EnvAtLevel machine(*env, decision.level);
    Expected<Pair> pair = plan_pair(backend, key, machine.get());
    if (!pair && pair.status().code() == StatusCode::kRefusedAtPlan) {
      context.update([&](Settings& next) {
        next.learned.push_back({decision.entry->ref, key, pair.status().message()});
        ++next.generations.learned;
      });
      settings = context.settings();
      cache_key.generations = settings->generations;
      continue;
    }
    if (!pair) return pair.status();
    Status status = check_pair(*decision.entry, *pair, key, machine.get());
    if (!status.ok()) return status;
    auto impl = std::make_shared<const PlanImpl>(
        PlanImpl{key, params, cache_key.policy, settings, env, context.executor, *decision.entry,
                 std::move(pair->forward), std::move(pair->backward)});
    return PlanImpl::wrap(std::move(impl));
  }
}

}  // namespace

SelectInputs PlanImpl::inputs() const { return inputs_of(key, *env, *policy, *settings); }

Plan::Plan() = default;
Plan::~Plan() = default;
Plan::Plan(const Plan&) = default;
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(const Plan&) = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::Plan(std::shared_ptr<const PlanImpl> impl) noexcept : impl_(std::move(impl)) {}

const BackendRef& Plan::backend() const noexcept { return impl_->entry.ref; }
const AttentionParams& Plan::params() const noexcept { return impl_->key.params(); }
const KernelPlan& Plan::kernel() const noexcept { return impl_->kernel; }
std::int64_t Plan::workspace_bytes() const noexcept { return impl_->kernel.workspace_bytes; }
const KernelPlan& Plan::backward_kernel() const noexcept { return impl_->backward; }
std::int64_t Plan::backward_workspace_bytes() const noexcept {
  return impl_->backward.workspace_bytes;
}
const Policy& Plan::policy() const noexcept { return impl_->policy->policy; }
Selection Plan::selection() const { return select(impl_->inputs(), impl_->asked); }

namespace {

std::string kernel_text(const KernelPlan& k) {
  return k.kernel + " isa=" + regard::to_string(k.isa) + " slots=" + std::to_string(k.slots) +
         " tile_q=" + std::to_string(k.tile_q) + " tile_kv=" + std::to_string(k.tile_kv) +
         " workspace_bytes=" + std::to_string(k.workspace_bytes);
}

}  // namespace

std::string Plan::to_string() const {
  std::string text = regard::to_string(backend()) + " " + kernel_text(impl_->kernel);
  if (!impl_->backward.kernel.empty()) text += "; backward " + kernel_text(impl_->backward);
  return text;
}

Expected<Plan> plan_described(ContextImpl& context, const AttentionParams& params,
                              const Policy& policy) {
  context.env_for(params.device.type);  // orders the candidates
  std::shared_ptr<const Settings> settings = context.settings();
  PlanCacheKey cache_key;
  cache_key.policy = policy_for(context, *settings, policy);
  if (!cache_key.policy->status.ok()) return cache_key.policy->status;
  cache_key.generations = settings->generations;
  const bool assume_finite = cache_key.policy->policy.assume_finite.value_or(false);
  Expected<AttentionKey> key = AttentionKey::make(params, assume_finite);
  if (!key) return key.status();
  cache_key.key = *key;
  if (Plan cached = context.cache.find(cache_key); !cached.empty()) {
    context.executor->prepare(cached.kernel());
    context.executor->prepare(cached.backward_kernel());
    return cached;
  }

  if (Status status = env_status(*context.env); !status.ok()) return status;
  Expected<Plan> made = make_plan(context, cache_key, std::move(settings), params);
  if (!made) return made;
  context.cache.insert(cache_key, *made);
  context.executor->prepare(made->kernel());
  context.executor->prepare(made->backward_kernel());
  if (context.log.wants_select()) context.log.write_selection(made->selection());
  return made;
}

Expected<Plan> plan(Context& context, const AttentionParams& params, const Policy& policy) {
  AttentionParams canonical = params;
  canonicalize(canonical);
  if (Status status = validate(canonical, "plan"); !status.ok()) return status;
  return plan_described(context.impl(), canonical, policy);
}

namespace {

// What explain answers for words that describe would refuse: no candidate is judged.
Selection invalid_selection(const AttentionParams& params, const Status& status) {
  Selection selection;
  selection.params = params;
  selection.key_params = params;
  selection.decided_by = "invalid problem";
  selection.warnings.push_back(status.message());
  return selection;
}

// A value of the environment that cannot be used makes every plan fail, whatever could run.
void refuse_all(const Status& status, Selection& selection) {
  selection.warnings.push_back(status.message());
  selection.decided_by = "environment";
  selection.chosen = {};
  for (Verdict& verdict : selection.candidates) verdict.chosen = false;
}

// select for a problem given in words; `settings` hold the candidates.
Selection explain_with(const AttentionParams& params, const Env& env, const ResolvedPolicy& policy,
                       const Settings& settings) {
  AttentionParams canonical = params;
  canonicalize(canonical);
  if (Status status = validate(canonical, "explain"); !status.ok()) {
    return invalid_selection(canonical, status);
  }
  if (!policy.status.ok()) return invalid_selection(canonical, policy.status);
  const Expected<AttentionKey> key =
      AttentionKey::make(canonical, policy.policy.assume_finite.value_or(false));
  if (!key) return invalid_selection(canonical, key.status());
  Selection selection = select(inputs_of(*key, env, policy, settings), canonical);
  if (Status status = env_status(env); !status.ok()) refuse_all(status, selection);
  return selection;
}

}  // namespace

Selection explain(Context& context, const AttentionParams& params, const Policy& policy) {
  ContextImpl& impl = context.impl();
  const Env& env = *impl.env_for(params.device.type);
  const auto settings = impl.settings();
  return explain_with(params, env, *policy_for(impl, *settings, policy), *settings);
}

Selection explain(const AttentionParams& params, const Policy& policy, const Env& machine) {
  const Env env = params.device.type == DeviceType::kCuda ? with_devices(machine) : machine;
  BuiltinBackends builtin = builtin_candidates(env);
  Settings settings;
  settings.cpu = std::move(builtin.cpu);
  settings.cuda = std::move(builtin.cuda);
  return explain_with(params, env, *resolve_policy(policy, {}, environment_policy(env)), settings);
}

}  // namespace regard
