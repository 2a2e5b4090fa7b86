#include "distributed/memory.h"

#include <algorithm>
#include <vector>

namespace regard::distributed {
namespace {

std::int64_t longest(const std::vector<Segment>& segments) {
  std::int64_t max = 0;
  for (const Segment& s : segments) max = std::max(max, s.length);
  return max;
}

/// Buffers of one rank, in bytes.
class RankMemory {
 public:
  RankMemory(const Whole& whole, const Arrangement& a, int rank)
      : whole_(whole), a_(a), me_(rank / a.inner), own_(rank % a.inner), rank_(rank) {
    for (const HeadRun& run : share().runs) {
      run_q_ = std::max(run_q_, run.q_count);
      run_kv_ = std::max(run_kv_, run.kv_count);
    }
    count_messages();
  }

  std::int64_t forward() const {
    const std::int64_t sums = rows_of_heads(node_q(), share().q_count, (dv() + 1) * wide());
    const std::int64_t ring = forward_ring();
    if (a_.inner == 1) return sums + ring;
    const std::int64_t exchanged = node_bytes(q_bytes(), kv_bytes());
    const std::int64_t result = dv() * size_of(whole_.params.dtype_out);
    const bool is_result = !whole_.has_sinks && whole_.params.dtype_out == whole_.accumulates();
    const std::int64_t results = is_result ? 0 : rows_of_heads(node_q(), share().q_count, result);
    const std::int64_t all_lse = rows_of_heads(local_q(), whole_.params.num_heads_q, wide());
    return sums + exchanged +
           std::max({exchange(q_bytes(), kv_bytes(), true), ring,
                     results + all_lse + exchange(result + wide(), 0, false)});
  }

  std::int64_t backward() const {
    const std::int64_t heads = whole_.params.num_heads_q;
    const std::int64_t d_out = rows_of_heads(local_q(), heads, dv() * wide());
    const std::int64_t prepared = d_out + rows_of_heads(local_q(), heads, wide());
    const std::int64_t sums = node_bytes(2 * dq() * wide(), (dq() + dv()) * wide());
    const std::int64_t ring = backward_ring();
    if (a_.inner == 1) return std::max(d_out + prepared, prepared + sums + ring);
    const std::int64_t narrow = q_bytes() + dv() * size_of(whole_.dtype_d_out());
    const std::int64_t statistics = 2 * wide();
    const std::int64_t exchanged = node_bytes(narrow + dv() * wide() + statistics, kv_bytes());
    const std::int64_t gradients =
        rows_of_heads(local_q(), heads, dq() * wide()) +
        rows_of_heads(local_kv(), whole_.params.num_heads_kv, (dq() + dv()) * wide());
    return prepared + sums + exchanged +
           std::max({exchange(narrow + statistics, kv_bytes(), true), ring,
                     gradients + exchange(dq() * wide(), (dq() + dv()) * wide(), false)});
  }

 private:
  std::int64_t dq() const { return whole_.params.head_dim_qk; }
  std::int64_t dv() const { return whole_.params.head_dim_v; }
  std::int64_t wide() const { return size_of(whole_.accumulates()); }
  std::int64_t q_bytes() const { return dq() * size_of(whole_.params.dtype_q); }
  std::int64_t kv_bytes() const {
    return dq() * size_of(whole_.params.dtype_k) + dv() * size_of(whole_.params.dtype_v);
  }
  const HeadShare& share() const { return a_.heads[static_cast<std::size_t>(own_)]; }
  int nodes() const { return a_.nodes(); }

  static std::int64_t rows(const std::vector<std::vector<Piece>>& pieces, int at) {
    return rows_of(pieces[static_cast<std::size_t>(at)]);
  }
  std::int64_t node_q() const { return rows(a_.node_q, me_); }
  std::int64_t node_kv() const { return rows(a_.node_kv, me_); }
  std::int64_t local_q() const { return rows(whole_.pieces_q, rank_); }
  std::int64_t local_kv() const { return rows(whole_.pieces_kv, rank_); }

  std::int64_t rows_of_heads(std::int64_t rows, std::int64_t heads, std::int64_t bytes) const {
    return whole_.params.batch * rows * heads * bytes;
  }
  std::int64_t node_bytes(std::int64_t of_query, std::int64_t of_key) const {
    return rows_of_heads(node_q(), share().q_count, of_query) +
           rows_of_heads(node_kv(), share().kv_count, of_key);
  }

