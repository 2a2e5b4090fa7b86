#pragma once

#include <cstdint>

#include "regard/params.h"

// What params alone say of the sequences of a call: predictions read no tensors.

namespace regard {

/// The sequences of one side: all of the mean length.
struct MeanSide {
  double rows = 0.0;       // that hold tokens
  double positions = 0.0;  // of the padded tensor
  std::int64_t length = 0;
  std::int64_t extent = 0;
};
MeanSide mean_queries(const AttentionParams& params) noexcept;
MeanSide mean_keys(const AttentionParams& params) noexcept;

/// Pairs of a query and a visible key of one sequence.
double visible_pairs(const AttentionParams& params, std::int64_t len_q,
                     std::int64_t len_kv) noexcept;

/// Keys of one sequence that some query sees.
double visible_keys_of(const AttentionParams& params, std::int64_t len_q,
                       std::int64_t len_kv) noexcept;

/// Bytes of a token's rows of all heads.
struct TokenBytes {
  double q, kv, out;
};
TokenBytes token_bytes(const AttentionParams& params) noexcept;

}  // namespace regard
