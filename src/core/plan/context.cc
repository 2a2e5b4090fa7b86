#include "regard/context.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "core/plan/context_impl.h"
#include "core/policy/scope_stack.h"
#include "core/select/predictions.h"
#include "core/select/tuning.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

void replace_tuning(Settings* settings, TuningTable table) {
  settings->tuning = std::move(table);
  ++settings->generations.tuning;
}

}  // namespace

Executor::~Executor() = default;
ConformanceSuite::~ConformanceSuite() = default;

ContextImpl::ContextImpl(Env env_in, std::size_t plan_cache_capacity, BuiltinBackends builtin,
                         std::shared_ptr<ExecutorHolder> executor_in)
    : env(std::make_shared<const Env>(std::move(env_in))),
      concurrency(env->concurrency),
      environment(environment_policy(*env)),
      executor(std::move(executor_in)),
      cache(plan_cache_capacity),
      tracer(std::make_shared<Tracer>(env_value(*env, "REGARD_LOG"))),
      self_checks(std::make_shared<SelfChecks>(builtin.rows)) {
  auto settings = std::make_shared<Settings>();
  settings->cpu = std::move(builtin.cpu);
  settings->cuda = std::move(builtin.cuda);
  settings->generations.concurrency = env->concurrency;
  complete(settings.get());
  current = std::move(settings);
}

std::shared_ptr<const Env> ContextImpl::env_for(const Device& device, Env (*read)(Env)) {
  if (device.type != DeviceType::kCuda) return env;
  // Not std::call_once: where its function throws, some runtimes (ThreadSanitizer's) never return.
  const std::lock_guard lock(devices_mutex);
  if (device_envs.empty()) {
    const auto complete =
        env->sm_version == kSmUnread ? std::make_shared<const Env>(read(*env)) : env;
    std::vector<std::shared_ptr<const Env>> envs;  // a failure leaves device_envs empty
    const std::size_t count = complete->cuda_devices.size();
    if (count == 0) envs.push_back(complete);
    for (std::size_t i = 0; count > 0 && i <= count; ++i) {
      const auto index = static_cast<std::int32_t>(i);
      envs.push_back(std::make_shared<const Env>(env_on_device(*complete, index)));
    }
    device_envs = std::move(envs);
  }
  const auto index = static_cast<std::size_t>(std::max(device.index, 0));
  return device_envs[std::min(index, device_envs.size() - 1)];
}

void ContextImpl::refuse_variable(const std::string& name, const std::string& error) {
  auto changed = std::make_shared<Env>(*env);
  for (EnvVariable& v : changed->variables) {
    if (v.name == name) v.error = error;
  }
  env = std::move(changed);
}

Status ContextImpl::set_concurrency(std::int32_t workers) {
  if (workers < 1 || workers > kMaxConcurrency) {
    return invalid("set_concurrency", "concurrency (", workers, ") must be 1..", kMaxConcurrency);
  }
  const std::lock_guard lock(resize_mutex);
  if (executor->resize_own != nullptr) executor->resize_own(*executor->own, workers);
  update([&](Settings& settings) { settings.generations.concurrency = workers; });
  concurrency.store(workers);
  look_for_tuning();
  return {};
}

void ContextImpl::look_for_tuning() {
  if (!settings()->looks_for_tuning) return;
  std::string skipped;
  TuningTable table = find_tuning(*with_concurrency(env, concurrency.load()), &skipped);
  if (!skipped.empty()) tracer->warn(skipped);
  if (settings()->tuning == table) return;
  update([&](Settings& settings) {
    if (settings.looks_for_tuning) replace_tuning(&settings, std::move(table));
  });
}

std::shared_ptr<const Env> with_concurrency(std::shared_ptr<const Env> env,
                                            std::int32_t concurrency) {
  if (env->concurrency == concurrency) return env;
  auto changed = std::make_shared<Env>(*env);
  changed->concurrency = concurrency;
  return changed;
}

Env env_on_device(Env env, std::int32_t index) {
  if (env.cuda_devices.empty()) return env;
  const auto i = static_cast<std::size_t>(std::max(index, 0));
  const CudaDevice found = i < env.cuda_devices.size() ? env.cuda_devices[i] : CudaDevice{};
  env.sm_version = found.sm_version;
  env.device_name = found.name;
  return env;
}

std::shared_ptr<const Settings> order_for(std::shared_ptr<const Settings> settings,
                                          DeviceType device, const Env& env) {
  if (device != DeviceType::kCuda) return settings;
  const std::vector<BackendEntry> builtin = builtin_candidates(env).cuda;
  const auto same = [](const BackendEntry& a, const BackendEntry& b) { return a.ref == b.ref; };
  if (std::equal(builtin.begin(), builtin.end(), settings->cuda.begin(), same)) return settings;
  auto ordered = std::make_shared<Settings>(*settings);
  std::ranges::copy(builtin, ordered->cuda.begin());  // custom backends come behind them
  return ordered;
}

std::shared_ptr<const Settings> ContextImpl::settings() const {
  const std::lock_guard lock(mutex);
  return current;
}

void ContextImpl::complete(Settings* settings) const {
  // The scopes of the thread that changes a setting must not leak into everybody's base policy.
  const ScopedPolicy no_scopes{CapturedPolicy{}};
  settings->base = resolve_policy({}, settings->policy, environment);
  const auto own = with_concurrency(env, settings->generations.concurrency);
  settings->costs =
      std::make_shared<const CostModel>(cost_model(settings->tuning, *own, DeviceType::kCpu));
}

std::shared_ptr<const ResolvedPolicy> policy_for(const ContextImpl& context,
                                                 const Settings& settings, const Policy& call) {
  // The usual call has no policy of its own and no scope: nothing to merge.
  if (ScopeStack::top() == nullptr && call == Policy{}) return settings.base;
  return resolve_policy(call, settings.policy, context.environment);
}

Context::~Context() = default;

Env Context::env() const { return *with_concurrency(impl_->env, concurrency()); }

std::int32_t Context::concurrency() const { return impl_->concurrency.load(); }

Status Context::set_concurrency(std::int32_t concurrency) try {
  return impl_->set_concurrency(concurrency);
} catch (...) {
  return status_of_exception("set_concurrency");
}

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
    replace_tuning(&settings, std::move(table));
    settings.looks_for_tuning = false;
  });
}

void Context::set_log_sink(LogSink sink, void* user) { impl_->tracer->log().set_sink(sink, user); }

void Context::set_log_level(LogLevel level) { impl_->tracer->set_log_level(level); }

void Context::set_trace(TraceFunction function, void* user) {
  impl_->tracer->set_function(function, user);
}

Status Context::set_record(const std::string& path) try {
  return impl_->tracer->set_record(path);
} catch (...) {
  return status_of_exception("set_record");
}

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
SelfCheckCounters Context::self_check_counters() const { return impl_->self_checks->counters(); }
std::vector<SelfCheckViolation> Context::self_check_violations() const {
  return impl_->self_checks->violations();
}
void Context::trim() {
  impl_->self_checks->trim();
  impl_->workspaces.trim();
  impl_->device_pools.trim();
}
std::int64_t Context::leased_workspace_bytes() const {
  return impl_->workspaces.total_bytes() + impl_->device_pools.total_bytes() +
         impl_->self_checks->total_bytes();
}

}  // namespace regard
