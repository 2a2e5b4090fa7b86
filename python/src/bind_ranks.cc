#include "bind_ranks.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "bind_policy.h"
#include "call.h"
#include "call_scope.h"
#include "distributed/attention.h"
#include "gil.h"
#include "process_context.h"
#include "python_communicator.h"

namespace regard::python {
namespace {

using nb::literals::operator""_a;

constexpr const char* kLayouts = "'contiguous', 'zigzag' or 'per_document'";
constexpr const char* kAlgorithms = "'auto', 'p2p', 'all_gather', 'a2a' or 'a2a+p2p'";

/// What ranks have agreed on. A type of its own: regard::Plan is another.
struct RankPlan {
  distributed::Plan plan;
};

/// Tensors, and keywords of attention().
Arguments arguments_of(const std::vector<std::pair<Arg, nb::object>>& tensors,
                       const nb::dict& keywords) {
  Arguments arguments;
  for (const auto& [arg, tensor] : tensors) arguments.value[arg] = tensor.ptr();
  for (const auto& [name, value] : keywords) {
    const int arg = arg_named(nb::str(name).c_str());
    if (arg == kArgCount) raise_type("keywords (" + repr(name.ptr()) + ") must be attention()'s");
    arguments.value[arg] = value.ptr();
  }
  return arguments;
}

/// By the name that the caller knows: which of the library's functions ran is no matter there.
void check_ranks(const Call& call, const Status& status) {
  const std::string& text = status.message();
  const bool is_own = text.rfind("[distributed::", 0) == 0 || text.rfind("[plan_agreed]", 0) == 0;
  if (!is_own) return check(call, status);
  check(call, Status(status.code(), "[context_parallel]" + text.substr(text.find(']') + 1)));
}

distributed::LayoutKind read_layout_kind(const std::string& name) {
  const auto kind = distributed::parse_layout(name);
  if (!kind) raise_value("layout ('" + name + "') must be " + kLayouts);
  return *kind;
}

distributed::MessageLimits limits_of(double timeout, std::int64_t max_bytes) {
  constexpr double kLongest = 1e8;  // seconds: as a time of the clock it fits 64 bits
  distributed::MessageLimits limits;
  limits.timeout = std::chrono::milliseconds(
      static_cast<std::int64_t>(std::clamp(timeout, 1e-3, kLongest) * 1e3));
  limits.max_bytes = max_bytes;
  return limits;
}

/// The arguments of plan_ranks() beside tensors.
struct PlanWords {
  int rank, ranks;
  distributed::Options options;
};

RankPlan make_plan(const PlanWords& words, const nb::object& q, const nb::object& k,
                   const nb::object& v, bool needs_grad, const nb::dict& keywords) {
  Call call(arguments_of({{kQ, q}, {kK, k}, {kV, v}}, keywords), Call::Purpose::kExplain);
  call.request.options.needs_grad = needs_grad;
  const Expected<distributed::Plan> made =
      distributed::plan_agreed(words.rank, words.ranks, call.request, words.options);
  if (!made) check_ranks(call, made.status());
  return {*made};
}

/// Computes without the GIL, by run(context, communicator, launch); raises what went wrong, on this
/// rank or another.
template <class Run>
void run_on_ranks(Call* call, const nb::object& link, const Run& run) {
  const AmbientScopes scopes;
  Context& context = process_context();
  const CallScope scope(context);
  const ScopedPolicy policy(call->policy);
  PythonCommunicator communicator(link);
  PlannedCall planned;
  Launch launch = call->launch();
  launch.planned = &planned;
  Status status;
  {
    const GilRelease unlocked;
    status = run(context, communicator, launch);
  }
  communicator.rethrow();
  remember_call(std::move(planned), status, call->notes());
  check_ranks(*call, status);
}

nb::object attend(const RankPlan& plan, const nb::object& link, const nb::object& q,
                  const nb::object& k, const nb::object& v, const nb::dict& keywords) {
  Arguments arguments = arguments_of({{kQ, q}, {kK, k}, {kV, v}}, keywords);
  arguments.value[kReturnLse] = Py_True;
  Call call(arguments, Call::Purpose::kCompute);
  run_on_ranks(&call, link, [&](Context& context, auto& communicator, const Launch& launch) {
    return distributed::attention(context, communicator, plan.plan, call.request, nullptr, launch);
  });
  return call.result(nb::object());
}

/// What the backward of a call on ranks writes.
struct RankGradients {
  AttentionGradRequest request;
  nb::object d_q, d_k, d_v, d_sinks;
};

RankGradients make_gradients(Call* call, PyObject* d_out, PyObject* lse) {
  RankGradients made;
  AttentionGradRequest& r = made.request;
  static_cast<AttentionRequest&>(r) = call->request;
  r.d_out = call->inputs().tensor(d_out, "d_out");
  r.saved.stats = call->inputs().any_view(array_from(lse, "lse"), "lse");
  r.saved.kind = SavedContext::Kind::kLse;
  r.saved.rng_seed = r.rng_seed;
  r.d_q = call->make_rows(r.q.shape, r.q.dtype, &made.d_q);
  r.d_k = call->make_rows(r.k.shape, r.k.dtype, &made.d_k);
  r.d_v = call->make_rows(r.v.shape, r.v.dtype, &made.d_v);
  if (r.sinks.present()) {
    const npy_intp heads[1] = {static_cast<npy_intp>(r.sinks.shape[0])};
    r.d_sinks = call->make_output(1, heads, Dtype::kF32, &made.d_sinks);
  }
  return made;
}

/// q, k, v, out, lse
nb::object attend_backward(const RankPlan& plan, const nb::object& link, const nb::object& d_out,
                           const nb::tuple& saved, const nb::dict& keywords) {
  if (saved.size() != 5) raise_value("saved must be a tuple of q, k, v, out and lse");
  const nb::object q = saved[0], k = saved[1], v = saved[2], out = saved[3], lse = saved[4];
  Call call(arguments_of({{kQ, q}, {kK, k}, {kV, v}, {kOut, out}}, keywords),
            Call::Purpose::kBackward);
  RankGradients made = make_gradients(&call, d_out.ptr(), lse.ptr());
  run_on_ranks(&call, link, [&](Context& context, auto& communicator, const Launch& launch) {
    return distributed::attention_backward(context, communicator, plan.plan, made.request, nullptr,
                                           launch);
  });
  const nb::object d_sinks =
      made.d_sinks.is_valid() ? call.as_callers_kind(made.d_sinks, Dtype::kF32) : nb::none();
  return nb::make_tuple(call.as_callers_kind(made.d_q, made.request.q.dtype),
                        call.as_callers_kind(made.d_k, made.request.k.dtype),
                        call.as_callers_kind(made.d_v, made.request.v.dtype), d_sinks);
}

/// The pieces of each rank: [(first position, length), ...].
std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> rank_pieces(
    const std::string& layout, std::int64_t length, int ranks,
    const std::vector<std::int64_t>& cu_seqlens) {
  const auto made = distributed::make_layout(read_layout_kind(layout), length, ranks, cu_seqlens);
  if (!made) raise_status(made.status());
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> found;
  for (const auto& pieces : *made) {
    auto& own = found.emplace_back();
    for (const distributed::Piece& piece : pieces) own.emplace_back(piece.begin, piece.length);
  }
  return found;
}

}  // namespace

void bind_ranks(nb::module_& module) {
  nb::class_<RankPlan>(module, "RankPlan")
      .def("comm", [](const RankPlan& p) { return to_string(p.plan.algorithm()); })
      .def("explain", [](const RankPlan& p) { return p.plan.explain(); });
  module.def(
      "plan_ranks",
      [](const nb::object& q, const nb::object& k, const nb::object& v, int rank, int ranks,
         std::pair<std::int64_t, std::int64_t> seqlens, const std::string& layout,
         std::vector<std::int64_t> cu_seqlens, const std::string& comm,
         std::pair<int, int> topology, double timeout, std::int64_t max_bytes, bool needs_grad,
         const nb::dict& keywords) {
        const auto algorithm = distributed::parse_algorithm(comm);
        if (!algorithm) raise_value("comm ('" + comm + "') must be " + kAlgorithms);
        PlanWords words{rank, ranks, {}};
        distributed::Options& options = words.options;
        options.seqlen_q = seqlens.first;
        options.seqlen_kv = seqlens.second;
        options.layout = read_layout_kind(layout);
        options.cu_seqlens_q = options.cu_seqlens_kv = std::move(cu_seqlens);
        options.algorithm = *algorithm;
        options.topology = {topology.first, topology.second};
        options.limits = limits_of(timeout, max_bytes);
        return make_plan(words, q, k, v, needs_grad, keywords);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "rank"_a, "ranks"_a, "seqlens"_a, "layout"_a,
      "cu_seqlens"_a, "comm"_a, "topology"_a, "timeout"_a, "max_bytes"_a, "needs_grad"_a,
      "keywords"_a,
      "The plan of a call on ranks that have agreed on all of it; q, k and v [batch, heads, rows "
      "of "
      "this rank, head_dim],\nseqlens the rows of q and of k on all ranks, topology groups and the "
      "ranks of each, timeout in seconds for each\nstep, keywords those of attention. ValueError "
      "for what ranks cannot compute.");
  module.def("attention_ranks", &attend, "plan"_a, "link"_a, "q"_a, "k"_a, "v"_a, "keywords"_a,
             "(out, lse) of this rank's rows; every rank must call it. link has rank, size, isend, "
             "irecv and wait.\nRuntimeError with rank and step where a message fails or is late.");
  module.def("attention_ranks_backward", &attend_backward, "plan"_a, "link"_a, "d_out"_a, "saved"_a,
             "keywords"_a,
             "(d_q, d_k, d_v, d_sinks) of this rank's rows, of q, k, v, out and lse in saved; "
             "d_sinks [heads] is the sum of\nall ranks, None without sinks. Raises what "
             "attention_ranks raises.");
  module.def("rank_pieces", &rank_pieces, "layout"_a, "length"_a, "ranks"_a, "cu_seqlens"_a,
             "The pieces (first position, length) of each rank, in the order of its tensors. "
             "ValueError for what is no layout.");
}

}  // namespace regard::python
