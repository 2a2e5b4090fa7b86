// The backward's products of bf16 by AMX, sums in f32. The forms are those of pair_products.inl,
// with zeros up to whole registers, and K^T has a row for each element of head_dim. What is not
// finite is multiplied as pairs where it may be hidden. Included by isa_amx_bf16.cc.

#pragma once

#include <cstdint>

#include "cpu/backward/pair_products.inl"
#include "cpu/forward/amx_transpose.h"
#include "cpu/simd/amx_tiles.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// 32 rows in two vectors, so that a row block's are what one product contracts.
template <class Simd>
struct TwoVectors : Simd {
  static constexpr int kVectors = 2;
  static constexpr int kWidth = kVectors * Simd::kLanes;
};

template <class Simd>
struct AmxProducts : PairProducts<TwoVectors<Simd>> {
  using Pairs = PairProducts<TwoVectors<Simd>>;
  using Pairs::kLanes;
  using Pairs::kWidth;
  using typename Pairs::Input;
  using typename Pairs::T;
  static constexpr int kStep = amx::kDepth, kRowUnit = kWidth;
  static constexpr bool kHasRegisters = true;
  static_assert(kWidth == amx::kDepth && kLanes == amx::kRows && kBlockKeys % amx::kDepth == 0);
  static constexpr std::int64_t kRowBytes = kWidth * sizeof(T);
  static constexpr std::int64_t kTilePairs = kBlockKeys / 2;

  template <class Rows>
  REGARD_KERNEL_FN void load_columns(const View& view, const Rows& row_block, std::int64_t dim,
                                     Pair* columns) {
    Pairs::load_columns(view, row_block, dim, columns);
    for (std::int64_t x = (dim + 1) / 2 * kWidth; x < round_up(dim, kStep) / 2 * kWidth; ++x) {
      columns[x] = {0};
    }
  }
  static Input load_rows(const BackwardArgs&, const KvOperand& x, Tile tile, Pair* to) {
    return copy_pairs(x, tile, round_up(x.dim, kStep) / 2, to);
  }
  /// [padded][pairs of a tile's keys], zeros past the last up to a whole register.
  static Input transpose_rows(Input keys, std::int64_t size, std::int64_t padded, Pair* pairs) {
    for (std::int64_t first = 0; first < size; first += amx::kDepth) {
      const char* rows[amx::kDepth];
      int count = 0;
      for (; count < amx::kDepth && first + count < size; ++count) {
        rows[count] = reinterpret_cast<const char*>(keys.data + (first + count) * keys.row_stride);
      }
      transpose_keys<Simd>(rows, count, padded, pairs + first / 2, kTilePairs);
    }
    return {pairs, kTilePairs, 1};
  }
  /// See PairProducts; rows past the last are 0, and keys up to a whole register.
  template <class Rows>
  static const Pair* round_weights(const Rows& row_block, std::int64_t size, T* weights,
                                   Pair* by_keys) {
    Pairs::round_weights(row_block, size, weights, by_keys);
    auto* const rounded = reinterpret_cast<std::uint16_t*>(weights);
    const auto missing = static_cast<std::size_t>(kWidth - row_block.rows);
    for (std::int64_t j = 0; missing > 0 && j < size; ++j) {
      __builtin_memset(rounded + j * kWidth + row_block.rows, 0, missing * sizeof(*rounded));
    }
    if (by_keys != nullptr) {
      const std::int64_t end = round_up(size, amx::kDepth) / 2 * kWidth;
      for (std::int64_t x = (size + 1) / 2 * kWidth; x < end; ++x) by_keys[x] = {0};
    }
    return by_keys;
  }

