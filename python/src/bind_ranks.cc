#include "bind_ranks.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind_policy.h"
#include "call.h"
#include "call_scope.h"
#include "distributed/agreement.h"
#include "distributed/attention.h"
#include "distributed/measure_network.h"
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
Arguments rank_arguments(const std::vector<std::pair<Arg, nb::object>>& tensors,
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
Status with_callers_name(const Status& status) {
  const std::string& text = status.message();
  for (const char* own : {"[distributed::", "[plan_agreed]", "[measure_network]"}) {
    if (text.rfind(own, 0) == 0) {
      return Status(status.code(), "[context_parallel]" + text.substr(text.find(']') + 1));
    }
  }
  return status;
}

void check_ranks(const Call& call, const Status& status) { check(call, with_callers_name(status)); }

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
  Call call(rank_arguments({{kQ, q}, {kK, k}, {kV, v}}, keywords), Call::Purpose::kExplain);
  call.request.options.needs_grad = needs_grad;
  const Expected<distributed::Plan> made =
      distributed::plan_agreed(words.rank, words.ranks, call.request, words.options);
  if (!made) check_ranks(call, made.status());
  return {*made};
}

/// agree() of all ranks on `text` and on the policy that holds for this call.
std::vector<distributed::RankNumbers> agree_ranks(const nb::object& link, const std::string& text,
                                                  const distributed::RankNumbers& numbers,
                                                  double timeout, const nb::object& policy) {
  const Policy* const given = policy_in(policy.ptr());
  if (given == nullptr && !policy.is_none()) {
    raise_type("policy (" + repr(policy.ptr()) + ") must be a regard.Policy or None");
  }
  const AmbientScopes scopes;
  const ScopedPolicy scope(given == nullptr ? Policy() : *given);
  Context& context = process_context();
  PythonCommunicator communicator(link);
  Expected<std::vector<distributed::RankNumbers>> all = Status();
  {
    const GilRelease unlocked;
    all = distributed::agree(communicator, limits_of(timeout, INT32_MAX),
                             text + " policy: " + distributed::policy_text(context), numbers,
                             "context_parallel");
  }
  communicator.rethrow();
  if (!all) raise_status(all.status());
  return *all;
}

/// Seconds a message and bytes a second within a node, then between nodes.
using LinkNumbers = std::array<double, 4>;

nb::tuple measure_network(const nb::object& link, std::pair<int, int> topology, double timeout) {
  PythonCommunicator communicator(link);
  Expected<distributed::Network> network = Status();
  {
    const GilRelease unlocked;
    network = distributed::measure_network(communicator, {topology.first, topology.second},
                                           limits_of(timeout, INT32_MAX));
  }
  communicator.rethrow();
  if (!network) raise_status(with_callers_name(network.status()));
  return nb::make_tuple(network->latency, network->bandwidth, network->node_latency,
                        network->node_bandwidth);
}

