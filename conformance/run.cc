#include "conformance/run.h"

#include <algorithm>
#include <utility>

#include "conformance/layout.h"

namespace regard::conformance {
namespace {

constexpr int kWorkspaceAlignLog2 = 6;

Report failed(const Case& c, const BackendRef& backend, std::string text) {
  Report report;
  report.outcome = Outcome::kFailed;
  report.text = to_string(backend) + ": " + std::move(text) + "\n  " + repro_line(c, backend);
  return report;
}

/// The params that the plan is made from: the case's own alignments where memory happens to be
/// aligned better, so that a case is one key.
AttentionParams as_stated(const AttentionParams& described, const AttentionParams& stated) {
  AttentionParams p = described;
  p.device = stated.device;
  for (const TensorLayout& tensor : kTensorLayouts) {
    p.*tensor.align_log2 = std::min(p.*tensor.align_log2, stated.*tensor.align_log2);
  }
  return p;
}

/// `described` with what memory decides (layout classes that extents make moot, alignments, the
/// device) taken from `stated`.
AttentionParams with_memory_of(AttentionParams described, const AttentionParams& stated) {
  for (const TensorLayout& tensor : kTensorLayouts) {
    described.*tensor.order = stated.*tensor.order;
    described.*tensor.align_log2 = stated.*tensor.align_log2;
  }
  described.device = stated.device;  // tensors are made in host memory, to be carried
  return described;
}

class Run {
 public:
  Run(Context& context, PreparedCase* prepared, const BackendRef& backend,
      const RunOptions& options)
      : context_(context), prepared_(*prepared), backend_(backend), options_(options) {}

  Report run() {
    const Policy policy = policy_for(prepared_.source, backend_);
    const Selection selection = explain(context_, prepared_.params, policy);
    const Verdict* verdict = selection.find(backend_);
    if (verdict == nullptr) return fail("explain() does not list it");
    const Expected<Plan> made = plan(context_, prepared_.params, policy);
    if (!verdict->usable || !verdict->refusals.empty()) {
      return refused(policy, *verdict, made.ok());
    }
    if (!made) return fail("usable, but plan() says " + made.status().to_string());
    if (made->backend() != backend_) return fail("planned on " + to_string(made->backend()));
    report_.kernel = made->kernel().kernel;
    report_.isa = made->kernel().isa;
    report_.backward_isa = made->backward_kernel().isa;
    report_.workspace_bytes = made->workspace_bytes();
    if (verdict->workspace_bytes != made->workspace_bytes()) {
      return fail("explain() states workspace " + std::to_string(verdict->workspace_bytes) +
                  ", the plan " + std::to_string(made->workspace_bytes()));
    }
    return execute_and_compare(*made);
  }

 private:
  Report fail(std::string text) const {
    return failed(prepared_.source, backend_, std::move(text));
  }

  Report refused(const Policy& policy, const Verdict& verdict, bool planned) {
    if (planned) return fail("refused by explain(), but plan() succeeds");
    if (options_.check_fixes) {
      const std::string wrong = check_fixes(context_, prepared_.params, policy, verdict);
      if (!wrong.empty()) return fail(wrong);
    }
    report_.outcome = Outcome::kRefused;
    for (const Refusal& refusal : verdict.refusals) {
      report_.text += (report_.text.empty() ? "" : ". ") + to_string(refusal);
    }
    return report_;
  }

  Report execute_and_compare(const Plan& plan) {
    std::vector<unsigned char> first;
    for (int round = 0; round < (options_.twice ? 2 : 1); ++round) {
      if (std::string wrong = execute_once(plan, round == 0 ? 0xff : 0x7b); !wrong.empty()) {
        return fail(wrong);
      }
      std::vector<unsigned char> bytes = prepared_.problem.output_bytes();
      if (round == 0) {
        first = std::move(bytes);
      } else if (first != bytes) {
        return fail("a second run on another workspace gave other bits");
      }
    }
    const Dtype probs =
        claimed_probs(context_, backend_, prepared_.params, plan.kernel(), &BackendInfo::forward);
    report_.comparison = compare(prepared_.problem.request(), prepared_.truth, probs);
    if (!report_.comparison.ok) return fail(report_.comparison.text);
    if (has_backward()) {
      const Dtype back_probs = claimed_probs(context_, backend_, prepared_.params,
                                             plan.backward_kernel(), &BackendInfo::backward);
      report_.gradients =
          compare_gradients(prepared_.problem.request(), prepared_.gradients, back_probs);
      if (!report_.gradients.ok) return fail(report_.gradients.text);
    }
    return report_;
  }

  /// Empty when execute() succeeded and wrote outputs and workspace alone.
  std::string execute_once(const Plan& plan, unsigned char pattern) {
    const Block workspace = make_workspace(plan.workspace_bytes(), pattern);
    prepared_.problem.reset_outputs();
    const Status status = call(plan, workspace, /*backward=*/false);
    if (!status.ok()) return "planned, but execute() says " + status.to_string();
    if (!workspace.intact()) return "bytes outside of the workspace were written";
    std::string wrong = prepared_.problem.check_memory();
    if (wrong.empty() && has_backward()) wrong = run_backward(plan, pattern);
    return wrong;
  }

