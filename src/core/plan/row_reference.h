#pragma once

#include <cstdint>

#include "regard/isa.h"
#include "regard/params.h"
#include "regard/request.h"

namespace regard {

/// A block of rows of one (b, kv head): rows [block * max_rows, ...) of its queries times the heads
/// of a group, head fastest.
struct RowSample {
  std::int64_t b = 0;
  std::int64_t head_kv = 0;
  std::int64_t block = 0;
};

/// Rows that were recomputed: row `begin + x` is query (begin + x) / group, head (begin + x) %
/// group.
struct ReferenceRows {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  const double* out = nullptr;  // [count][head_dim_v], before it is rounded to its type
  const double* max = nullptr;  // [count]: of the row's scores; -inf where no key is visible
  const double* sum = nullptr;  // [count]: of e^(score - max)
};

/// How large scores and values are that a block of rows sees.
struct RowMagnitudes {
  double score = 0.0;  // |q| * |k| * |scale|, the largest
  double value = 0.0;  // |v|, the largest
  // Whether all of q, k and v are, hidden keys included, and no score overflows f32
  bool finite = true;
};

/// What self-checks compare with: rows of MATH, computed on the calling thread.
class RowReference {
 public:
  virtual ~RowReference() = default;
  /// Rows of a block.
  virtual std::int64_t max_rows(const AttentionParams& params, Isa isa) const = 0;
  /// Bytes of a workspace that compute() and magnitudes() need, for calls of at most these extents.
  virtual std::int64_t workspace_bytes(const AttentionParams& params, Isa isa) const = 0;
  /// Rows of a (b, kv head): of packed sequences, of the b-th.
  virtual std::int64_t rows_of(const AttentionParams& params, const Buffers& buffers,
                               std::int64_t b) const = 0;
  /// Of a call that has ended: new rows of a cache have been written.
  virtual ReferenceRows compute(const AttentionParams& params, const Buffers& buffers, Isa isa,
                                const RowSample& sample, const Workspace& workspace) const = 0;
  virtual RowMagnitudes magnitudes(const AttentionParams& params, const Buffers& buffers, Isa isa,
                                   const RowSample& sample, const Workspace& workspace) const = 0;
};

}  // namespace regard
