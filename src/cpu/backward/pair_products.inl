// The backward's products of pairs of bf16, sums in f32: q, k, v, out and d_out are bf16, and P and
// dS are rounded to bf16. Included by isa_<isa>.cc.

#pragma once

#include <cstdint>

#include "cpu/backward/tile.inl"
#include "cpu/forward/bf16_pairs.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

template <class Simd>
struct PairProducts : Simd {
  using T = typename Simd::Scalar;
  using Operand = Pair;
  using Input = ProductInput<Pair>;
  using Term = PairTerm<Simd>;
  /// See FloatProducts; -0 in a half hides that half.
  template <bool kLeft>
  struct VisibleTerm : Term {
    using Vec = typename Simd::Vec;
    using Column = typename Term::Column;
    REGARD_KERNEL_FN Vec add_visible(Vec sum, Column a, Column b) {
      const Column weight = kLeft ? a : b;
      const Column minus_zero = Column{} + static_cast<std::int32_t>(0x80000000u);
      const Column high = weight & static_cast<std::int32_t>(0xffff0000u);
      return Term::add_halves(sum, a, b, high == minus_zero, weight << 16 == minus_zero);
    }
  };
  static constexpr int kPack = 2, kStep = 2, kRowUnit = 2;
  static constexpr bool kHasRegisters = false;

  /// The row block's rows of `view` as [dim / 2][W], pairs along head_dim.
  template <class Rows>
  REGARD_KERNEL_FN void load_columns(const View& view, const Rows& row_block, std::int64_t dim,
                                     Pair* columns) {
    for (int v = 0; v < row_block.vectors; ++v) {
      char* rows[Simd::kLanes];
      const int count = lane_rows(view, row_block, v * Simd::kLanes, rows);
      load_pair_columns<Simd>(rows, count, dim, columns + v * Simd::kLanes);
    }
  }
  REGARD_KERNEL_FN void join_rows(Element, const char* const (&rows)[kPack], std::int64_t size,
                                  Pair* to) {
    pair_rows<Simd>(reinterpret_cast<const std::uint16_t*>(rows[0]),
                    reinterpret_cast<const std::uint16_t*>(rows[1]), size, to);
  }
  /// [size][padded head_dim / 2] in `to`
  static Input load_rows(const BackwardArgs&, const KvOperand& x, Tile tile, Pair* to) {
    return copy_pairs(x, tile, padded_head_dim(x.dim) / kPack, to);
  }
  /// [size / 2][padded] in `pairs`: pairs of keys, an odd last one with 0.
  static Input transpose_rows(Input keys, std::int64_t size, std::int64_t padded, Pair* pairs) {
    const KvOperand copied = copied_operand(keys.data, Element::kBf16, padded, size);
    return pair_keys<Simd>(copied, {0, size}, padded, pairs);
  }
  REGARD_KERNEL_FN bool is_finite(Input a, std::int64_t rows, std::int64_t size) {
    return all_finite_pairs<Simd>(a, rows, size);
  }
  /// Weights [size][W] become bf16 [size][W] in place, where neighbouring lanes are pairs of rows;
  /// an odd last row is paired with a hidden one, since the lane behind it may hold anything. The
  /// same as pairs of keys [size / 2][W] goes to `by_keys`, an odd last key with 0.
  template <class Rows>
  static const Pair* round_weights(const Rows& row_block, std::int64_t size, T* weights,
                                   Pair* by_keys) {
    with_vectors<Simd::kVectors>(
        row_block.vectors, [&](auto vectors) __attribute__((always_inline)) {
          constexpr int kVectors = decltype(vectors)::value;
          for (std::int64_t j = 0; j < size; j += 2) {
            round_keys<kVectors>(j, j + 1 < size, weights, by_keys);
          }
        });
    auto* const rounded = reinterpret_cast<std::uint16_t*>(weights);
    for (std::int64_t j = 0; row_block.rows % 2 != 0 && j < size; ++j) {
      rounded[j * Simd::kWidth + row_block.rows] = 0x8000;
    }
    return by_keys;
  }

 private:
  /// Keys j and j + 1, unless that is past the last. What is written lies before what is still to
  /// be read once both rows were.
  template <int kVectors>
  REGARD_KERNEL_FN void round_keys(std::int64_t j, bool has_second, T* weights, Pair* by_keys) {
    typename Simd::Int words[kVectors];
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      const T* const at = weights + j * Simd::kWidth + v * Simd::kLanes;
      const auto second = has_second ? Simd::load(at + Simd::kWidth) : Simd::set(0);
      words[v] = Simd::rounded(Simd::load(at), second);
    }
    auto* const rounded = reinterpret_cast<std::uint16_t*>(weights) + j * Simd::kWidth;
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      std::uint16_t* const to = rounded + v * Simd::kLanes;
      Simd::store_rounded(words[v], to, to + Simd::kWidth);
      if (by_keys == nullptr) continue;
      const auto pairs = Simd::paired(words[v]);
      __builtin_memcpy(by_keys + j / 2 * Simd::kWidth + v * Simd::kLanes, &pairs, sizeof(pairs));
    }
  }
};

}  // namespace
}  // namespace regard::cpu
