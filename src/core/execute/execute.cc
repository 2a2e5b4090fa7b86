#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/float_environment.h"
#include "base/message.h"
#include "core/describe/check_data.h"
#include "core/describe/describe.h"
#include "core/describe/describe_gradients.h"
#include "core/execute/check_workspace.h"
#include "core/execute/self_check.h"
#include "core/plan/context_impl.h"
#include "core/plan/default_mode_executor.h"
#include "core/text/thrown_by.h"
#include "regard/context.h"
#include "regard/interrupt.h"
#include "regard/lengths.h"
#include "regard/work.h"

namespace regard {
namespace {

Status does_not_fit(const char* where, const std::string& what, const std::string& actual,
                    const std::string& expected) {
  return invalid(where, what, " (", actual, ") does not fit the plan, expected ", expected);
}

// Features that relate extents: a smaller call may lose them, and gain those its backend claims.
constexpr FeatureSet kRelations{Feature::kSeqlenQGreaterKv, Feature::kNonFiniteBehindMask};

struct Bound {
  const char* name;
  std::int64_t AttentionParams::*field;
};
constexpr Bound kPlannedExtents[] = {
    {"batch", &AttentionParams::batch},         {"seqlen_q", &AttentionParams::seqlen_q},
    {"seqlen_kv", &AttentionParams::seqlen_kv}, {"total_q", &AttentionParams::total_q},
    {"total_kv", &AttentionParams::total_kv},   {"num_pages", &AttentionParams::num_pages},
};

// Everything that may not differ: `actual` with the plan's extents, layouts, alignments, relations
// and broadcasts must be the plan's params, so a field added later is compared too.
Status check_equal_fields(const AttentionParams& planned, const AttentionParams& actual,
                          const char* where) {
  AttentionParams same = actual;
  for (const Bound& bound : kPlannedExtents) same.*bound.field = planned.*bound.field;
  for (const TensorLayout& layout : kTensorLayouts) {
    same.*layout.order = planned.*layout.order;
    same.*layout.align_log2 = planned.*layout.align_log2;
  }
  same.features = actual.features.without(kRelations)
                      .with(FeatureSet::from_bits(planned.features.bits() & kRelations.bits()));
  same.tokens_q = planned.tokens_q;  // for predictions alone
  same.tokens_kv = planned.tokens_kv;
  same.mask_dims = planned.mask_dims;
  same.bias_dims = planned.bias_dims;
  if (same == planned) return {};
  return does_not_fit(where, "the problem", to_string(actual), to_string(planned));
}

// Of [B, Hq, Sq, Skv], those that are 0.
unsigned empty_dims(const AttentionParams& p) {
  const auto bit = [](std::int64_t extent, int at) { return (extent == 0 ? 1u : 0u) << at; };
  return bit(p.batch, 0) | bit(p.num_heads_q, 1) | bit(p.seqlen_q, 2) | bit(p.seqlen_kv, 3);
}

// `claims` are the direction's.
Status check_fits(const PlanImpl& plan, const Claims& claims, const AttentionParams& actual,
                  const Buffers& buffers, const char* where) {
  const AttentionParams& planned = plan.planned().params();
  const bool exact = plan.planned().extents() == KeyExtents::kExact;
  for (const Bound& bound : kPlannedExtents) {
    const std::int64_t extent = actual.*bound.field, max = planned.*bound.field;
    if (exact ? extent == max : extent <= max) continue;
    return does_not_fit(where, bound.name, std::to_string(extent),
                        (exact ? "" : "at most ") + std::to_string(max));
  }
  for (const TensorSpec& spec : TensorSpecs(kTensors).first(kMainTensors)) {
    const TensorLayout& layout = *spec.layout;
    const Layout order = planned.*layout.order;
    if (!layout_matches(buffers.*spec.buffer, order)) {
      return does_not_fit(where, std::string("layout of ") + spec.name,
                          to_string(buffers.*spec.buffer), to_string(order));
    }
    if (actual.*layout.align_log2 < planned.*layout.align_log2) {
      return does_not_fit(where, std::string("alignment of ") + spec.name,
                          std::to_string(1 << actual.*layout.align_log2) + " bytes",
                          "at least " + std::to_string(1 << planned.*layout.align_log2));
    }
  }
  // A dimension that the plan holds as broadcast must be one, or empty; the reverse is a smaller
  // extent.
  const unsigned empty = empty_dims(actual);
  if ((actual.mask_dims & ~planned.mask_dims & ~empty) != 0 ||
      (actual.bias_dims & ~planned.bias_dims & ~empty) != 0) {
    return does_not_fit(where, "attn_mask or attn_bias", "full", "broadcast as planned");
  }
  FeatureSet gained = actual.features.without(planned.features);
  gained = FeatureSet::from_bits(gained.bits() & kRelations.bits());
  const FeatureSet unclaimed = gained.without(claims.features);
  if (!unclaimed.empty()) {
    return does_not_fit(where, "seqlen_q > seqlen_kv", to_string(actual), "seqlen_q <= seqlen_kv");
  }
  return check_equal_fields(planned, actual, where);
}

// A call's workspace, on its device: the caller's, or a lease that ends however the call ends.
class WorkspaceLease {
 public:
  WorkspaceLease(ContextImpl& context, const Device& device, const Launch& launch)
      : context_(context), device_(device), launch_(launch) {}
  ~WorkspaceLease() {
    if (!leased_) return;
    if (on_host()) {
      context_.workspaces.give_back(launch_.workspace);
    } else {
      context_.device_pools.give_back(device_, launch_.workspace, launch_.stream);
    }
  }
  WorkspaceLease(const WorkspaceLease&) = delete;
  WorkspaceLease& operator=(const WorkspaceLease&) = delete;

