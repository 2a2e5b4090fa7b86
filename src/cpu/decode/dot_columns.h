#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/forward/tiled.h"
#include "cpu/rows.h"

// Rows of q and K whose lanes lie along head_dim, a vector at a time: as floats, or as pairs of
// bf16 where both have that type.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// Elements [d, d + kLanes) of a row of `dim`; what lies past its end is 0, and not read.
template <class V, Element kType>
REGARD_KERNEL_FN typename V::Vec load_at(const char* row, std::int64_t d, std::int64_t dim) {
  if (d + V::kLanes <= dim) return load_vector<V>(kType, row + bytes_of(kType, d));
  alignas(64) char tail[sizeof(typename V::Vec)];
  V::copy_start(tail, row + bytes_of(kType, d), bytes_of(kType, dim - d));
  return load_vector<V>(kType, tail);
}

template <class V, bool kPairs>
struct ColumnOf {
  using Type = typename V::Vec;
};
template <class V>
struct ColumnOf<V, true> {
  using Type = typename V::Int;
};

template <class V, bool kPairs>
struct DotColumns {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  using Column = typename ColumnOf<V, kPairs>::Type;
  static constexpr std::int64_t kStep = kPairs ? 2 * V::kLanes : V::kLanes;  // elements of one
  typedef std::uint16_t Word __attribute__((may_alias));

  /// [rows][dot_row_size], 0 where there is nothing. Pairs: the first half of each row's bytes.
  static void pack(const Problem& p, const RowBlock<V>& row_block, T* q) {
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    for (std::int64_t x = 0; x < row_block.rows * step; x += V::kLanes) V::store(q + x, V::set(0));
    if constexpr (kPairs) {
      pack_words(p, row_block, q);
    } else {
      pack_floats(p, row_block, q);
    }
  }

  REGARD_KERNEL_FN Column load(const char* p) {
    Column column;
    __builtin_memcpy(&column, p, sizeof(column));
    return column;
  }
  /// Elements [d, d + kStep) of a packed row.
  REGARD_KERNEL_FN Column of_query(const T* row, std::int64_t d) {
    return load(reinterpret_cast<const char*>(row) + d * (kPairs ? sizeof(Word) : sizeof(T)));
  }
  /// Those of a key, from its element at `p` on.
  template <Element kType>
  REGARD_KERNEL_FN Column of_key(const char* p) {
    if constexpr (kPairs) {
      return load(p);
    } else {
      return load_vector<V>(kType, p);
    }
  }
  /// Elements [d, dim) of a key's row, then 0.
  template <Element kType>
  REGARD_KERNEL_FN Column of_tail(const char* row, std::int64_t d, std::int64_t dim) {
    if constexpr (kPairs) {
      alignas(64) char words[sizeof(Column)];
      V::copy_start(words, row + 2 * d, 2 * (dim - d));
      return load(words);
    } else {
      return load_at<V, kType>(row, d, dim);
    }
  }
  REGARD_KERNEL_FN Vec add(Vec sum, Column query, Column key) {
    if constexpr (kPairs) {
      return V::dot(sum, query, key);
    } else {
      return V::fma(query, key, sum);
    }
  }

 private:
  static void pack_words(const Problem& p, const RowBlock<V>& row_block, T* q) {
    const std::uint16_t sign = p.negates_scores ? 0x8000 : 0;
    for (int w = 0; w < row_block.rows; ++w) {
      const auto* const row = reinterpret_cast<const std::uint16_t*>(
          row_address(p.q, row_block.b, row_block.head[w], row_block.query[w]));
      auto* const to = reinterpret_cast<Word*>(q + w * dot_row_size(p.head_dim_qk));
      for (std::int64_t d = 0; d < p.head_dim_qk; ++d) to[d] = row[d] ^ sign;
    }
  }

  static void pack_floats(const Problem& p, const RowBlock<V>& row_block, T* q) {
    const auto factor = V::set(row_block.query_factor);
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    for (int w = 0; w < row_block.rows; ++w) {
      const char* const row = row_address(p.q, row_block.b, row_block.head[w], row_block.query[w]);
      T* const to = q + w * step;
      load_dense_row<V>(p.q.type, row, p.head_dim_qk, to);
      for (std::int64_t d = 0; p.scales_q.present && d < p.head_dim_qk; ++d) {
        const QueryRow of{row_block.b, row_block.head[w], row_block.query[w]};
        to[d] *= static_cast<T>(row_scale(p, p.scales_q, of, d));
      }
      for (std::int64_t d = 0; d < p.head_dim_qk; d += V::kLanes) {
        V::store(to + d, V::load(to + d) * factor);
      }
      if (!p.channel_scales_k.present) continue;
      const std::int64_t head_kv = row_block.head[w] / p.group_size;
      for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
        to[d] *= static_cast<T>(channel_scale(p, head_kv, d));
      }
    }
  }
};

}  // namespace
}  // namespace regard::cpu
