#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/communicator.h"
#include "distributed/layout.h"
#include "regard/attention.h"

namespace regard::distributed {

enum class Algorithm : std::uint8_t {
  kAuto = 0,      // the one that is predicted to be the fastest
  kRing,          // "p2p": keys and values travel around a ring while others are computed
  kAllGather,     // "all_gather": every rank receives the keys and values that it needs first
  kAllToAll,      // "a2a": ranks exchange rows for heads, and back
  kHierarchical,  // "a2a+p2p": a2a within groups of ranks, a ring among groups
};

/// TransformerEngine's names of cp_comm_type: "auto", "p2p", "all_gather", "a2a", "a2a+p2p".
const char* to_string(Algorithm algorithm) noexcept;

/// What a message costs: latency + bytes / bandwidth.
struct Link {
  double latency_s = 20e-6;
  double bytes_per_s = 5e9;
};

/// Between ranks of one group, and between groups.
struct Network {
  Link within;
  Link between;
};

/// How a sequence is spread over ranks; the same on all of them.
struct Spread {
  Algorithm algorithm = Algorithm::kAuto;
  LayoutKind layout = LayoutKind::kContiguous;
  std::int64_t length_q = 0;  // of the whole sequence, of all documents together
  std::int64_t length_kv = 0;
  // Where documents begin, and the end of the last; empty: one document. Each attends to its own
  // keys. Of keys: as of queries where empty.
  std::vector<std::int64_t> cu_seqlens_q, cu_seqlens_kv;
  int groups = 1;  // of consecutive ranks, for kHierarchical and predictions; divides the ranks
  double timeout_s = 60.0;                     // that a message may take
  std::int64_t chunk_bytes = (1LL << 31) - 1;  // of a message at most; longer ones are divided
  Network network{};                           // for predictions
};

/// What one algorithm would do. Of forward calls.
struct AlgorithmReport {
  Algorithm algorithm = Algorithm::kRing;
  std::string refusal;  // why it cannot be; empty: it can, and the rest holds
  // Of each rank: what it sends, chunks counted one by one.
  std::vector<std::int64_t> messages, bytes;
  std::vector<double> pairs;      // of each rank: (query, key, head) scores that it computes
  double balance = 1.0;           // the largest of `pairs` over their mean
  std::int64_t memory_bytes = 0;  // of the rank that needs most, beside the tensors of the call
  double seconds = 0.0;           // predicted
};

/// Every algorithm for a problem, without ranks or tensors. `params` are those of the whole problem
/// on one rank: q [B,Hq,length_q,D] (describe_case or describe of it); of documents those of the
/// longest. threads: of each rank, for predictions.
struct Explanation {
  std::vector<AlgorithmReport> algorithms;
  Algorithm chosen = Algorithm::kRing;
  std::string text() const;  // a table, as `regard explain` prints
};
Expected<Explanation> explain(Context& context, const AttentionParams& params, const Spread& spread,
                              int ranks);

/// A decision that all ranks have agreed on.
class Plan {
 public:
  Algorithm algorithm() const noexcept;
  const Explanation& explanation() const noexcept;
  const Spread& spread() const noexcept;
  /// What this rank holds of queries and of keys.
  const Pieces& pieces_q() const noexcept;
  const Pieces& pieces_kv() const noexcept;

  struct Impl;
  std::shared_ptr<const Impl> impl;
};

/// Plans a call of all ranks. `request` is this rank's: its q [B,Hq,rows,D], k and v [B,Hkv,rows,D]
/// have the rows of spread's layout, one piece after the other, perhaps none; options are those of
/// the whole sequence: is_causal, windows and diagonals count in it, functions' q_idx and kv_idx,
/// and dropout's numbers, too. Exchanges what each rank is about to do; where ranks disagree it is
/// an error on each of them, with both texts. Every rank must call it.
///
/// Refused by name: tensors whose rows or columns are positions of the whole sequence (attn_mask,
/// attn_bias, lengths, pages, appended rows, segments); scores_out; saved_stats.
Expected<Plan> plan(Context& context, Communicator& communicator, const AttentionRequest& request,
                    const Spread& spread);

/// What a call sent and how long it took, for tests and traces.
struct Report {
  std::int64_t messages = 0;  // sent by this rank
  std::int64_t bytes = 0;     //
  double waited_s = 0.0;      // for messages
  double computed_s = 0.0;    // in attention calls
};

/// This rank's rows of out, of the type of `request.out`, and of lse where present (f32, f64 for
/// f64). Partial results are f32 (f64 for f64), merged in the order of ranks. Every rank must call
/// it. An error names the rank and the step; then out and lse are unchanged.
Status attention(Context& context, Communicator& communicator, const Plan& plan,
                 const AttentionRequest& request, Report* report = nullptr);

/// This rank's rows of d_q, d_k and d_v, and its share of d_sinks, which the caller adds up over
/// ranks. `request` has out and lse of the forward: saved.kind is kLse. d_k and d_v are added up in
/// the order of ranks. Every rank must call it; an error leaves gradients unchanged.
Status attention_backward(Context& context, Communicator& communicator, const Plan& plan,
                          const AttentionGradRequest& request, Report* report = nullptr);

/// Queries that every rank has whole, q [B,Hq,Sq,D], over keys of which each has the rows of
/// spread's layout_kv: decoding with a cache that is spread over ranks. Each rank attends to its
/// own keys; partial results are merged in the order of ranks, so that every rank has all of out.
/// spread.length_q is Sq. Every rank must call it.
Status decode(Context& context, Communicator& communicator, const Plan& plan,
              const AttentionRequest& request, Report* report = nullptr);

}  // namespace regard::distributed
