#include "regard/benchmark.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/message.h"
#include "core/text/thrown_by.h"

namespace regard {
namespace {

/// Why a candidate is not measured; "" where it is.
std::string reason_of(const Verdict& verdict) {
  std::string reason;
  for (const Refusal& refusal : verdict.refusals) {
    reason += (reason.empty() ? "" : "; ") + to_string(refusal);
  }
  return reason;
}

Policy narrowed_to(const Policy& policy, const BackendRef& backend) {
  Policy narrowed = policy;
  narrowed.only = std::vector<BackendRef>{backend};
  narrowed.prefer.reset();
  return narrowed;
}

void set_plan(BenchmarkRow* row, const KernelPlan& kernel) {
  row->variant = kernel.variant;
  row->kernel = kernel.kernel;
  row->workers = kernel.workers;
  row->workspace_bytes = kernel.workspace_bytes;
}

/// The rows and, for each, the plan that it measures; empty where there is a reason.
struct Planned {
  Benchmark result;
  std::vector<Plan> plans;
};

/// The other variants of a row's plan, each a row of its own.
void add_variants(const BenchmarkRow& row, const Plan& plan, Planned* planned) {
  std::vector<std::string> names = plan.variants();
  if (!row.variant.empty()) names.emplace_back();
  for (const std::string& name : names) {
    if (name == row.variant) continue;
    const Expected<Plan> made = plan.with_variant(name);
    BenchmarkRow other = row;
    other.variant = name;
    if (made) {
      set_plan(&other, made->kernel());
    } else {
      other.reason = made.status().message();
    }
    planned->result.rows.push_back(std::move(other));
    planned->plans.push_back(made ? *made : Plan());
  }
}

void add_rows(Context& context, const Policy& policy, const Selection& selection, bool backward,
              const Work& work, bool variants, Planned* planned) {
  for (const Verdict& verdict : selection.candidates) {
    BenchmarkRow row;
    row.name = to_string(verdict.backend);
    row.backward = backward;
    row.reason = reason_of(verdict);
    row.work = work;
    Plan plan_of_row;
    if (row.reason.empty()) {
      const Expected<Plan> made =
          plan(context, selection.params, narrowed_to(policy, verdict.backend));
      if (made) {
        set_plan(&row, backward ? made->backward_kernel() : made->kernel());
        plan_of_row = *made;
      } else {
        row.reason = made.status().message();
      }
    }
    planned->result.rows.push_back(row);
    planned->plans.push_back(plan_of_row);
    if (variants && !backward && row.reason.empty()) add_variants(row, plan_of_row, planned);
  }
}

Expected<Planned> plan_rows(Context& context, const AttentionGradRequest& request,
                            const Policy& policy, bool variants) {
  const Expected<AttentionParams> params = describe(request);
  if (!params) return params.status();
  if (params->device.type != DeviceType::kCpu) {
    return invalid("benchmark", "device (", to_string(params->device.type),
                   "): expected tensors on the CPU, where a call ends when its work does");
  }
  const Selection selection = explain(context, *params, policy);
  Planned planned;
  planned.result.params = *params;
  planned.result.chosen = to_string(selection.chosen);
  planned.result.decided_by = selection.decided_by;
  planned.result.notes = selection.warnings;
  add_rows(context, policy, selection, false, forward_work(*params, request), variants, &planned);
  if (params->features.has(Feature::kNeedsGrad)) {
    add_rows(context, policy, selection, true, backward_work(*params, request, request), false,
             &planned);
  }
  const Env env = context.env();
  planned.result.machine = machine_rates(env.isa, env.concurrency);
  planned.result.one_thread = machine_rates(env.isa, 1);
  return planned;
}

/// A workspace that serves all rows, one after another, as a Context's does.
struct FreeMemory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

/// As much as the largest of the rows needs; one whose workspace cannot be had is not measured.
Memory workspace_of_rows(std::vector<BenchmarkRow>* rows) {
  for (;;) {
    BenchmarkRow* largest = nullptr;
    for (BenchmarkRow& row : *rows) {
      if (!row.reason.empty()) continue;
      if (largest == nullptr || row.workspace_bytes > largest->workspace_bytes) largest = &row;
    }
    if (largest == nullptr || largest->workspace_bytes == 0) return nullptr;
    Memory memory(std::aligned_alloc(64, static_cast<std::size_t>(largest->workspace_bytes)));
    if (memory != nullptr) return memory;
    largest->reason =
        concat("a workspace of ", largest->workspace_bytes, " bytes could not be allocated");
  }
}

/// What every call of a benchmark shares.
struct Shared {
  const AttentionGradRequest& request;
  const BenchmarkOptions& options;
  Launch launch;

  template <class Run>
  Status call(std::int64_t workspace_bytes, Run run) const {
    Launch own = launch;
    own.workspace.bytes = static_cast<std::size_t>(workspace_bytes);
    Interrupt interrupt(options.poll, options.poll_state);
    if (options.poll != nullptr) own.interrupt = &interrupt;
    return run(own);
  }
};

std::function<Status()> call_of(const BenchmarkRow& row, const Plan& plan, const Shared& shared) {
  if (!row.reason.empty()) return {};
  if (row.backward) {
    return [&plan, &shared] {
      return shared.call(plan.backward_workspace_bytes(), [&](const Launch& launch) {
        return execute_backward(plan, shared.request, shared.request, launch);
      });
    };
  }
  return [&plan, &shared] {
    return shared.call(plan.workspace_bytes(),
                       [&](const Launch& launch) { return execute(plan, shared.request, launch); });
  };
}

/// What plans need for these tensors' strides.
void prepare_rows(const AttentionGradRequest& request, Planned* planned) {
  for (std::size_t i = 0; i < planned->plans.size(); ++i) {
    BenchmarkRow& row = planned->result.rows[i];
    if (!row.reason.empty()) continue;
    const Plan& plan = planned->plans[i];
    const Status status =
        row.backward ? prepare_backward(plan, request, request) : prepare(plan, request);
    if (!status.ok()) row.reason = status.message();
  }
}

}  // namespace

double BenchmarkRow::quantile(double share) const {
  if (seconds.empty()) return 0.0;
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], at - static_cast<double>(below));
}

Expected<Benchmark> plan_benchmark(Context& context, const AttentionGradRequest& request,
                                   const Policy& policy) try {
  Expected<Planned> planned = plan_rows(context, request, policy, /*variants=*/false);
  if (!planned) return planned.status();
  return std::move(planned->result);
} catch (...) {
  return status_of_exception("plan_benchmark");
}

Expected<Benchmark> benchmark(Context& context, const AttentionGradRequest& request,
                              const Policy& policy, const BenchmarkOptions& options) try {
  Expected<Planned> planned = plan_rows(context, request, policy, options.variants);
  if (!planned) return planned.status();
  prepare_rows(request, &*planned);
  Shared shared{request, options, {}};
  shared.launch.executor = &context.executor();
  const Memory memory = workspace_of_rows(&planned->result.rows);
  shared.launch.workspace.data = memory.get();
  std::vector<std::function<Status()>> calls;
  for (std::size_t i = 0; i < planned->plans.size(); ++i) {
    calls.push_back(call_of(planned->result.rows[i], planned->plans[i], shared));
  }
  measure(&planned->result, calls, options);
  return std::move(planned->result);
} catch (...) {
  return status_of_exception("benchmark");
}

}  // namespace regard
