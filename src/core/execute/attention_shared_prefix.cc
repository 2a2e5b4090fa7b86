#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>

#include "base/checked.h"
#include "base/message.h"
#include "core/describe/check_data.h"
#include "core/describe/describe.h"
#include "core/execute/check_workspace.h"
#include "core/execute/merge_partials.h"
#include "core/execute/shared_prefix.h"
#include "core/plan/context_impl.h"
#include "core/text/thrown_by.h"
#include "problem/make_problem.h"
#include "regard/context.h"
#include "regard/lengths.h"
#include "regard/shared_prefix.h"

namespace regard {

/// The plans of both calls; without shared keys `own` is that of the call itself.
struct SharedPrefixImpl {
  AttentionParams params;  // of the call
  std::int64_t shared = 0;
  Plan prefix, own;
  std::int64_t memory_bytes = 0;  // of a PrefixMemory
  std::int64_t workspace_bytes = 0;

  static const SharedPrefixImpl* of(const SharedPrefixPlan& plan) { return plan.impl_.get(); }
  static SharedPrefixPlan wrap(SharedPrefixImpl made) {
    return SharedPrefixPlan(std::make_shared<const SharedPrefixImpl>(std::move(made)));
  }
};

namespace {

/// Memory of the Context's, given back however the call ends.
class PrefixLease {
 public:
  explicit PrefixLease(WorkspacePool& pool) : pool_(pool) {}
  ~PrefixLease() {
    if (block_.data != nullptr) pool_.give_back(block_);
  }
  PrefixLease(const PrefixLease&) = delete;
  PrefixLease& operator=(const PrefixLease&) = delete;

  Status take(std::int64_t bytes) {
    const Expected<Workspace> block = pool_.lease(static_cast<std::size_t>(bytes));
    if (!block) return block.status();
    block_ = *block;
    return {};
  }
  void* data() const noexcept { return block_.data; }

