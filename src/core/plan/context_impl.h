#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/checked.h"
#include "core/plan/freeze.h"
#include "core/plan/plan_cache.h"
#include "core/plan/self_checks.h"
#include "core/plan/tracer.h"
#include "core/plan/workspace_pool.h"
#include "core/select/select.h"
#include "platform/device_memory.h"
#include "regard/context.h"

namespace regard {

/// What a Context's setters change, as one immutable snapshot: a call reads it once.
struct Settings {
  Policy policy;
  std::shared_ptr<const ResolvedPolicy> base;  // resolved without call policy and scopes
  std::vector<BackendEntry> cpu, cuda;         // candidates by the problem's device
  TuningTable tuning;
  std::shared_ptr<const CostModel> costs;  // of CPUs, by this table and concurrency
  bool looks_for_tuning = false;  // among what `regard tune` wrote, anew for each concurrency
  std::shared_ptr<const Replay> replay;  // null: decisions are compared with none
  Generations generations;

  const std::vector<BackendEntry>& backends(DeviceType device) const {
    return device == DeviceType::kCuda ? cuda : cpu;
  }
};

/// The executor that a Context's plans run on; shared with them, as a plan may outlive its Context.
struct ExecutorHolder {
  std::unique_ptr<Executor> own;
  bool (*start_own)(Executor& own) noexcept = nullptr;  // starts its threads, again after a fork
  void (*resize_own)(Executor& own, int concurrency) = nullptr;
  std::atomic<Executor*> injected{nullptr};

  Executor& current() const noexcept {
    Executor* executor = injected.load(std::memory_order_acquire);
    return executor != nullptr ? *executor : *own;
  }
  /// A plan for more than one worker starts the own threads, so that its first execute does not.
  void prepare(const KernelPlan& kernel) const noexcept {
    const bool own_runs = injected.load(std::memory_order_acquire) == nullptr;
    if (kernel.workers > 1 && own_runs && start_own != nullptr) start_own(*own);
  }
};

/// The built-in candidates of each device, in built-in order for a machine. src/regard.cc names
/// them.
struct BuiltinBackends {
  std::vector<BackendEntry> cpu, cuda;
  const RowReference* rows = nullptr;  // what self-checks compare with; null: nothing is checked
};
BuiltinBackends builtin_candidates(const Env& env);

struct ContextImpl {
  ContextImpl(Env env_in, std::size_t plan_cache_capacity, BuiltinBackends builtin,
              std::shared_ptr<ExecutorHolder> executor_in);
  ~ContextImpl() { tracer->close(); }
  static ContextImpl& of(Context& context) noexcept { return *context.impl_; }

  std::shared_ptr<const Settings> settings() const;
  /// While the Context is made: every plan reports that the variable's value cannot be used.
  void refuse_variable(const std::string& name, const std::string& error);
  Status set_concurrency(std::int32_t workers);
  /// Where no table was named or set: takes that of `regard tune` for this concurrency.
  void look_for_tuning();
  /// Replaces the settings by a copy that `change` edited.
  template <class Change>
  void update(Change&& change) {
    const std::lock_guard lock(mutex);
    auto next = std::make_shared<Settings>(*current);
    change(*next);
    complete(next.get());
    current = std::move(next);
  }

  /// What problems on the device are decided from: on a CUDA device, that device's facts. The first
  /// on CUDA reads the devices, where the Context's Env leaves them unread.
  std::shared_ptr<const Env> env_for(const Device& device, Env (*read)(Env) = with_devices);

  std::shared_ptr<const Env> env;         // as the Context was given it
  std::atomic<std::int32_t> concurrency;  // the settings', to be read without a lock
  Policy environment;                     // the values of REGARD_BACKEND and REGARD_DENY
  std::shared_ptr<ExecutorHolder> executor;
  PlanCache cache;
  LearnedRefusals learned;
  WorkspacePool workspaces;  // on the host
  DevicePools device_pools;
  std::shared_ptr<Tracer> tracer;
  std::shared_ptr<SelfChecks> self_checks;

