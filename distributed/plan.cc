#include <algorithm>
#include <cstdio>
#include <cstring>

#include "distributed/agreement.h"
#include "distributed/arrangement.h"
#include "distributed/plan_impl.h"
#include "distributed/text.h"
#include "regard/version.h"

namespace regard::distributed {
namespace {

constexpr Algorithm kAll[] = {Algorithm::kP2p, Algorithm::kAllGather, Algorithm::kA2a,
                              Algorithm::kA2aP2p};

/// What all ranks must have alike.
std::string key_of(const Whole& whole, bool is_decode) {
  const Options& o = whole.options;
  std::string text = to_string(whole.params);
  text += std::string(" version=") + version() + (is_decode ? " decode" : "");
  text += std::string(" comm=") + to_string(o.algorithm) + " layout=" + to_string(o.layout);
  text += " cp=" + std::to_string(whole.ranks) + " topology=" + std::to_string(o.topology.nodes) +
          "x" + std::to_string(o.topology.ranks);
  text += " rows=" + std::to_string(o.seqlen_q) + "," + std::to_string(o.seqlen_kv);
  text += " max_bytes=" + std::to_string(o.limits.max_bytes);
  char network[128];
  std::snprintf(network, sizeof(network), " network=%.17g,%.17g,%.17g,%.17g", o.network.latency,
                o.network.bandwidth, o.network.node_latency, o.network.node_bandwidth);
  text += network;
  for (const auto* cu : {&o.cu_seqlens_q, &o.cu_seqlens_kv}) {
    text += cu == &o.cu_seqlens_q ? " cu_q=" : " cu_kv=";
    for (const std::int64_t x : *cu) text += std::to_string(x) + ",";
  }
  return text;
}

/// What they must have alike of the tensors and numbers of a call.
std::string data_key_of(const AttentionRequest& request) {
  std::string text = " diagonal_offset=" + std::to_string(request.diagonal_offset);
  if (request.options.dropout_p > 0.0) {
    text += " rng=" + std::to_string(request.rng_seed) + "," + std::to_string(request.rng_offset);
  }
  if (request.alibi_slopes.present()) text += " alibi_slopes";
  if (request.sinks.present()) text += " sinks";
  const std::pair<const char*, const TensorView*> descales[] = {
      {" descale_q=", &request.descale_q},
      {" descale_k=", &request.descale_k},
      {" descale_v=", &request.descale_v}};
  for (const auto& [name, view] : descales) {
    if (!view->present()) continue;
    char number[32];
    std::snprintf(number, sizeof(number), "%.9g", double{*static_cast<const float*>(view->data)});
    text += name + std::string(number);
  }
  return text;
}

struct Member {
  int rank, ranks;
};

/// The request as the whole problem.
Expected<Whole> whole_of(const AttentionRequest& request, const Options& options,
                         const Member& member, bool is_decode, const char* where) {
  if (Status s = check_tensors(request, where); !s.ok()) return s;
  const bool packed = !options.cu_seqlens_q.empty();
  AttentionRequest checked = request;
  if (const TensorView& slopes = request.alibi_slopes; packed && slopes.rank == 2) {
    // A row for each sequence, where describe() expects one for each batch entry.
    const auto documents = static_cast<std::int64_t>(options.cu_seqlens_q.size()) - 1;
    if (slopes.shape[0] != request.q.shape[0] * documents) {
      return invalid(where, "rows of alibi_slopes (", slopes.shape[0], ") must be ",
                     request.q.shape[0] * documents, ", one for each sequence");
    }
    checked.alibi_slopes.shape[0] = request.q.shape[0];
  }
  Expected<AttentionParams> params = describe(checked);
  if (!params.ok()) return params.status();
  Whole whole;
  whole.has_alibi = request.alibi_slopes.present();
  whole.has_sinks = request.sinks.present();
  whole.options = options;
  whole.call = request.options;
  whole.diagonal_offset = request.diagonal_offset;
  whole.ranks = member.ranks;
  whole.params = *params;
  // What describe() drops where a rank's own rows do not need it.
  const AttentionOptions& o = request.options;
  whole.params.diagonal = o.diagonal;
  whole.params.window_left = o.window_left;
  whole.params.window_right = o.is_causal ? 0 : o.window_right;
  if (Status s = complete(&whole, where); !s.ok()) return s;
  if (o.diagonal == Diagonal::kOffset) {
    for (Document& d : whole.visibility.documents) d.shift = request.diagonal_offset;
  }
  const auto at = static_cast<std::size_t>(member.rank);
  const std::int64_t rows_q = is_decode ? options.seqlen_q : rows_of(whole.pieces_q[at]);
  const std::int64_t rows_kv = rows_of(whole.pieces_kv[at]);
  if (request.q.shape[2] != rows_q || request.k.shape[2] != rows_kv) {
    const bool of_q = request.q.shape[2] != rows_q;
    return invalid(where, "rows of ", of_q ? "q" : "k", " (",
                   of_q ? request.q.shape[2] : request.k.shape[2], ") must be ",
                   of_q ? rows_q : rows_kv, ", those of rank ", member.rank, " by layout ",
                   to_string(options.layout));
  }
  // The key is of the whole; memory orders are each rank's own.
  AttentionParams& p = whole.params;
  p.seqlen_q = options.seqlen_q;
  p.seqlen_kv = options.seqlen_kv;
  for (const TensorLayout& layout : kTensorLayouts) {
    p.*layout.order = Layout::kBhsd;
    p.*layout.align_log2 = 0;
  }
  return whole;
}

Expected<Plan> choose(Whole whole, bool is_decode, const char* where) {
  auto impl = std::make_shared<PlanImpl>();
  std::string refusals;
  int best = -1;
  for (const Algorithm algorithm : kAll) {
    if (is_decode && algorithm != Algorithm::kP2p) continue;
    Estimate e;
    e.algorithm = algorithm;
    e.refusal = refusal(whole, algorithm);
    if (e.refusal.empty()) {
      const Arrangement a = arrange(whole, algorithm);
      e = is_decode ? estimate_decode(whole) : estimate(whole, algorithm, a);
      const Algorithm wanted = whole.options.algorithm;
      const bool allowed = is_decode || wanted == Algorithm::kAuto || wanted == algorithm;
      if (allowed &&
          (best < 0 || e.seconds < impl->estimates[static_cast<std::size_t>(best)].seconds)) {
        best = static_cast<int>(impl->estimates.size());
        impl->arrangement = a;
      }
    } else {
      refusals +=
          std::string(refusals.empty() ? "" : "; ") + to_string(algorithm) + " " + e.refusal;
    }
    impl->estimates.push_back(std::move(e));
  }
  if (best < 0) {
    return invalid(where, "comm (", to_string(whole.options.algorithm), ") cannot be: ", refusals);
  }
  impl->is_decode = is_decode;
  impl->chosen = static_cast<std::size_t>(best);
  impl->whole = std::move(whole);
  return PlanImpl::wrap(std::move(impl));
}

Expected<Plan> plan_for(Context& context, Communicator& communicator,
                        const AttentionRequest& request, const Options& options, bool is_decode,
                        const char* where) try {
  const Member member{communicator.rank(), communicator.size()};
  Expected<Whole> whole = whole_of(request, options, member, is_decode, where);
  const std::string text = whole.ok() ? key_of(*whole, is_decode) + data_key_of(request) +
                                            " policy: " + policy_text(context)
                                      : "error: " + whole.status().message();
  const auto agreed = agree(communicator, options.limits, text, {}, where);
  if (!whole.ok()) return whole.status();
  if (!agreed.ok()) return agreed.status();
  return choose(std::move(*whole), is_decode, where);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory(where);
}

/// "network 2 us a message, 10 GB/s (assumed)", a line.
std::string network_text(const Options& options) {
  const Network& n = options.network;
  char text[160];
  if (options.topology.nodes > 1 && options.topology.ranks > 1) {
    std::snprintf(text, sizeof(text),
                  "network %.3g us a message and %.3g GB/s within a node, %.3g us and %.3g GB/s "
                  "between nodes (%s)\n",
                  n.latency * 1e6, n.bandwidth / 1e9, n.node_latency * 1e6, n.node_bandwidth / 1e9,
                  to_string(n.source));
    return text;
  }
  const bool is_apart = options.topology.nodes > 1;
  std::snprintf(text, sizeof(text), "network %.3g us a message, %.3g GB/s (%s)\n",
                (is_apart ? n.node_latency : n.latency) * 1e6,
                (is_apart ? n.node_bandwidth : n.bandwidth) / 1e9, to_string(n.source));
  return text;
}

}  // namespace

const char* to_string(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::kAuto: return "auto";
    case Algorithm::kP2p: return "p2p";
    case Algorithm::kAllGather: return "all_gather";
    case Algorithm::kA2a: return "a2a";
    case Algorithm::kA2aP2p: return "a2a+p2p";
  }
  return "unknown";
}