 private:
  WorkspacePool& pool_;
  Workspace block_{};
};

/// Writes the caller's outputs.
Status merge(const PrefixCall& call, const PrefixMemory& memory, const MergeWorkers& workers,
             const Launch& launch) {
  TensorView lse = call.request.lse;
  if (lse.present() && lse.rank == 2) {
    lse = make_view(lse.data, lse.dtype, {1, lse.shape[0], lse.shape[1]},
                    {lse.strides[0] * lse.shape[0], lse.strides[0], lse.strides[1]});
  }
  const StateView states[] = {memory.state(true), memory.state(false)};
  const Status status = merge_partials(workers, states, call.request.out, lse, launch);
  if (status.ok() && call.request.saved_stats.present()) {
    memory.merge_stats(call.request.saved_stats);
  }
  return status;
}

/// All that is checked of a call and its data, before anything is written.
Status check_prefix_call(const PrefixCall& call, problem::Problem* p) {
  if (Status s = check_prefix_features(call.where, call.params, call.shared); !s.ok()) return s;
  if (Status s = check_data(call.request, call.params, call.where); !s.ok()) return s;
  problem::make_problem(call.params, call.request, p);
  return check_prefix_sequences(call, *p);
}

/// A call whose max_seqlen_q its caller left to cu_seqlens_q.
void state_max_seqlen(AttentionRequest* request) {
  if (request->cu_seqlens_q.present() && request->max_seqlen_q == 0) {
    request->max_seqlen_q = longest_sequence(request->cu_seqlens_q);
  }
}

}  // namespace

Status attention_shared_prefix(Context& context, const AttentionRequest& given,
                               std::int64_t shared_prefix_kv, const Policy& policy,
                               const Launch& launch) try {
  constexpr const char* kWhere = "attention_shared_prefix";
  if (Status s = check_prefix_length(kWhere, shared_prefix_kv); !s.ok()) return s;
  if (shared_prefix_kv == 0) return attention(context, given, policy, launch);
  AttentionRequest request = given;
  state_max_seqlen(&request);
  const Expected<AttentionParams> params = describe(request);
  if (!params) return params.status();
  const PrefixCall call{kWhere, request, *params, shared_prefix_kv};
  problem::Problem p;
  if (Status s = check_prefix_call(call, &p); !s.ok()) return s;
  PrefixMemory memory(*params);
  if (memory.rows() == 0 || params->num_heads_q == 0) {
    return attention(context, request, policy, launch);
  }
  PrefixLease lease(ContextImpl::of(context).workspaces);
  if (Status s = lease.take(memory.bytes()); !s.ok()) return s;
  memory.place(lease.data());
  // First the call that writes nothing of the caller's: if the other is refused, nothing is
  // written.
  Launch first = launch;
  first.planned = nullptr;
  const AttentionRequest shared = prefix_request(call, p, memory, Layout::kStrided);
  Status status = attention(context, shared, policy, first);
  if (!status.ok()) return status;
  memory.hide_padding(p);
  status = attention(context, own_request(call, memory), policy, launch);
  if (!status.ok()) return status;
  return merge(call, memory, {context.executor(), context.concurrency()}, launch);
} catch (...) {
  return status_of_exception("attention_shared_prefix");
}

Expected<Selection> explain_shared_prefix(Context& context, const AttentionParams& params,
                                          std::int64_t shared_prefix_kv, const Policy& policy) try {
  constexpr const char* kWhere = "explain_shared_prefix";
  if (Status s = check_prefix_length(kWhere, shared_prefix_kv); !s.ok()) return s;
  if (shared_prefix_kv == 0) return explain(context, params, policy);
  if (Status s = check_prefix_features(kWhere, params, shared_prefix_kv); !s.ok()) return s;
  Selection own = explain(context, own_params(params), policy);
  own.prefix.push_back(explain(context, prefix_params(params, shared_prefix_kv), policy));
  return own;
} catch (...) {
  return status_of_exception("explain_shared_prefix");
}

SharedPrefixPlan::SharedPrefixPlan() = default;
SharedPrefixPlan::SharedPrefixPlan(std::shared_ptr<const SharedPrefixImpl> impl) noexcept
    : impl_(std::move(impl)) {}

const Plan& SharedPrefixPlan::prefix() const noexcept { return impl_->prefix; }
const Plan& SharedPrefixPlan::own() const noexcept { return impl_->own; }
std::int64_t SharedPrefixPlan::shared_prefix_kv() const noexcept { return impl_->shared; }
std::int64_t SharedPrefixPlan::workspace_bytes() const noexcept { return impl_->workspace_bytes; }

std::string SharedPrefixPlan::to_string() const {
  if (impl_->shared == 0) return impl_->own.to_string();
  return concat("prefix of ", impl_->shared, " keys: ", impl_->prefix.to_string(),
                "; own keys: ", impl_->own.to_string());
}

namespace {

/// q as PrefixMemory::queries() copies it, and partial results, may be aligned to less than the
/// tensors that the plan was made for.
void relax_alignment(AttentionParams* p, bool is_prefix) {
  const auto limit = [](std::int32_t* log2, Dtype dtype, std::int64_t columns) {
    const auto bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(columns, 1)) *
                       static_cast<std::uint64_t>(size_of(dtype));
    *log2 = std::min(*log2, static_cast<std::int32_t>(std::countr_zero(bytes)));
  };
  limit(&p->align_out_log2, p->dtype_out, p->head_dim_v);
  if (is_prefix) limit(&p->align_q_log2, p->dtype_q, p->head_dim_qk);
}

}  // namespace

