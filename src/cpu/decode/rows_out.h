#pragma once

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/tiled.h"
#include "cpu/rows.h"
#include "cpu/split.h"

// Outputs of decode rows, as columns_out.h has those of rows in lanes.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// The output of a row block whose lanes lie along head_dim: [rows][dot_row_size].
template <class V>
struct RowsOut {
  using T = typename V::Scalar;

  REGARD_KERNEL_FN std::int64_t row_size(const Problem& p) { return dot_row_size(p.head_dim_v); }
  REGARD_KERNEL_FN std::int64_t size(const Problem& p) {
    return decode_rows_of(p, V::kWidth) * row_size(p);
  }

  static void clear(const Problem& p, const RowBlock<V>& row_block, T* out) {
    const std::int64_t end = row_block.rows * row_size(p);
    for (std::int64_t x = 0; x < end; x += V::kLanes) V::store(out + x, V::set(0));
  }

  static void merge(const Problem& p, const RowBlock<V>& row_block, const T* rescale,
                    const T* split_rescale, const T* visible, T* out) {
    const std::int64_t step = row_size(p);
    for (std::int64_t w = 0; w < row_block.rows; ++w) {
      const auto keep = V::set(rescale[w]), add = V::set(split_rescale[w]);
      for (std::int64_t x = w * step; x < (w + 1) * step; x += V::kLanes) {
        V::store(out + x, V::fma(V::load(visible + x), add, V::load(out + x) * keep));
      }
    }
  }

  static void close_block(const Problem& p, const RowBlock<V>& row_block, const T* rescale,
                          T* block, T* total) {
    const std::int64_t step = row_size(p);
    for (std::int64_t w = 0; w < row_block.rows; ++w) {
      const auto keep = V::set(rescale[w]);
      for (std::int64_t x = w * step; x < (w + 1) * step; x += V::kLanes) {
        auto value = V::load(block + x);
        V::store(total + x, add_keeping_rest<V>(V::load(total + x) * keep, &value));
        V::store(block + x, value);
      }
    }
  }

  /// out_amax of the rows.
  static void note_amax(const Problem& p, const RowBlock<V>& row_block, const T* share,
                        const T* out) {
    if (!p.out_amax.present) return;
    std::uint32_t max = 0;
    for (int w = 0; w < row_block.rows; ++w) {
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        max = larger_magnitude(max, static_cast<float>(out[w * row_size(p) + d] * share[w]));
      }
    }
    raise_amax(p.out_amax, 0, f32_of(max));
  }

  static void write(const Problem& p, const RowBlock<V>& row_block, T* out) {
    alignas(64) T shares[V::kWidth];
    inverse_sums(p, row_block, shares);
    note_amax(p, row_block, shares, out);
    const std::int64_t bytes = element_bytes(p.out.type);
    for (int w = 0; w < row_block.rows; ++w) {
      const auto share = V::set(shares[w]);
      T* const from = out + w * row_size(p);
      char* const to = row_address(p.out, row_block.b, row_block.head[w], row_block.query[w]);
      std::int64_t d = 0;
      for (; d < row_size(p); d += V::kLanes) {
        const auto value = V::load(from + d) * share;
        if (d + V::kLanes <= p.head_dim_v) {
          store_vector<V>(p.out.type, to + d * bytes, value);
        } else {
          V::store(from + d, value);
          store_row(p.out.type, to + d * bytes, from + d, 1, p.head_dim_v - d);
        }
      }
    }
  }
};

}  // namespace
}  // namespace regard::cpu
