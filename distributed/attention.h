#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/layout.h"
#include "regard/context.h"
#include "regard/request.h"

// Attention over a sequence that is spread over ranks. Every rank calls with its own rows and
// receives its own rows of the result, as one rank with the whole sequence computes it.

namespace regard::distributed {

/// By TransformerEngine's names of cp_comm_type.
enum class Algorithm : std::uint8_t {
  kAuto = 0,   // the least predicted time
  kP2p,        // a ring: the next keys arrive while these are computed
  kAllGather,  // keys first, then all that is to be computed
  kA2a,        // heads in place of rows (Ulysses)
  kA2aP2p      // heads within a node, a ring between nodes
};
const char* to_string(Algorithm algorithm) noexcept;  // "auto", "p2p", "all_gather", "a2a", ...
std::optional<Algorithm> parse_algorithm(std::string_view name) noexcept;

/// `nodes` times `ranks` ranks; rank r is of node r / ranks.
struct Topology {
  int nodes = 1;
  int ranks = 0;  // 0: all of them
  friend bool operator==(const Topology&, const Topology&) = default;
};

enum class NetworkSource : std::uint8_t { kAssumed = 0, kGiven, kMeasured };
const char* to_string(NetworkSource source) noexcept;  // "assumed", "given", "measured"

/// A network, for predictions: measure_network()'s, or given.
struct Network {
  double latency = 2e-6;         // seconds for each message, within a node
  double bandwidth = 10e9;       // bytes a second that a rank sends, within a node
  double node_latency = 2e-6;    // the same between nodes
  double node_bandwidth = 10e9;  //
  NetworkSource source = NetworkSource::kAssumed;
  friend bool operator==(const Network&, const Network&) = default;
};

/// The whole problem, of which each rank's request holds its part. The same on every rank.
struct Options {
  std::int64_t seqlen_q = 0;  // rows of the whole sequence, or of all packed sequences
  std::int64_t seqlen_kv = 0;
  LayoutKind layout = LayoutKind::kContiguous;            // of queries and of keys
  std::vector<std::int64_t> cu_seqlens_q, cu_seqlens_kv;  // of packed sequences, else empty
  Algorithm algorithm = Algorithm::kAuto;
  Topology topology;
  MessageLimits limits;
  Network network;
};

/// One algorithm's costs. Bytes, messages and rows are those of the rank that has most.
struct Estimate {
  Algorithm algorithm = Algorithm::kP2p;
  std::string refusal;            // why it cannot be; the rest is 0 then
  std::vector<Traffic> forward;   // what each rank sends
  std::vector<Traffic> backward;  // empty without needs_grad
  double balance = 1.0;           // score elements of the longest rank over the mean
  std::int64_t memory = 0;        // the most bytes of messages, partial results and copies at once
  double seconds = 0.0;           // forward, and backward with needs_grad
};

struct PlanImpl;
/// What all ranks agreed on. A value; copies share what they hold.
class Plan {
 public:
  Algorithm algorithm() const noexcept;
  const std::vector<Estimate>& estimates() const noexcept;
  const Estimate& chosen() const noexcept;
  const Options& options() const noexcept;
  const std::vector<Piece>& pieces_q(int rank) const noexcept;
  const std::vector<Piece>& pieces_kv(int rank) const noexcept;
  /// A line for the network, and one for each algorithm.
  std::string explain() const;

 private:
  friend struct PlanImpl;
  std::shared_ptr<const PlanImpl> impl_;
};

/// `params` is the whole problem (seqlen_q and seqlen_kv of all ranks, without lengths).
/// No rank is needed: for predictions.
Expected<Plan> explain(const AttentionParams& params, const Options& options, int ranks);

/// Every rank's plan, the same on all: keys of the problem (shapes, types, features, options,
/// regard's version, the policy that holds for a call of this thread) are exchanged first. A
/// disagreement, or an error of one rank, is an error on every rank, which states both values.
/// `request` holds this rank's rows: q [B,Hq,rows,Dqk], k [B,Hkv,rows,Dqk], v [B,Hkv,rows,Dv], out
/// [B,Hq,rows,Dv], rows of all pieces in order. Packed sequences are the same ones in every batch
/// entry, numbered by entry, then by place; alibi_slopes [sequences,Hq] have a row for each. Types
/// are f64, f32, bf16 or f16, and of q, k and v f8e4m3 or f8e5m2, with descales [1], the same on
/// every rank. Diagonals and windows of its options are those of the whole sequence,
/// or of each packed sequence. Supported besides: softmax_scale, softcap, score_function and
/// mask_function without captured tensors, alibi_slopes, sinks, dropout. Other tensors are refused
/// by name.
Expected<Plan> plan(Context& context, Communicator& communicator, const AttentionRequest& request,
                    const Options& options);

/// The same without a message, for callers whose ranks have compared all of it already by agree()
/// (distributed/agreement.h): the plan of rank `rank` of `ranks`.
Expected<Plan> plan_agreed(int rank, int ranks, const AttentionRequest& request,
                           const Options& options);

/// Writes out, and lse where present; each part runs with `launch`. The request's types, shapes and
/// options are those of the plan's, or are refused. `record`, where it is given,
/// receives what the rank sent, and when it computed and waited where it says so. An error of
/// another rank, or one that does not answer within limits.timeout, is an error that names it and
/// the step; outputs then hold no result.
Status attention(Context& context, Communicator& communicator, const Plan& plan,
                 const AttentionRequest& request, CallRecord* record = nullptr,
                 const Launch& launch = {});

/// Writes d_q, d_k, d_v and d_sinks where present; d_sinks is what this rank's rows add to it, so
/// that the sum over ranks is the gradient, as of every parameter that each rank holds. Reads out,
/// lse (f32, or f64 for f64, required), d_out, and d_lse where present.
Status attention_backward(Context& context, Communicator& communicator, const Plan& plan,
                          const AttentionGradRequest& request, CallRecord* record = nullptr,
                          const Launch& launch = {});

/// Decoding over a cache that is spread over ranks: every rank has all queries and its own keys,
/// and receives the whole result. Partial results are merged in rank order. `plan` is one of
/// plan_decode(), whose options.seqlen_q are the queries of each rank.
Expected<Plan> plan_decode(Context& context, Communicator& communicator,
                           const AttentionRequest& request, const Options& options);
Status attention_decode(Context& context, Communicator& communicator, const Plan& plan,
                        const AttentionRequest& request, CallRecord* record = nullptr,
                        const Launch& launch = {});

}  // namespace regard::distributed
