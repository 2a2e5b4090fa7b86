#include "regard/context.h"

#include <algorithm>
#include <utility>

#include "core/context_impl.h"
#include "core/scope_stack.h"

namespace regard {

Executor::~Executor() = default;
ConformanceSuite::~ConformanceSuite() = default;

ContextImpl::ContextImpl(Env env_in, std::size_t plan_cache_capacity, BuiltinBackends builtin,
                         std::shared_ptr<ExecutorSlot> executor_in)
    : env(std::make_shared<const Env>(std::move(env_in))),
      environment(environment_policy(*env)),
      executor(std::move(executor_in)),
      cache(plan_cache_capacity),
      log(env_value(*env, "REGARD_LOG")) {
  auto settings = std::make_shared<Settings>();
  settings->cpu = std::move(builtin.cpu);
  settings->cuda = std::move(builtin.cuda);
  settings->base = resolve_base({});
  current = std::move(settings);
}

const std::shared_ptr<const Env>& ContextImpl::env_for(DeviceType device, Env (*read)(Env)) {
  if (device != DeviceType::kCuda || env->sm_version != kSmUnread) return env;
  std::call_once(devices_once, [&] { set_device_env(read(*env)); });
  return device_env;
}

void ContextImpl::set_device_env(Env complete) {
  device_env = std::make_shared<const Env>(std::move(complete));
  std::vector<BackendEntry> builtin = builtin_candidates(*device_env).cuda;
  // Built-in candidates come first in both: what was registered keeps its places.
  update([&](Settings& settings) { std::ranges::copy(builtin, settings.cuda.begin()); });
}

std::shared_ptr<const Settings> ContextImpl::settings() const {
  const std::lock_guard lock(mutex);
  return current;
}

// The scopes of the thread that changes a setting must not leak into everybody's base policy.
std::shared_ptr<const ResolvedPolicy> ContextImpl::resolve_base(const Policy& policy) const {
  const ScopedPolicy no_scopes{CapturedPolicy{}};
  return resolve_policy({}, policy, environment);
}

std::shared_ptr<const ResolvedPolicy> policy_for(const ContextImpl& context,
                                                 const Settings& settings, const Policy& call) {
  // The usual call has no policy of its own and no scope: nothing to merge.
  if (ScopeStack::top() == nullptr && call == Policy{}) return settings.base;
  return resolve_policy(call, settings.policy, context.environment);
}

Context::~Context() = default;

const Env& Context::env() const noexcept { return *impl_->env; }
Policy Context::policy() const { return impl_->settings()->policy; }

void Context::set_policy(Policy policy) {
  impl_->update([&](Settings& settings) { settings.policy = std::move(policy); });
}

void Context::set_executor(Executor* executor) {
  impl_->executor->injected.store(executor, std::memory_order_release);
}

Executor& Context::executor() { return impl_->executor->current(); }

void Context::set_tuning(TuningTable table) {
  impl_->update([&](Settings& settings) {
    settings.tuning = std::move(table);
    ++settings.generations.tuning;
  });
}

void Context::set_log_sink(LogSink sink, void* user) { impl_->log.set_sink(sink, user); }

std::vector<BackendInfo> Context::backends() const {
  const auto settings = impl_->settings();
  std::vector<BackendInfo> infos;
  for (const auto* list : {&settings->cpu, &settings->cuda}) {
    for (const BackendEntry& entry : *list) {
      BackendInfo info = entry.backend->info();
      // CUDNN stands in the order of CPU problems too, to refuse them.
      if (list == &settings->cpu && info.device != DeviceType::kCpu) continue;
      info.ref = entry.ref;
      infos.push_back(std::move(info));
    }
  }
  return infos;
}

PlanCacheCounters Context::plan_cache_counters() const {
  PlanCacheCounters counters = impl_->cache.counters();
  counters.refusals = impl_->learned.added();
  return counters;
}
void Context::trim() {
  impl_->workspaces.trim();
  impl_->device_pools.trim();
}
std::int64_t Context::leased_workspace_bytes() const {
  return impl_->workspaces.total_bytes() + impl_->device_pools.total_bytes();
}

}  // namespace regard