Expected<SharedPrefixPlan> plan_shared_prefix(Context& context, const AttentionParams& params,
                                              std::int64_t shared_prefix_kv,
                                              const Policy& policy) try {
  constexpr const char* kWhere = "plan_shared_prefix";
  if (Status s = check_prefix_length(kWhere, shared_prefix_kv); !s.ok()) return s;
  SharedPrefixImpl made;
  made.params = params;
  made.shared = shared_prefix_kv;
  AttentionParams own = params;
  if (shared_prefix_kv != 0) {
    if (Status s = check_prefix_features(kWhere, params, shared_prefix_kv); !s.ok()) return s;
    AttentionParams prefix = prefix_params(params, shared_prefix_kv);
    relax_alignment(&prefix, true);
    const Expected<Plan> of_prefix = plan(context, prefix, policy);
    if (!of_prefix) return of_prefix.status();
    made.prefix = *of_prefix;
    made.memory_bytes = PrefixMemory(params).bytes();
    own = own_params(params);
    relax_alignment(&own, false);
  }
  const Expected<Plan> of_own = plan(context, own, policy);
  if (!of_own) return of_own.status();
  made.own = *of_own;
  std::int64_t scratch = made.own.workspace_bytes();
  if (!made.prefix.empty()) scratch = std::max(scratch, made.prefix.workspace_bytes());
  made.workspace_bytes = saturating_add(made.memory_bytes, scratch);
  return SharedPrefixImpl::wrap(std::move(made));
} catch (...) {
  return status_of_exception("plan_shared_prefix");
}

namespace {

/// The memory of the two calls is laid out for extents up to the plan's.
Status check_planned_extents(const AttentionParams& planned, const AttentionParams& actual) {
  struct Extent {
    const char* name;
    std::int64_t actual, planned;
  };
  for (const Extent& extent : {Extent{"batch", actual.batch, planned.batch},
                               Extent{"seqlen_q", actual.seqlen_q, planned.seqlen_q},
                               Extent{"total_q", actual.total_q, planned.total_q}}) {
    if (extent.actual <= extent.planned) continue;
    return invalid("execute_shared_prefix", extent.name, " (", extent.actual,
                   ") does not fit the plan, expected at most ", extent.planned);
  }
  if (actual.num_heads_q == planned.num_heads_q && actual.head_dim_qk == planned.head_dim_qk &&
      actual.head_dim_v == planned.head_dim_v && actual.dtype_q == planned.dtype_q) {
    return {};
  }
  return invalid("execute_shared_prefix", "the problem (", to_string(actual),
                 ") does not fit the plan, expected ", to_string(planned));
}

}  // namespace

Status execute_shared_prefix(const SharedPrefixPlan& plan, const Buffers& buffers,
                             const Launch& launch) try {
  constexpr const char* kWhere = "execute_shared_prefix";
  const SharedPrefixImpl* const impl = SharedPrefixImpl::of(plan);
  if (impl == nullptr) return invalid(kWhere, "empty plan, expected one of plan_shared_prefix()");
  if (impl->shared == 0) return execute(impl->own, buffers, launch);
  AttentionRequest request;
  static_cast<Buffers&>(request) = buffers;
  request.options = options_of(impl->params);
  state_max_seqlen(&request);
  const Expected<AttentionParams> params = describe_buffers(request, request.options, kWhere);
  if (!params) return params.status();
  if (Status s = check_planned_extents(impl->params, *params); !s.ok()) return s;
  const PrefixCall call{kWhere, request, *params, impl->shared};
  problem::Problem p;
  if (Status s = check_prefix_call(call, &p); !s.ok()) return s;
  if (Status s = check_workspace(launch.workspace, impl->workspace_bytes, buffers, nullptr, kWhere);
      !s.ok()) {
    return s;
  }
  PrefixMemory memory(*params);
  memory.place(launch.workspace.data);
  Launch rest = launch;
  rest.workspace.data = static_cast<char*>(launch.workspace.data) + impl->memory_bytes;
  rest.workspace.bytes = launch.workspace.bytes - static_cast<std::size_t>(impl->memory_bytes);
  Launch first = rest;
  first.planned = nullptr;
  if (memory.rows() == 0 || params->num_heads_q == 0) {  // appends
    return execute(impl->own, own_request(call, memory), rest);
  }
  const Layout layout = impl->prefix.params().layout_q;
  Status status = execute(impl->prefix, prefix_request(call, p, memory, layout), first);
  if (!status.ok()) return status;
  memory.hide_padding(p);
  status = execute(impl->own, own_request(call, memory), rest);
  if (!status.ok()) return status;
  const PlanImpl& own = *PlanImpl::of(impl->own);
  return merge(call, memory, {own.executor->current(), own.env->concurrency}, launch);
} catch (...) {
  return status_of_exception("execute_shared_prefix");
}

}  // namespace regard