  /// Whether the case has a backward: `grad` alone is the forward of a pair.
  bool has_backward() const {
    return prepared_.problem.request().saved.kind != SavedContext::Kind::kNone;
  }

  /// Empty when execute_backward() succeeded and wrote gradients and workspace alone.
  std::string run_backward(const Plan& plan, unsigned char pattern) {
    const Block workspace = make_workspace(plan.backward_workspace_bytes(), pattern);
    prepared_.problem.begin_backward();
    const Status status = call(plan, workspace, /*backward=*/true);
    if (!status.ok()) return "planned, but execute_backward() says " + status.to_string();
    if (!workspace.intact()) return "backward: bytes outside of the workspace were written";
    const std::string wrong = prepared_.problem.check_memory();
    return wrong.empty() ? wrong : "backward: " + wrong;
  }

  Status call(const Plan& plan, const Block& workspace, bool backward) const {
    const AttentionGradRequest& request = prepared_.problem.request();
    Launch launch;
    launch.workspace = {workspace.data(), workspace.size()};
    if (options_.device_runner == nullptr) {
      const Status ready =
          backward ? prepare_backward(plan, request, request) : prepare(plan, request);
      if (!ready.ok()) return ready;
      return backward ? execute_backward(plan, request, request, launch)
                      : execute(plan, request, launch);
    }
    std::vector<MemoryRange> memory = prepared_.problem.memory();
    memory.push_back(workspace.range());
    return options_.device_runner->run(
        {plan, request, launch.workspace, std::move(memory), backward});
  }

  Block make_workspace(std::int64_t stated, unsigned char pattern) const {
    const auto bytes = static_cast<std::size_t>(stated);
    Block workspace(bytes, kWorkspaceAlignLog2, options_.guard);
    workspace.fill(pattern);
    return workspace;
  }

  Context& context_;
  PreparedCase& prepared_;
  const BackendRef& backend_;
  const RunOptions& options_;
  Report report_;
};

}  // namespace

Dtype claimed_probs(const Context& context, const BackendRef& backend,
                    const AttentionParams& params, const KernelPlan& kernel,
                    Claims BackendInfo::*direction) {
  Dtype probs = Dtype::kF32;
  for (const BackendInfo& info : context.backends()) {
    if (info.ref != backend || info.device != params.device.type) continue;
    for (const DtypeClaim& claim : (info.*direction).dtypes) {
      if (claim.q != params.dtype_q || claim.kv != params.dtype_k) continue;
      if (params.dtype_v != params.dtype_k && claim.min_isa != Isa::kScalar) continue;
      if (claim.out != params.dtype_out) continue;
      // Of several claims of the same types the last that the kernel's level has holds.
      if (kernel.isa.includes(claim.min_isa) && claim.min_sm <= kernel.sm) probs = claim.probs;
    }
  }
  return probs;
}

std::string repro_line(const Case& c, const BackendRef& backend) {
  return "regard check \"" + to_string(c) + "\" --backend " + to_string(backend);
}

Policy policy_for(const Case& c, const BackendRef& backend) {
  Policy policy;
  policy.only = std::vector<BackendRef>{backend};
  policy.assume_finite = !c.data.poison;
  return policy;
}

Expected<PreparedCase> prepare(const Case& c, Guard guard, oracle::Fault fault) {
  PreparedCase prepared{c, {}, make_problem(c, {guard, false}), {}, {}};
  Expected<AttentionParams> described = describe(prepared.problem.request());
  if (!described) return described.status();
  const AttentionParams seen = with_memory_of(*described, c.params);
  if (!(seen == c.params)) {
    return Status(StatusCode::kInternal, "[prepare] the case states " + to_json(c.params) +
                                             ", describe() sees " + to_json(*described));
  }
  prepared.params = as_stated(*described, c.params);
  Expected<oracle::Truth> truth = oracle::compute(prepared.problem.request(), fault);
  if (!truth) return truth.status();
  prepared.truth = std::move(*truth);
  if (!c.params.features.has(Feature::kNeedsGrad)) return prepared;
  Expected<oracle::GradTruth> gradients =
      oracle::compute_gradients(prepared.problem.request(), fault);
  if (!gradients) return gradients.status();
  prepared.gradients = std::move(*gradients);
  return prepared;
}

Report run_prepared(Context& context, PreparedCase* prepared, const BackendRef& backend,
                    const RunOptions& options) {
  return Run(context, prepared, backend, options).run();
}

Report run_case(Context& context, const Case& c, const BackendRef& backend,
                const RunOptions& options) {
  Expected<PreparedCase> prepared = prepare(c, options.guard);
  if (!prepared) return failed(c, backend, prepared.status().to_string());
  return run_prepared(context, &*prepared, backend, options);
}

}  // namespace regard::conformance
