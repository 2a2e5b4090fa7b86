#include "distributed/arrangement.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "distributed/memory.h"
#include "distributed/ring.h"
#include "distributed/text.h"
#include "regard/cost.h"

namespace regard::distributed {
namespace {

using Layouts = std::vector<std::vector<Piece>>;

constexpr FeatureSet kDivided = {Feature::kCausal,
                                 Feature::kWindowLeft,
                                 Feature::kWindowRight,
                                 Feature::kDiagonalBottomRight,
                                 Feature::kDiagonalOffset,
                                 Feature::kSoftcap,
                                 Feature::kScoreFunction,
                                 Feature::kMaskFunction,
                                 Feature::kDropout,
                                 Feature::kAlibi,
                                 Feature::kSinks,
                                 Feature::kDescales,
                                 Feature::kLse,
                                 Feature::kNeedsGrad,
                                 Feature::kDLse,
                                 Feature::kDelta,
                                 Feature::kGqa,
                                 Feature::kHeadDimsDiffer,
                                 Feature::kKvDtypesDiffer,
                                 Feature::kSeqlenQGreaterKv,
                                 Feature::kNonFiniteBehindMask};

/// What ranks cannot compute together, by name.
Status check_problem(const Whole& whole, const char* where) {
  const AttentionParams& p = whole.params;
  for (int f = 0; f < kFeatureCount; ++f) {
    const auto feature = static_cast<Feature>(f);
    if (!p.features.has(feature) || kDivided.has(feature)) continue;
    if (feature == Feature::kPacked && whole.is_packed()) continue;
    return invalid(where, to_string(feature),
                   " (given) must be left out: it is not divided among ranks",
                   feature == Feature::kPacked ? " without cu_seqlens of the whole" : "");
  }
  const std::pair<const char*, Dtype> types[] = {
      {"q", p.dtype_q}, {"k", p.dtype_k}, {"v", p.dtype_v}, {"out", p.dtype_out}};
  for (const auto& [name, d] : types) {
    const bool is_out = &d == &types[3].second;
    if (d == Dtype::kF64 || d == Dtype::kF32 || d == Dtype::kBf16 || d == Dtype::kF16) continue;
    if (!is_out && is_f8(d)) continue;
    return invalid(where, "dtype of ", name, " (", to_string(d), ") must be f64, f32, bf16 or f16",
                   is_out ? "" : ", or 8-bit floats");
  }
  if (p.device.type != DeviceType::kCpu) {
    return invalid(where, "device (", to_string(p.device.type), ") must be cpu on ranks");
  }
  return {};
}

Status make_documents(Whole* whole, const char* where) {
  const Options& o = whole->options;
  const bool packed = whole->is_packed();
  if (packed != !o.cu_seqlens_kv.empty() || o.cu_seqlens_q.size() != o.cu_seqlens_kv.size()) {
    return invalid(where, "elements of cu_seqlens_q (", o.cu_seqlens_q.size(),
                   ") must be as many as those of cu_seqlens_kv, ", o.cu_seqlens_kv.size());
  }
  Visibility& v = whole->visibility;
  v.left = whole->params.window_left;
  v.right = whole->params.window_right;
  const std::size_t count = packed ? o.cu_seqlens_q.size() - 1 : 1;
  for (std::size_t x = 0; x < count; ++x) {
    Document d{0, o.seqlen_q, 0, o.seqlen_kv, 0};
    if (packed) {
      d = {o.cu_seqlens_q[x], o.cu_seqlens_q[x + 1], o.cu_seqlens_kv[x], o.cu_seqlens_kv[x + 1], 0};
    }
    if (whole->params.diagonal == Diagonal::kBottomRight) {
      d.shift = (d.kv_end - d.kv_begin) - (d.q_end - d.q_begin);
    }
    v.documents.push_back(d);
  }
  return {};
}

HeadShare share_of(const Whole& whole, int inner, int index) {
  const std::int64_t hq = whole.params.num_heads_q, hkv = whole.params.num_heads_kv;
  const std::int64_t group = hkv == 0 ? 1 : hq / hkv;
  const auto first = [&](std::int64_t heads, std::int64_t x) { return heads * x / inner; };
  HeadShare share;
  if (hkv >= inner || inner == 1) {
    share.kv_begin = first(hkv, index);
    share.kv_count = first(hkv, index + 1) - share.kv_begin;
    share.q_begin = share.kv_begin * group;
    share.q_count = share.kv_count * group;
    share.runs.push_back({0, share.q_count, 0, share.kv_count, share.q_begin});
    return share;
  }
  // Fewer key heads than ranks: query heads are divided, and key heads are on every rank that has
  // one of their queries.
  share.q_begin = first(hq, index);
  share.q_count = first(hq, index + 1) - share.q_begin;
  share.kv_begin = share.q_begin / group;
  const std::int64_t end = share.q_begin + share.q_count;
  share.kv_count = share.q_count == 0 ? 0 : (end - 1) / group + 1 - share.kv_begin;
  for (std::int64_t kv = share.kv_begin; kv < share.kv_begin + share.kv_count; ++kv) {
    const std::int64_t begin = std::max(kv * group, share.q_begin);
    const std::int64_t count = std::min((kv + 1) * group, end) - begin;
    share.runs.push_back({begin - share.q_begin, count, kv - share.kv_begin, 1, begin});
  }
  return share;
}

int inner_of(const Whole& whole, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kA2a: return whole.ranks;
    case Algorithm::kA2aP2p: return whole.options.topology.ranks;
    default: return 1;
  }
}

/// Bytes of one query's and one key's part of each exchange, for one batch entry and head.
struct HeadBytes {
  std::int64_t q, kv, out, gradient_q, gradient_kv, backward_q;
};
HeadBytes head_bytes(const Whole& whole) {
  const AttentionParams& p = whole.params;
  const std::int64_t wide = size_of(whole.accumulates());
  HeadBytes b{};
  b.q = p.head_dim_qk * size_of(p.dtype_q);
  b.kv = p.head_dim_qk * size_of(p.dtype_k) + p.head_dim_v * size_of(p.dtype_v);
  b.out = p.head_dim_v * size_of(p.dtype_out) + wide;
  b.gradient_q = p.head_dim_qk * wide;
  b.gradient_kv = (p.head_dim_qk + p.head_dim_v) * wide;
  b.backward_q = b.q + p.head_dim_v * size_of(whole.dtype_d_out()) + 2 * wide;
  return b;
}

/// Adds what `rank` sends to the other ranks of its group.
void add_exchange(const Whole& whole, const Arrangement& a, int rank, Estimate* e) {
  const HeadBytes bytes = head_bytes(whole);
  const std::int64_t batch = whole.params.batch;
  const int node = rank / a.inner, own = rank % a.inner;
  const HeadShare& mine = a.heads[static_cast<std::size_t>(own)];
  const auto rows = [&](const Layouts& pieces, int r) {
    return rows_of(pieces[static_cast<std::size_t>(r)]);
  };
  const auto add = [&](Traffic* traffic, std::int64_t sent) {
    traffic->messages += chunks_of(sent, whole.options.limits);
    traffic->bytes += sent;
  };
  const bool grad = !e->backward.empty();
  const auto at = static_cast<std::size_t>(rank);
  for (int t = 0; t < a.inner; ++t) {
    if (t == own) continue;
    const HeadShare& theirs = a.heads[static_cast<std::size_t>(t)];
    const int other = node * a.inner + t;
    const std::int64_t q = batch * rows(whole.pieces_q, rank) * theirs.q_count;
    const std::int64_t kv = batch * rows(whole.pieces_kv, rank) * theirs.kv_count;
    const std::int64_t back_q = batch * rows(whole.pieces_q, other) * mine.q_count;
    const std::int64_t back_kv = batch * rows(whole.pieces_kv, other) * mine.kv_count;
    add(&e->forward[at], q * bytes.q + kv * bytes.kv);
    add(&e->forward[at], back_q * bytes.out);
    if (!grad) continue;
    add(&e->backward[at], q * bytes.backward_q + kv * bytes.kv);
    add(&e->backward[at], back_q * bytes.gradient_q + back_kv * bytes.gradient_kv);
  }
}

/// Score elements that a rank computes.
double elements_of(const Arrangement& a, int node, int index) {
  double elements = 0.0;
  for (const Segment& q : a.sharding.q[static_cast<std::size_t>(node)]) {
    for (const auto& keys : a.sharding.kv) {
      for (const Segment& k : keys) elements += visible_elements(a.sharding.visibility, q, k);
    }
  }
  return elements * static_cast<double>(a.heads[static_cast<std::size_t>(index)].q_count);
}

/// Of the whole problem on one rank.
double predicted_seconds(const Whole& whole, bool backward) {
  AttentionParams p = whole.params;
  p.seqlen_q = whole.options.seqlen_q;
  p.seqlen_kv = whole.options.seqlen_kv;
  p.total_q = p.total_kv = 0;
  p.features.set(Feature::kPacked, false);
  p.features.set(Feature::kNeedsGrad, backward);
  canonicalize(p);
  const CostModel model = default_costs(read_env());
  double least = -1.0;
  for (const BackendId id : {BackendId::kFlash, BackendId::kEfficient, BackendId::kMath}) {
    const double seconds = predict_time(model, {id}, p, backward).seconds;
    if (seconds >= 0.0 && (least < 0.0 || seconds < least)) least = seconds;
  }
  return std::max(least, 0.0);
}

Traffic most_of(const std::vector<Traffic>& ranks) {
  Traffic most;
  for (const Traffic& t : ranks) {
    most.messages = std::max(most.messages, t.messages);
    most.bytes = std::max(most.bytes, t.bytes);
  }
  return most;
}

/// Seconds of one rank's messages. Where there are several nodes the slower ones are between them,
/// and a rank does not finish before those.
double seconds_moved(const Options& options, const Traffic& traffic) {
  const Network& n = options.network;
  const bool crosses = options.topology.nodes > 1;
  const double latency = crosses ? std::max(n.latency, n.node_latency) : n.latency;
  const double bandwidth = crosses ? std::min(n.bandwidth, n.node_bandwidth) : n.bandwidth;
  return static_cast<double>(traffic.messages) * latency +
         static_cast<double>(traffic.bytes) / bandwidth;
}

double seconds_of(const Whole& whole, const Arrangement& a, const Traffic& traffic,
                  double compute) {
  const double moved = seconds_moved(whole.options, traffic);
  // In a ring messages travel while all keys but the last ones are computed.
  const bool overlaps = !a.gathers && a.nodes() > 1;
  if (!overlaps) return compute + moved;
  const double hidden = compute * (a.nodes() - 1) / a.nodes();
  return compute + std::max(moved - hidden, 0.0);
}

}  // namespace