const char* to_string(NetworkSource source) noexcept {
  switch (source) {
    case NetworkSource::kAssumed: return "assumed";
    case NetworkSource::kGiven: return "given";
    case NetworkSource::kMeasured: return "measured";
  }
  return "unknown";
}

std::optional<Algorithm> parse_algorithm(std::string_view name) noexcept {
  if (name == to_string(Algorithm::kAuto)) return Algorithm::kAuto;
  for (const Algorithm algorithm : kAll) {
    if (name == to_string(algorithm)) return algorithm;
  }
  return std::nullopt;
}

Algorithm Plan::algorithm() const noexcept { return chosen().algorithm; }
const std::vector<Estimate>& Plan::estimates() const noexcept { return impl_->estimates; }
const Estimate& Plan::chosen() const noexcept { return impl_->estimates[impl_->chosen]; }
const Options& Plan::options() const noexcept { return impl_->whole.options; }
const std::vector<Piece>& Plan::pieces_q(int rank) const noexcept {
  return impl_->whole.pieces_q[static_cast<std::size_t>(rank)];
}
const std::vector<Piece>& Plan::pieces_kv(int rank) const noexcept {
  return impl_->whole.pieces_kv[static_cast<std::size_t>(rank)];
}

std::string Plan::explain() const {
  std::string text = std::string("ranks ") + std::to_string(impl_->whole.ranks) + ", layout " +
                     to_string(options().layout) + ", comm " + to_string(algorithm()) + "\n" +
                     network_text(options());
  for (const Estimate& e : estimates()) {
    char line[256];
    if (!e.refusal.empty()) {
      text += std::string("  ") + to_string(e.algorithm) + " " + e.refusal + "\n";
      continue;
    }
    Traffic most;
    for (const auto* ranks : {&e.forward, &e.backward}) {
      Traffic of_pass;
      for (const Traffic& t : *ranks) {
        of_pass.messages = std::max(of_pass.messages, t.messages);
        of_pass.bytes = std::max(of_pass.bytes, t.bytes);
      }
      most.messages += of_pass.messages;
      most.bytes += of_pass.bytes;
    }
    std::snprintf(line, sizeof(line),
                  "%s %-10s %lld messages and %lld bytes a rank, balance %.3f, memory %lld bytes, "
                  "predicted %.3g ms\n",
                  &e == &chosen() ? "*" : " ", to_string(e.algorithm),
                  static_cast<long long>(most.messages), static_cast<long long>(most.bytes),
                  e.balance, static_cast<long long>(e.memory), e.seconds * 1e3);
    text += line;
  }
  return text;
}

