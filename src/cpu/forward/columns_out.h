#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/rows.h"

namespace regard::cpu {

/// The output of a row block whose rows lie in lanes: out^T [padded head_dim_v][W].
template <class V>
struct ColumnsOut {
  using T = typename V::Scalar;

  REGARD_KERNEL_FN std::int64_t size(const Problem& p) {
    return padded_head_dim(p.head_dim_v) * V::kWidth;
  }

  static void clear(const Problem& p, const RowBlock<V>& row_block, T* out) {
    const std::int64_t end = size(p);
    for (std::int64_t x = 0; x < end; x += V::kWidth) {
      for (int w = 0; w < lanes_of(row_block); w += V::kLanes) V::store(out + x + w, V::set(0));
    }
  }

  /// out = out * rescale + split * split_rescale, row by row.
  static void merge(const Problem& p, const RowBlock<V>& row_block, const T* rescale,
                    const T* split_rescale, const T* split, T* out) {
    for (int v = 0; v < row_block.vectors; ++v) {
      const auto keep = V::load(rescale + v * V::kLanes);
      const auto add = V::load(split_rescale + v * V::kLanes);
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        const std::int64_t at = d * V::kWidth + v * V::kLanes;
        V::store(out + at, V::fma(V::load(split + at), add, V::load(out + at) * keep));
      }
    }
  }

  /// total = total * rescale + block, of which what rounding lost is left.
  static void close_block(const Problem& p, const RowBlock<V>& row_block, const T* rescale,
                          T* block, T* total) {
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      for (int w = 0; w < lanes_of(row_block); w += V::kLanes) {
        const std::int64_t at = d * V::kWidth + w;
        auto x = V::load(block + at);
        V::store(total + at, add_keeping_rest<V>(V::load(total + at) * V::load(rescale + w), &x));
        V::store(block + at, x);
      }
    }
  }

  /// out_amax of the rows, of which share[w] is what a row's sums are multiplied by.
  static void note_amax(const Problem& p, const RowBlock<V>& row_block, const T* share,
                        const T* out) {
    if (!p.out_amax.present) return;
    std::uint32_t max = 0;
    for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
      for (int w = 0; w < row_block.rows; ++w) {
        max = larger_magnitude(max, static_cast<float>(out[d * V::kWidth + w] * share[w]));
      }
    }
    raise_amax(p.out_amax, 0, f32_of(max));
  }

  /// Takes each row's share and writes it.
  static void write(const Problem& p, const RowBlock<V>& row_block, const T* out) {
    alignas(64) T share[V::kWidth];
    inverse_sums(p, row_block, share);
    note_amax(p, row_block, share, out);
    for (int v = 0; v < row_block.vectors; ++v) {
      char* rows[V::kLanes];
      const int count = lane_rows(p.out, row_block, v * V::kLanes, rows);
      store_columns<V>(p.out.type, rows, count, p.head_dim_v, out + v * V::kLanes,
                       V::load(share + v * V::kLanes));
    }
  }
};

}  // namespace regard::cpu