Status complete(Whole* whole, const char* where) {
  Options& o = whole->options;
  if (Status s = check_problem(*whole, where); !s.ok()) return s;
  if (o.seqlen_q < 0 || o.seqlen_kv < 0) {
    return invalid(where, o.seqlen_q < 0 ? "seqlen_q (" : "seqlen_kv (",
                   std::min(o.seqlen_q, o.seqlen_kv), ") must be at least 0");
  }
  if (o.topology.ranks == 0) o.topology = {1, whole->ranks};
  if (o.topology.nodes < 1 || o.topology.ranks < 1 ||
      std::int64_t{o.topology.nodes} * o.topology.ranks != whole->ranks) {
    return invalid(where, "topology (", o.topology.nodes, "x", o.topology.ranks, ") must have ",
                   whole->ranks, " ranks");
  }
  if (Status s = make_documents(whole, where); !s.ok()) return s;
  Expected<Layouts> q = make_layout(o.layout, o.seqlen_q, whole->ranks, o.cu_seqlens_q);
  if (!q.ok()) return q.status();
  Expected<Layouts> kv = make_layout(o.layout, o.seqlen_kv, whole->ranks, o.cu_seqlens_kv);
  if (!kv.ok()) return kv.status();
  for (const auto* cu : {&o.cu_seqlens_q, &o.cu_seqlens_kv}) {
    const std::int64_t rows = cu == &o.cu_seqlens_q ? o.seqlen_q : o.seqlen_kv;
    if (Expected<Layouts> checked = make_layout(LayoutKind::kPerDocument, rows, 1, *cu);
        !checked.ok()) {
      return checked.status();
    }
  }
  whole->pieces_q = std::move(*q);
  whole->pieces_kv = std::move(*kv);
  return {};
}