  /// products [tile_kv][W] = rows [tile_kv][dim] * columns [dim][W], of the keys seen and those
  /// that share their registers.
  template <int kVectors>
  REGARD_KERNEL_FN void multiply_rows(Input rows, SeenKeys seen, std::int64_t dim,
                                      const Pair* columns, T* products) {
    const std::int64_t steps = round_up(dim, kStep) / kStep;
    const std::int64_t bytes = rows.row_stride * static_cast<std::int64_t>(sizeof(Pair));
    for_registers(
        seen.begin / amx::kRows * amx::kRows,
        seen.begin + seen.size, [&](std::int64_t j, auto blocks) __attribute__((always_inline)) {
          using Sums = amx::Sums<decltype(blocks)::value, kVectors>;
          Sums::multiply(bytes_at(rows.data, j * bytes), bytes, columns, products + j * kWidth,
                         kRowBytes, steps);
        });
  }
  /// d_q [dim][W] += keys_t [dim][keys] * d_scores [keys / 2][W], of whole registers of the tile's
  /// keys: which of them a key shares depends on its place alone.
  template <int kVectors>
  REGARD_KERNEL_FN void add_keys(Input keys_t, const Pair* d_scores, SeenKeys seen,
                                 std::int64_t dim, T* d_q) {
    const std::int64_t first = seen.begin / amx::kDepth;
    const std::int64_t steps = round_up(seen.begin + seen.size, amx::kDepth) / amx::kDepth - first;
    constexpr std::int64_t kBytes = kTilePairs * static_cast<std::int64_t>(sizeof(Pair));
    const Pair* const weights = d_scores + first * amx::kRows * kWidth;
    for_registers(
        0, dim, [&](std::int64_t d, auto blocks) __attribute__((always_inline)) {
          constexpr int kBlocks = decltype(blocks)::value;
          using Sums = amx::Sums<kBlocks, kVectors>;
          alignas(64) T sums[kBlocks * amx::kRows * kWidth];
          Sums::multiply(bytes_at(keys_t.data, d * kBytes + first * amx::kRowBytes), kBytes,
                         weights, sums, kRowBytes, steps);
          add_sums<kVectors, kWidth>(sums, kBlocks * amx::kRows, dim - d, d_q + d * kWidth);
        });
  }
  /// The sums of `to` in a chunk of columns += weights * rows, for the tile's first `size` keys.
  template <int kVectors, class Group, class Sums>
  REGARD_KERNEL_FN void add_rows(const Group& group, const Sums& to, std::int64_t size,
                                 std::int64_t column) {
    constexpr std::int64_t kColumns = kVectors * kLanes;
    constexpr std::int64_t kBytes = kColumns * static_cast<std::int64_t>(sizeof(T));
    for_registers(
        0, size, [&](std::int64_t j, auto blocks) __attribute__((always_inline)) {
          constexpr int kBlocks = decltype(blocks)::value;
          constexpr std::int64_t kKeys = kBlocks * amx::kRows;
          using Registers = amx::Sums<kBlocks, kVectors>;
          alignas(64) T sums[kKeys * kColumns];
          Registers::clear();
          for (std::int64_t x = group.begin; x < group.end; ++x) {
            const auto t = group.row_block(x);
            const SeenKeys seen = t.seen();
            if (j >= seen.begin + seen.size || j + kKeys <= seen.begin) continue;  // would add -0
            const char* const weights = bytes_at(to.is_k ? t.d_scores() : t.probs(), 0);
            Registers::add_product(weights + j * amx::kRowBytes, amx::kRowBytes,
                                   bytes_at(t.packed(to.at_rows) + column * amx::kRows, 0), kBytes,
                                   1);
          }
          Registers::store(sums, kBytes);
          add_sums<kVectors, kColumns>(sums, kKeys, size - j,
                                       to.sums + column * to.keys + (to.key + j) * kColumns);
        });
  }

 private:
  template <class X>
  REGARD_KERNEL_FN const char* bytes_at(const X* p, std::int64_t bytes) {
    return reinterpret_cast<const char*>(p) + bytes;
  }
  /// Calls f(i, Count<blocks>) for [begin, end) in blocks of 16, two at a time.
  template <class F>
  REGARD_KERNEL_FN void for_registers(std::int64_t begin, std::int64_t end, F f) {
    std::int64_t i = begin;
    for (; i + amx::kRows < end; i += 2 * amx::kRows) f(i, Count<2>{});
    if (i < end) f(i, Count<1>{});
  }
  /// The first rows of `to` += sums, at most `rows` and `left` of them.
  template <int kVectors, std::int64_t kStride>
  REGARD_KERNEL_FN void add_sums(const T* sums, std::int64_t rows, std::int64_t left, T* to) {
    for (std::int64_t i = 0; i < (rows < left ? rows : left); ++i) {
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        const std::int64_t at = i * kStride + v * kLanes;
        Simd::store(to + at, Simd::load(to + at) + Simd::load(sums + at));
      }
    }
  }
};

}  // namespace
}  // namespace regard::cpu