  Status take(std::int64_t bytes) {
    if (launch_.workspace.data != nullptr || bytes <= 0) return {};
    const auto size = static_cast<std::size_t>(bytes);
    Expected<Workspace> block = on_host()
                                    ? context_.workspaces.lease(size)
                                    : context_.device_pools.lease(device_, size, launch_.stream);
    if (!block) return block.status();
    launch_.workspace = *block;
    leased_ = true;
    return {};
  }
  const Launch& launch() const noexcept { return launch_; }

 private:
  bool on_host() const noexcept { return device_.type == DeviceType::kCpu; }

  ContextImpl& context_;
  const Device device_;
  Launch launch_;
  bool leased_ = false;
};

/// Status of a call that ran: what an interrupted one has written is no result.
Status completed(const char* where, const Launch& launch, const Status& status) {
  if (launch.interrupt == nullptr || !launch.interrupt->requested()) return status;
  return failure(StatusCode::kInterrupted, where,
                 "interrupted before its end; outputs hold no result");
}

// A custom backend or an injected executor may throw.
template <class Call>
Status guarded(const char* where, const BackendRef& ref, Call call) {
  Status status;
  const auto thrown = thrown_by([&] {
    const DefaultFloatEnvironment environment;
    status = call();
  });
  if (!thrown) return status;
  return failure(StatusCode::kInternal, where, to_string(ref), " or its executor threw: ", *thrown);
}

// Calls run(launch) with an executor, of which each worker must have run.
template <class Run>
Status run_workers(const char* where, const PlanImpl& plan, const Launch& launch, Run run) {
  return guarded(where, plan.entry.ref, [&] {
    const bool is_own = launch.executor == nullptr;
    DefaultModeExecutor executor(is_own ? plan.executor->current() : *launch.executor,
                                 is_own ? "the Context's executor" : "the launch's executor");
    Launch complete = launch;
    complete.executor = &executor;
    const Status status = run(complete);
    return status.ok() ? executor.status(where) : status;
  });
}

std::int64_t now_ns() {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

/// A call of a public function.
struct PublicCall {
  const char* where;
  Tracer* tracer;  // null: the call has no Context
  const Launch& launch;
  const Buffers& buffers;
  const GradBuffers* gradients = nullptr;  // of a backward

  Work work(const AttentionParams& params) const {
    return gradients == nullptr ? forward_work(params, buffers)
                                : backward_work(params, buffers, *gradients);
  }
};

/// run(planned) with every exception as a Status, reported where the Context is traced. `planned`
/// receives the call and its plan where it is not null.
template <class Run>
Status traced(const PublicCall& made, Run run) {
  const auto run_safely = [&](PlannedCall* receiver) -> Status {
    try {
      return run(receiver);
    } catch (...) {
      return status_of_exception(made.where);
    }
  };
  PlannedCall* const planned = made.launch.planned;
  if (made.tracer == nullptr || !made.tracer->is_active()) return run_safely(planned);
  CallTrace call;
  call.direction = made.gradients == nullptr ? Direction::kForward : Direction::kBackward;
  const std::int64_t start = now_ns();
  call.status = run_safely(&call);
  call.ns = now_ns() - start;
  if (call.status.ok()) {
    call.work = made.work(*call.params);
    call.predicted = PlanImpl::of(call.plan)->predicted(*call.params, call.direction);
  }
  if (planned != nullptr) *planned = call;
  made.tracer->report(call);
  return call.status;
}

// By all workers where there are scales, which may be long; before anything is written.
Status check_call_data(const PlanImpl& plan, const AttentionParams& params, const Buffers& buffers,
                       const Launch& launch) {
  if (!buffers.scales_k.present() && !buffers.scales_v.present()) {
    return check_data(buffers, params, "execute");
  }
  return run_workers("execute", plan, launch, [&](const Launch& complete) {
    const CheckWorkers workers{complete.executor, plan.kernel.workers};
    return check_data(buffers, params, "execute", kTensors, workers);
  });
}

void note(PlannedCall* planned, const AttentionParams& params, const Plan& plan) {
  if (planned == nullptr) return;
  planned->params = params;
  planned->plan = plan;
}

}  // namespace

Status execute_described(const PlanImpl& plan, const AttentionParams& params,
                         const Buffers& buffers, const Launch& launch) {
  Status checked =
      check_workspace(launch.workspace, plan.kernel.workspace_bytes, buffers, nullptr, "execute");
  if (!checked.ok()) return checked;
  if (Status s = check_call_data(plan, params, buffers, launch); !s.ok()) return s;
  const DeviceGuard guard("execute", params.device);
  if (!guard.status().ok()) return guard.status();
  const Status status = run_workers("execute", plan, launch, [&](const Launch& complete) {
    return plan.entry.backend->execute(plan.kernel, params, buffers, complete);
  });
  const Status ended = completed("execute", launch, status);
  return ended.ok() ? self_check(plan, params, buffers) : ended;
}

namespace {

// The params of buffers that fit the plan, which may be null.
Expected<AttentionParams> fit(const PlanImpl* plan, const Buffers& buffers, const char* where) {
  if (plan == nullptr) return invalid(where, "empty plan, expected one of plan()");
  Expected<AttentionParams> params =
      describe_buffers(buffers, options_of(plan->planned().params()), where);
  if (!params) return params;
  const Claims& claims = plan->entry.backend->info().forward;
  if (Status s = check_fits(*plan, claims, *params, buffers, where); !s.ok()) return s;
  return params;
}

Status prepare_described(const PlanImpl& plan, const AttentionParams& params,
                         const Buffers& buffers) {
  const DeviceGuard guard("prepare", params.device);
  if (!guard.status().ok()) return guard.status();
  return guarded("prepare", plan.entry.ref,
                 [&] { return plan.entry.backend->prepare(plan.kernel, params, buffers); });
}

}  // namespace

Status prepare(const Plan& plan, const Buffers& buffers) try {
  const PlanImpl* impl = PlanImpl::of(plan);
  const Expected<AttentionParams> params = fit(impl, buffers, "prepare");
  return params ? prepare_described(*impl, *params, buffers) : params.status();
} catch (...) {
  return status_of_exception("prepare");
}

Status execute(const Plan& plan, const Buffers& buffers, const Launch& launch) {
  const PlanImpl* impl = PlanImpl::of(plan);
  Tracer* const tracer = impl != nullptr ? impl->tracer.get() : nullptr;
  const auto run = [&](PlannedCall* planned) -> Status {
    const Expected<AttentionParams> params = fit(impl, buffers, "execute");
    if (!params) return params.status();
    note(planned, *params, plan);
    if (Status s = check_not_denied(*impl, "execute"); !s.ok()) return s;
    return execute_described(*impl, *params, buffers, launch);
  };
  return traced({"execute", tracer, launch, buffers}, run);
}

namespace {

// A packed call with its longest lengths, where the caller left them to cu_seqlens.
template <class Request>
const Request& with_max_seqlens(const Request& request, std::optional<Request>* stated) {
  if (!request.cu_seqlens_q.present()) return request;
  Request& made = stated->emplace(request);
  if (made.max_seqlen_q == 0) made.max_seqlen_q = longest_sequence(made.cu_seqlens_q);
  if (made.max_seqlen_kv == 0) made.max_seqlen_kv = longest_sequence(made.cu_seqlens_kv);
  return made;
}

Status plan_and_execute(ContextImpl& context, const AttentionRequest& given, const Policy& policy,
                        const Launch& launch, PlannedCall* planned) {
  std::optional<AttentionRequest> stated;
  const AttentionRequest& request = with_max_seqlens(given, &stated);
  const Expected<AttentionParams> params = describe(request);
  if (!params) return params.status();
  while (true) {
    note(planned, *params, {});
    const Expected<Plan> made = plan_described(context, *params, policy);
    if (!made) return made.status();
    note(planned, *params, *made);
    const PlanImpl& plan = *PlanImpl::of(*made);
    WorkspaceLease lease(context, params->device, launch);
    Status status = lease.take(plan.kernel.workspace_bytes);
    if (!status.ok()) return status;
    status = prepare_described(plan, *params, request);
    if (status.ok()) status = execute_described(plan, *params, request, lease.launch());
    if (status.code() != StatusCode::kRefusedAtPlan) return status;
    learn_refusal(context, plan, status);  // each turn leaves a candidate less
  }
}

}  // namespace

Status attention(Context& context, const AttentionRequest& request, const Policy& policy,
                 const Launch& launch) {
  ContextImpl& impl = ContextImpl::of(context);
  const auto run = [&](PlannedCall* planned) {
    return plan_and_execute(impl, request, policy, launch, planned);
  };
  return traced({"attention", impl.tracer.get(), launch, request}, run);
}

namespace {

// A plan that holds a pair, or what is wrong with it.
Status check_pair(const PlanImpl* plan, const char* where) {
  if (plan == nullptr) return invalid(where, "empty plan, expected one of plan()");
  const AttentionParams& planned = plan->planned().params();
  if (planned.features.has(Feature::kNeedsGrad)) return {};
  return invalid(where, "plan (", to_string(planned), ") must be made with needs_grad");
}

// A backward takes what its record claims, stated or not; what it does not claim would have been
// refused when the forward was planned.
Status check_given(const PlanImpl& plan, const GradBuffers& gradients, const char* where) {
  struct Name {
    Feature feature;
    const char* given;
    const char* statement;
  };
  constexpr Name kNames[] = {
      {Feature::kDLse, "d_lse (given)", "options.d_lse"},
      {Feature::kDelta, "delta (given)", "options.delta"},
      {Feature::kSavedStats, "saved.kind (1, saved_stats)", "the output saved_stats"},
      {Feature::kLse, "saved.kind (2, lse)", "the output lse alone"},
  };
  const BackendInfo& info = plan.entry.backend->info();
  const FeatureSet given = given_to_backward(gradients);
  for (const Name& name : kNames) {
    if (!given.has(name.feature) || info.backward.features.has(name.feature)) continue;
    return invalid(where, name.given, " is not supported by the backward of ",
                   to_string(plan.entry.ref), ": plan the forward with ", name.statement,
                   ", which chooses a backend that supports it");
  }
  return {};
}

// What is left to check of a backward's tensors after describe. `params` are described from
// `inputs`; those of the call are returned.
Expected<AttentionParams> fit_backward(const PlanImpl& plan, AttentionParams params,
                                       const Buffers& inputs, const GradBuffers& gradients,
                                       const char* where) {
  if (Status s = check_gradients(inputs, gradients, params, where); !s.ok()) return s;
  if (Status s = check_given(plan, gradients, where); !s.ok()) return s;
  // What the forward wrote besides out, and what it stated of its backward, is not this call's to
  // fit.
  constexpr FeatureSet kForwards{Feature::kLse,     Feature::kSavedStats, Feature::kScoresOut,
                                 Feature::kOutAmax, Feature::kDLse,       Feature::kDelta};
  const AttentionParams& planned = plan.planned().params();
  params.features = params.features.without(kForwards).with(
      FeatureSet::from_bits(planned.features.bits() & kForwards.bits()));
  params.scores_kind = planned.scores_kind;
  const Claims& claims = plan.entry.backend->info().backward;
  if (Status s = check_fits(plan, claims, params, inputs, where); !s.ok()) return s;
  return params;
}

// The same from the start; the plan may be null.
Expected<AttentionParams> fit_backward(const PlanImpl* plan, const Buffers& inputs,
                                       const GradBuffers& gradients, const char* where) {
  if (Status status = check_pair(plan, where); !status.ok()) return status;
  AttentionOptions options = options_of(plan->planned().params());
  options.scores_kind = ScoresKind::kNone;
  Expected<AttentionParams> params = describe_buffers(inputs, options, where);
  return params ? fit_backward(*plan, *params, inputs, gradients, where) : params;
}

Status prepare_backward_described(const PlanImpl& plan, const AttentionParams& params,
                                  const Buffers& inputs, const GradBuffers& gradients) {
  constexpr const char* kWhere = "prepare_backward";
  const DeviceGuard guard(kWhere, params.device);
  if (!guard.status().ok()) return guard.status();
  return guarded(kWhere, plan.entry.ref, [&] {
    return plan.entry.backend->prepare_backward(plan.backward, params, inputs, gradients);
  });
}

Status execute_backward_described(const PlanImpl& plan, const AttentionParams& params,
                                  const Buffers& inputs, const GradBuffers& gradients,
                                  const Launch& launch) {
  constexpr const char* kWhere = "execute_backward";
  Status status =
      check_workspace(launch.workspace, plan.backward.workspace_bytes, inputs, &gradients, kWhere);
  if (!status.ok()) return status;
  if (status = check_data(inputs, params, kWhere); !status.ok()) return status;
  status = check_gradient_data(inputs, gradients, params, kWhere);
  if (!status.ok()) return status;
  const DeviceGuard guard(kWhere, params.device);
  if (!guard.status().ok()) return guard.status();
  status = run_workers(kWhere, plan, launch, [&](const Launch& complete) {
    return plan.entry.backend->execute_backward(plan.backward, params, inputs, gradients, complete);
  });
  return completed(kWhere, launch, status);
}

}  // namespace

Status prepare_backward(const Plan& plan, const Buffers& buffers,
                        const GradBuffers& gradients) try {
  const PlanImpl* impl = PlanImpl::of(plan);
  const Buffers inputs = backward_inputs(buffers);
  const Expected<AttentionParams> params =
      fit_backward(impl, inputs, gradients, "prepare_backward");
  return params ? prepare_backward_described(*impl, *params, inputs, gradients) : params.status();
} catch (...) {
  return status_of_exception("prepare_backward");
}

Status execute_backward(const Plan& plan, const Buffers& buffers, const GradBuffers& gradients,
                        const Launch& launch) {
  constexpr const char* kWhere = "execute_backward";
  const PlanImpl* impl = PlanImpl::of(plan);
  Tracer* const tracer = impl != nullptr ? impl->tracer.get() : nullptr;
  const auto run = [&](PlannedCall* planned) -> Status {
    const Buffers inputs = backward_inputs(buffers);
    const Expected<AttentionParams> params = fit_backward(impl, inputs, gradients, kWhere);
    if (!params) return params.status();
    note(planned, *params, plan);
    return execute_backward_described(*impl, *params, inputs, gradients, launch);
  };
  return traced({kWhere, tracer, launch, buffers, &gradients}, run);
}

namespace {

/// The plan of a backward whose forward may have been planned; `params` are described.
Expected<Plan> backward_plan(ContextImpl& impl, AttentionParams params,
                             const AttentionGradRequest& request, const Policy& policy,
                             PlannedCall* planned) {
  const Plan& forward = request.saved.plan;
  if (!forward.empty()) {
    const PlanImpl* plan = PlanImpl::of(forward);
    if (Status status = check_pair(plan, "attention_backward"); !status.ok()) return status;
    if (policy == Policy{}) return forward;
  }
  if (request.saved.kind == SavedContext::Kind::kLse) {
    params.features.set(Feature::kSavedStats, false);
  }
  params.features = params.features.with(given_to_backward(request));
  note(planned, params, {});
  return forward.empty() ? plan_described(impl, params, policy)
                         : plan_backward_of(impl, params, *PlanImpl::of(forward), policy);
}

Status plan_and_execute_backward(ContextImpl& context, const AttentionGradRequest& given,
                                 const Policy& policy, const Launch& launch, PlannedCall* planned) {
  std::optional<AttentionGradRequest> stated;
  const AttentionGradRequest& request = with_max_seqlens(given, &stated);
  AttentionOptions options = request.options;
  options.needs_grad = true;
  options.d_lse = options.d_lse || request.d_lse.present();
  options.delta = options.delta || request.delta.present();
  set_gradient_dtypes(request, request, &options);
  // What the forward wrote besides out is read where a backend is chosen, and nowhere else.
  const Buffers inputs = request.saved.plan.empty() ? Buffers(request) : backward_inputs(request);
  if (!inputs.scores_out.present()) options.scores_kind = ScoresKind::kNone;
  const Expected<AttentionParams> params = describe_buffers(inputs, options, "attention_backward");
  if (!params) return params.status();
  const Expected<Plan> made = backward_plan(context, *params, request, policy, planned);
  if (!made) return made.status();
  note(planned, *params, *made);
  const PlanImpl* plan = PlanImpl::of(*made);
  WorkspaceLease lease(context, params->device, launch);
  if (Status status = lease.take(plan->backward.workspace_bytes); !status.ok()) return status;
  // The forward's other outputs were described where the plan was made here; none of them is read.
  const Buffers read = backward_inputs(inputs);
  const Expected<AttentionParams> fitting =
      fit_backward(*plan, *params, read, request, "execute_backward");
  if (!fitting) return fitting.status();
  note(planned, *fitting, *made);
  Status status = prepare_backward_described(*plan, *fitting, read, request);
  if (status.ok()) {
    status = execute_backward_described(*plan, *fitting, read, request, lease.launch());
  }
  if (status.code() == StatusCode::kRefusedAtPlan) learn_refusal(context, *plan, status);
  return status;
}

}  // namespace

Status attention_backward(Context& context, const AttentionGradRequest& request,
                          const Policy& policy, const Launch& launch) {
  ContextImpl& impl = ContextImpl::of(context);
  const auto run = [&](PlannedCall* planned) {
    return plan_and_execute_backward(impl, request, policy, launch, planned);
  };
  return traced({"attention_backward", impl.tracer.get(), launch, request, &request}, run);
}

}  // namespace regard