Expected<Plan> explain(const AttentionParams& params, const Options& options, int ranks) try {
  constexpr const char* kWhere = "explain";
  if (ranks < 1) return invalid(kWhere, "ranks (", ranks, ") must be at least 1");
  Whole whole;
  whole.params = params;
  whole.options = options;
  whole.ranks = ranks;
  if (Status s = complete(&whole, kWhere); !s.ok()) return s;
  return choose(std::move(whole), false, kWhere);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("explain");
}

Expected<Plan> plan(Context& context, Communicator& communicator, const AttentionRequest& request,
                    const Options& options) {
  return plan_for(context, communicator, request, options, false, "plan");
}

Expected<Plan> plan_agreed(int rank, int ranks, const AttentionRequest& request,
                           const Options& options) try {
  constexpr const char* kWhere = "plan_agreed";
  if (rank < 0 || rank >= ranks) {
    return invalid(kWhere, "rank (", rank, ") must be at least 0 and less than ranks, ", ranks);
  }
  Expected<Whole> whole = whole_of(request, options, {rank, ranks}, false, kWhere);
  if (!whole.ok()) return whole.status();
  return choose(std::move(*whole), false, kWhere);
} catch (const std::bad_alloc&) {
  return Status::out_of_memory("plan_agreed");
}

Expected<Plan> plan_decode(Context& context, Communicator& communicator,
                           const AttentionRequest& request, const Options& options) {
  return plan_for(context, communicator, request, options, true, "plan_decode");
}

}  // namespace regard::distributed
