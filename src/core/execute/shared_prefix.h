#pragma once

#include <cstdint>

#include "problem/problem.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

// Sequences that have their first pages in common: these keys in one call for all queries, which
// are one sequence then; each sequence's own keys in another, behind rows that are no keys.

namespace regard {

/// A call, and how many keys its sequences share; `where` is the name of its function.
struct PrefixCall {
  const char* where;
  const AttentionRequest& request;
  const AttentionParams& params;
  std::int64_t shared;
};

Status check_prefix_length(const char* where, std::int64_t shared);
/// What a query's own sequence or place changes for keys of the prefix.
Status check_prefix_features(const char* where, const AttentionParams& params, std::int64_t shared);
/// Data is checked before: lengths, and ids of the pages that queries see.
Status check_prefix_sequences(const PrefixCall& call, const problem::Problem& p);

/// Partial results and inputs of the two calls, whose rows are those of all sequences one after the
/// other: row b * Sq + i, or the packed row.
class PrefixMemory {
 public:
  explicit PrefixMemory(const AttentionParams& params);

  /// Of the block that place() takes, which is aligned to 64.
  std::int64_t bytes() const noexcept { return bytes_; }
  void place(void* block) noexcept { block_ = static_cast<char*>(block); }

  std::int64_t rows() const noexcept { return rows_; }

  /// The outputs of the call over the prefix, of one sequence, or of that over the rest.
  void set_outputs(bool of_prefix, const AttentionRequest& given, AttentionRequest* request) const;
  /// A partial result in the shape of the caller's out: [B,Hq,Sq,.] or [1,Hq,total_q,.].
  StateView state(bool of_prefix) const;
  TensorView stats(bool of_prefix) const { return stats_of(of_prefix, batch_, seqlen_); }

  /// q as one sequence of that layout: where it lies, or a copy.
  TensorView queries(const TensorView& q, Layout layout) const;
  /// i32 [1, rows]: where each query stands. Rows of padding stand anywhere.
  TensorView positions(const problem::Problem& p) const;
  /// i32 [count] of `shared`: the length of the prefix, or what precedes own keys.
  TensorView lengths(std::int64_t count, std::int64_t shared) const;
  /// Rows past their sequence's length have seen the prefix, and count for nothing.
  void hide_padding(const problem::Problem& p) const;
  /// The statistics of both partial results as those of all keys.
  void merge_stats(const TensorView& to) const;

 private:
  struct Partial {
    std::int64_t at_out = 0, at_lse = 0, at_stats = 0;
  };

  char* at(std::int64_t offset) const { return block_ + offset; }
  std::int64_t first_row(const problem::Problem& p, std::int64_t b) const;
  TensorView view(std::int64_t offset, Dtype dtype, std::int64_t batch, std::int64_t seqlen,
                  std::int64_t columns) const;
  TensorView lse_of(bool of_prefix, std::int64_t batch, std::int64_t seqlen) const;
  TensorView stats_of(bool of_prefix, std::int64_t batch, std::int64_t seqlen) const;
  template <class T>
  void hide_row(std::int64_t n) const;

  char* block_ = nullptr;
  std::int64_t heads_ = 0, head_dim_v_ = 0, bytes_ = 0;
  Partial partials_[2];  // over the prefix, over the rest
  std::int64_t at_q_ = 0, at_positions_ = 0, at_lengths_ = 0;
  std::int64_t batch_ = 0, seqlen_ = 0, rows_ = 0;
  Dtype wide_ = Dtype::kF32;
};

/// All queries over the keys of the prefix, as one sequence, q in that layout.
AttentionRequest prefix_request(const PrefixCall& call, const problem::Problem& p,
                                const PrefixMemory& memory, Layout layout);
/// The params of prefix_request().
AttentionParams prefix_params(const AttentionParams& params, std::int64_t shared);
/// Each sequence over the keys behind the prefix; appends, and holds the sink.
AttentionRequest own_request(const PrefixCall& call, const PrefixMemory& memory);
/// The params of own_request().
AttentionParams own_params(const AttentionParams& params);

}  // namespace regard