std::string refusal(const Whole& whole, Algorithm algorithm) {
  const int inner = inner_of(whole, algorithm);
  if (algorithm == Algorithm::kA2aP2p &&
      (whole.options.topology.nodes == 1 || whole.options.topology.ranks == 1)) {
    return "needs a topology of at least 2x2, got " + std::to_string(whole.options.topology.nodes) +
           "x" + std::to_string(whole.options.topology.ranks);
  }
  if (whole.params.num_heads_q < inner) {
    return "divides query heads among " + std::to_string(inner) + " ranks, got " +
           std::to_string(whole.params.num_heads_q) + " heads; use p2p or all_gather";
  }
  return {};
}

Arrangement arrange(const Whole& whole, Algorithm algorithm) {
  Arrangement a;
  a.inner = inner_of(whole, algorithm);
  a.gathers = algorithm == Algorithm::kAllGather;
  for (int x = 0; x < a.inner; ++x) a.heads.push_back(share_of(whole, a.inner, x));
  a.sharding.visibility = whole.visibility;
  for (int node = 0; node < whole.ranks / a.inner; ++node) {
    const auto of_node = [&](const Layouts& pieces) {
      const auto begin = pieces.begin() + node * a.inner;
      // A group of one rank keeps the order of its tensors.
      return a.inner == 1 ? *begin : join_pieces({begin, begin + a.inner});
    };
    a.node_q.push_back(of_node(whole.pieces_q));
    a.node_kv.push_back(of_node(whole.pieces_kv));
    a.sharding.q.push_back(make_segments(a.node_q.back(), whole.visibility, true));
    a.sharding.kv.push_back(make_segments(a.node_kv.back(), whole.visibility, false));
  }
  return a;
}