 private:
  /// What follows from the other settings.
  void complete(Settings* settings) const;

  std::mutex resize_mutex;  // the pool and the settings change together
  std::mutex devices_mutex;
  std::vector<std::shared_ptr<const Env>> device_envs;  // by index; the last: of no such device
  mutable std::mutex mutex;
  std::shared_ptr<const Settings> current;
};

/// `env` with the facts of a CUDA device, those of no device where it lists none of that index. An
/// Env that lists no devices describes one, and stays as it is.
Env env_on_device(Env env, std::int32_t index);

/// `env` with that concurrency; a copy only where it has another one.
std::shared_ptr<const Env> with_concurrency(std::shared_ptr<const Env> env,
                                            std::int32_t concurrency);

/// The settings with the device's built-in candidates in the order for `env`; that of CPUs is one.
std::shared_ptr<const Settings> order_for(std::shared_ptr<const Settings> settings,
                                          DeviceType device, const Env& env);

/// How calls of a plan are checked.
struct PlannedCheck {
  std::shared_ptr<SelfChecks> checks;  // null: they are not
  std::int64_t every = 0;              // one call in so many
  std::int64_t bytes = 0;
  Isa isa = Isa::kScalar;  // of MATH
  double bound = 0.0;      // the backend's and MATH's together
  std::string refusal;     // why they cannot be
};

/// Behind the workspace of the reference: a row of an output in f64.
inline std::int64_t self_check_row_bytes(std::int64_t head_dim_v) {
  return round_up(saturating_mul(head_dim_v, std::int64_t{sizeof(double)}), 64);
}

/// A plan and what it was decided from, so that it can explain itself.
struct PlanImpl {
  AttentionKey key;    // extents rounded
  AttentionKey exact;  // of the call that was planned
  AttentionParams asked;
  std::shared_ptr<const ResolvedPolicy> policy;
  std::shared_ptr<const Settings> settings;
  std::shared_ptr<const Env> env;
  std::shared_ptr<ExecutorHolder> executor;
  std::shared_ptr<Tracer> tracer;
  std::vector<LearnedRefusal> learned;  // of its keys
  BackendEntry entry;
  KernelLevel level;
  KernelPlan kernel;
  KernelPlan backward;                  // with needs_grad
  std::vector<DeniedBackend> denied{};  // by self-checks before it
  PlannedCheck check{};

  /// What a problem of the plan's class was decided from; `exact` is that problem's key.
  SelectInputs inputs(const AttentionKey& exact) const;
  /// What the backend planned from: the most that a call may be.
  const AttentionKey& planned() const noexcept {
    return entry.backend->info().needs_exact_extents ? exact : key;
  }
  /// The time of a call of this plan, by the cost model that its decision is explained with;
  /// unknown where memory runs out.
  PredictedTime predicted(const AttentionParams& params, Direction direction) const noexcept;
  static Plan wrap(std::shared_ptr<const PlanImpl> impl) { return Plan(std::move(impl)); }
  static const PlanImpl* of(const Plan& plan) { return plan.impl_.get(); }
};

/// The policy that holds for a call made now on this thread.
std::shared_ptr<const ResolvedPolicy> policy_for(const ContextImpl& context,
                                                 const Settings& settings, const Policy& call);

/// Remembers that the plan's backend refused its problem, in execute or later than plan() at least,
/// and drops the plans that would repeat it.
void learn_refusal(ContextImpl& context, const PlanImpl& plan, const Status& refusal);

/// plan() for params that describe or validate accepted already.
Expected<Plan> plan_described(ContextImpl& context, const AttentionParams& params,
                              const Policy& policy);

/// The plan of a backward alone, on the backend of its forward, under what the policy restricts.
Expected<Plan> plan_backward_of(ContextImpl& context, const AttentionParams& params,
                                const PlanImpl& forward, const Policy& policy);

/// execute() for buffers that were described already; `params` are the call's own.
Status execute_described(const PlanImpl& plan, const AttentionParams& params,
                         const Buffers& buffers, const Launch& launch);

}  // namespace regard