/// None, numbers that were measured, or numbers that the caller gave.
distributed::Network network_of(const std::optional<LinkNumbers>& numbers, bool is_measured) {
  if (!numbers) return {};
  const auto& [latency, bandwidth, node_latency, node_bandwidth] = *numbers;
  using Source = distributed::NetworkSource;
  return {latency, bandwidth, node_latency, node_bandwidth,
          is_measured ? Source::kMeasured : Source::kGiven};
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

/// What the call did and when, where the caller gives a list for it: appends (step, "computing" or
/// "waiting", begin, end).
class RecordedActivities {
 public:
  explicit RecordedActivities(const std::optional<nb::list>& to) : to_(to) {
    record_.has_activities = to.has_value();
  }
  distributed::CallRecord* record() { return &record_; }
  void hand_over() {
    if (!to_) return;
    for (const distributed::Activity& a : record_.activities) {
      to_->append(nb::make_tuple(a.step, distributed::to_string(a.kind), a.begin, a.end));
    }
  }

 private:
  std::optional<nb::list> to_;
  distributed::CallRecord record_;
};

nb::object attend(const RankPlan& plan, const nb::object& link, const nb::object& q,
                  const nb::object& k, const nb::object& v, const nb::dict& keywords,
                  const std::optional<nb::list>& activities) {
  RecordedActivities recorded(activities);
  Arguments arguments = rank_arguments({{kQ, q}, {kK, k}, {kV, v}}, keywords);
  arguments.value[kReturnLse] = Py_True;
  Call call(arguments, Call::Purpose::kCompute);
  run_on_ranks(&call, link, [&](Context& context, auto& communicator, const Launch& launch) {
    return distributed::attention(context, communicator, plan.plan, call.request, recorded.record(),
                                  launch);
  });
  recorded.hand_over();
  return call.result(nb::object());
}

/// What the backward of a call on ranks writes.
struct RankGradients {
  AttentionGradRequest request;
  Dtype dtype = Dtype::kF32;  // of d_q, d_k and d_v
  nb::object d_q, d_k, d_v, d_sinks;
};

RankGradients make_rank_gradients(Call* call, PyObject* d_out, PyObject* lse) {
  RankGradients made;
  AttentionGradRequest& r = made.request;
  static_cast<AttentionRequest&>(r) = call->request;
  r.d_out = call->inputs().tensor(d_out, "d_out");
  r.saved.stats = call->inputs().any_view(array_from(lse, "lse"), "lse");
  r.saved.kind = SavedContext::Kind::kLse;
  r.saved.rng_seed = r.rng_seed;
  made.dtype = r.options.dtype_gradients.value_or(default_dtype_out(r.q.dtype));
  r.d_q = call->make_rows(r.q.shape, made.dtype, &made.d_q);
  r.d_k = call->make_rows(r.k.shape, made.dtype, &made.d_k);
  r.d_v = call->make_rows(r.v.shape, made.dtype, &made.d_v);
  if (r.sinks.present()) {
    const npy_intp heads[1] = {static_cast<npy_intp>(r.sinks.shape[0])};
    r.d_sinks = call->make_output(1, heads, Dtype::kF32, &made.d_sinks);
  }
  return made;
}

/// q, k, v, out, lse
nb::object attend_backward(const RankPlan& plan, const nb::object& link, const nb::object& d_out,
                           const nb::tuple& saved, const nb::dict& keywords,
                           const std::optional<nb::list>& activities) {
  if (saved.size() != 5) raise_value("saved must be a tuple of q, k, v, out and lse");
  const nb::object q = saved[0], k = saved[1], v = saved[2], out = saved[3], lse = saved[4];
  const Arguments arguments = rank_arguments({{kQ, q}, {kK, k}, {kV, v}, {kOut, out}}, keywords);
  Call call(arguments, Call::Purpose::kBackward);
  RankGradients made = make_rank_gradients(&call, d_out.ptr(), lse.ptr());
  if (PyObject* const given = arguments.given(kDescaleDOut)) {
    made.request.descale_d_out = call.inputs().number_or_numbers(given, "descale_d_out", "1, [1]");
  }
  RecordedActivities recorded(activities);
  run_on_ranks(&call, link, [&](Context& context, auto& communicator, const Launch& launch) {
    return distributed::attention_backward(context, communicator, plan.plan, made.request,
                                           recorded.record(), launch);
  });
  recorded.hand_over();
  const nb::object d_sinks =
      made.d_sinks.is_valid() ? call.as_callers_kind(made.d_sinks, Dtype::kF32) : nb::none();
  return nb::make_tuple(call.as_callers_kind(made.d_q, made.dtype),
                        call.as_callers_kind(made.d_k, made.dtype),
                        call.as_callers_kind(made.d_v, made.dtype), d_sinks);
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
         const nb::dict& keywords, const std::optional<LinkNumbers>& network, bool is_measured) {
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
        options.network = network_of(network, is_measured);
        return make_plan(words, q, k, v, needs_grad, keywords);
      },
      "q"_a, "k"_a, "v"_a, nb::kw_only(), "rank"_a, "ranks"_a, "seqlens"_a, "layout"_a,
      "cu_seqlens"_a, "comm"_a, "topology"_a, "timeout"_a, "max_bytes"_a, "needs_grad"_a,
      "keywords"_a, "network"_a = nb::none(), "is_measured"_a = false,
      "The plan of a call on ranks that have agreed on all of it; q, k and v [batch, heads, rows "
      "of "
      "this rank, head_dim],\nseqlens the rows of q and of k on all ranks, topology groups and the "
      "ranks of each, timeout in seconds for each\nstep, keywords those of attention, network "
      "what measure_network returns. ValueError\nfor what ranks cannot compute.");
  module.def("measure_network", &measure_network, "link"_a, nb::kw_only(), "topology"_a,
             "timeout"_a,
             "Seconds a message and bytes a second between ranks of a group of topology, then "
             "between groups; the same on\nevery rank, and every rank must call it. Raises what "
             "attention_ranks raises.");
  module.def("agree_ranks", &agree_ranks, "link"_a, "text"_a, "numbers"_a, nb::kw_only(),
             "timeout"_a, "policy"_a = nb::none(),
             "The four numbers of every rank, by rank, where all ranks give the same text and have "
             "the same policy; on every\nrank ValueError with both texts where they do not. link "
             "and errors as of attention_ranks.");
  module.def(
      "attention_ranks", &attend, "plan"_a, "link"_a, "q"_a, "k"_a, "v"_a, "keywords"_a,
      "activities"_a = nb::none(),
      "(out, lse) of this rank's rows; every rank must call it. link has rank, size, isend, "
      "irecv and wait.\nactivities: a list that receives (step, 'computing' or 'waiting', begin, "
      "end in seconds since the call began).\nRuntimeError with rank and step where a message "
      "fails or is late.");
  module.def("attention_ranks_backward", &attend_backward, "plan"_a, "link"_a, "d_out"_a, "saved"_a,
             "keywords"_a, "activities"_a = nb::none(),
             "(d_q, d_k, d_v, d_sinks) of this rank's rows, of q, k, v, out and lse in saved; "
             "d_sinks [heads] is what these\nrows add to it, None without sinks. Raises what "
             "attention_ranks raises.");
  module.def("rank_pieces", &rank_pieces, "layout"_a, "length"_a, "ranks"_a, "cu_seqlens"_a,
             "The pieces (first position, length) of each rank, in the order of its tensors. "
             "ValueError for what is no layout.");
}

}  // namespace regard::python