  /// What is sent to the other ranks of the group and what arrives from all of them.
  std::int64_t exchange(std::int64_t of_query, std::int64_t of_key, bool to_heads) const {
    const std::int64_t of_node = node_bytes(of_query, of_key);
    std::int64_t of_local = 0, of_own = 0;
    for (int t = 0; t < a_.inner; ++t) {
      const HeadShare& heads = a_.heads[static_cast<std::size_t>(t)];
      const std::int64_t part = rows_of_heads(local_q(), heads.q_count, of_query) +
                                rows_of_heads(local_kv(), heads.kv_count, of_key);
      of_local += part;
      if (t == own_) of_own = part;
    }
    const std::int64_t arrives = to_heads ? of_node : of_local;
    return arrives + (to_heads ? of_local : of_node) - of_own;
  }

  /// The owner of the keys of a step.
  int owner(int step) const { return (me_ + nodes() - step) % nodes(); }
  std::int64_t needed(int owner, int member) const {
    return rows_of(needed_ranges(a_.sharding, owner, member, 1));
  }
  std::int64_t ranges(int owner, int step) const {
    return rows_of(ring_ranges(a_.sharding, owner, step));
  }
  /// Rows of keys in messages while each step computes: what arrives and is sent, and in a ring
  /// what arrived before.
  void count_messages() {
    const int n = nodes();
    std::int64_t gathered = 0, held = 0;
    for (int x = 0; a_.gathers && x < n; ++x) {
      if (x != me_) gathered += needed(x, me_) + needed(me_, x);
    }
    for (int step = 0; step < n; ++step) {
      const bool is_last = a_.gathers || step + 1 == n;
      const std::int64_t next = is_last ? 0 : ranges(owner(step + 1), step + 1);
      const std::int64_t sent = is_last ? 0 : ranges(owner(step), step + 1);
      message_rows_.push_back(gathered + held + next + sent);
      held = next;
    }
  }
  std::int64_t message_rows(int step) const {
    return message_rows_[static_cast<std::size_t>(step)];
  }
  std::int64_t row_of_keys(std::int64_t bytes) const {
    return rows_of_heads(1, share().kv_count, bytes);
  }

  std::int64_t forward_ring() const {
    std::int64_t max = 0;
    for (int step = 0; step < nodes(); ++step) {
      max = std::max(max, message_rows(step) * row_of_keys(kv_bytes()));
    }
    const auto& segments = a_.sharding.q[static_cast<std::size_t>(me_)];
    const bool merges = nodes() > 1 || a_.sharding.kv[static_cast<std::size_t>(me_)].size() > 1;
    return max + (merges ? rows_of_heads(longest(segments), run_q_, (dv() + 1) * wide()) : 0);
  }

  /// A pair's keys as they are computed with, its gradients, and the bytes of one of these.
  std::int64_t pair_of(int owner) const {
    std::int64_t rows = 0;
    for (const KeyRange& range : needed_ranges(a_.sharding, owner, me_, 1)) {
      rows = std::max(rows, range.length);
    }
    const std::int64_t part = longest(a_.sharding.q[static_cast<std::size_t>(me_)]);
    const std::int64_t d_q = rows_of_heads(part, run_q_, dq() * wide());
    const std::int64_t d_kv = rows_of_heads(rows, run_kv_, (dq() + dv()) * wide());
    const std::int64_t largest =
        std::max(d_q, rows_of_heads(rows, run_kv_, std::max(dq(), dv()) * wide()));
    return row_of_keys((dq() + dv()) * wide()) * rows + d_q + d_kv + largest;
  }

  /// Gradients that are on their way once a step is computed, sent and arriving.
  std::int64_t returned(int step) const {
    if (step <= 0) return 0;
    return needed(owner(step), me_) + needed(me_, (me_ + step) % nodes());
  }

  std::int64_t backward_ring() const {
    const std::int64_t gradient = row_of_keys((dq() + dv()) * wide());
    std::int64_t max = 0;
    for (int step = 0; step < nodes(); ++step) {
      const std::int64_t rows = needed(owner(step), me_) + returned(step - 1);
      const std::int64_t computing = rows * gradient + pair_of(owner(step));
      max = std::max(max, message_rows(step) * row_of_keys(kv_bytes()) +
                              std::max(computing, returned(step) * gradient));
    }
    return max;
  }

  const Whole& whole_;
  const Arrangement& a_;
  int me_, own_, rank_;
  std::int64_t run_q_ = 0, run_kv_ = 0;  // heads of the largest call
  std::vector<std::int64_t> message_rows_;
};

}  // namespace

std::int64_t memory_of(const Whole& whole, const Arrangement& arrangement, int rank) {
  const RankMemory of(whole, arrangement, rank);
  const bool grad = whole.params.features.has(Feature::kNeedsGrad);
  return std::max(of.forward(), grad ? of.backward() : 0);
}

}  // namespace regard::distributed