std::int64_t node_row(const std::vector<Piece>& node, const Piece& piece) noexcept {
  std::int64_t row = 0;
  for (const Piece& joined : node) {
    if (piece.begin >= joined.begin && piece.begin < joined.begin + joined.length) {
      return row + piece.begin - joined.begin;
    }
    row += joined.length;
  }
  return row;
}

Estimate estimate(const Whole& whole, Algorithm algorithm, const Arrangement& a) {
  Estimate e;
  e.algorithm = algorithm;
  const bool grad = whole.params.features.has(Feature::kNeedsGrad);
  const auto ranks = static_cast<std::size_t>(whole.ranks);
  e.forward.resize(ranks);
  if (grad) e.backward.resize(ranks);
  const HeadBytes bytes = head_bytes(whole);
  double longest = 0.0, all = 0.0;
  for (int rank = 0; rank < whole.ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const int node = rank / a.inner;
    const HeadShare& share = a.heads[static_cast<std::size_t>(rank % a.inner)];
    const std::int64_t heads = whole.params.batch * share.kv_count;
    const RingRow row{heads * bytes.kv, heads * bytes.gradient_kv};
    e.forward[at] = forward_traffic(a.sharding, node, a.gathers, row, whole.options.limits);
    if (grad) {
      e.backward[at] = backward_traffic(a.sharding, node, a.gathers, row, whole.options.limits);
    }
    add_exchange(whole, a, rank, &e);
    const double elements = elements_of(a, node, rank % a.inner);
    longest = std::max(longest, elements);
    all += elements;
    e.memory = std::max(e.memory, memory_of(whole, a, rank));
  }
  e.balance = all > 0.0 ? longest / (all / whole.ranks) : 1.0;
  const double share = all > 0.0 ? longest / all : 0.0;
  e.seconds = seconds_of(whole, a, most_of(e.forward), share * predicted_seconds(whole, false));
  if (grad) {
    e.seconds += seconds_of(whole, a, most_of(e.backward), share * predicted_seconds(whole, true));
  }
  return e;
}

Estimate estimate_decode(const Whole& whole) {
  const AttentionParams& p = whole.params;
  Estimate e;
  const std::int64_t rows = p.batch * p.num_heads_q * whole.options.seqlen_q;
  const std::int64_t bytes = rows * (p.head_dim_v + 1) * size_of(whole.accumulates());
  const std::int64_t others = whole.ranks - 1;
  const Traffic each{others * chunks_of(bytes, whole.options.limits), others * bytes};
  e.forward.assign(static_cast<std::size_t>(whole.ranks), each);
  e.memory = whole.ranks * bytes;
  std::int64_t longest = 0;
  for (const auto& pieces : whole.pieces_kv) longest = std::max(longest, rows_of(pieces));
  const auto keys = static_cast<double>(std::max<std::int64_t>(whole.options.seqlen_kv, 1));
  e.balance =
      whole.options.seqlen_kv == 0 ? 1.0 : static_cast<double>(longest) * whole.ranks / keys;
  e.seconds = predicted_seconds(whole, false) * static_cast<double>(longest) / keys +
              seconds_moved(whole.options, each);
  return e;
}

}  // namespace regard::distributed
