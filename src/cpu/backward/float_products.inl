// The backward's products in the arithmetic's own type, for every type of input. Included by
// isa_<isa>.cc.

#pragma once

#include <cstdint>

#include "cpu/backward/tile.inl"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

template <class Simd>
struct FloatProducts : Simd {
  using T = typename Simd::Scalar;
  using Operand = T;
  using Input = ProductInput<T>;
  using Term = ScalarTerm<Simd>;
  /// Terms of products with gradients; kLeft: hidden elements stand in a, else in b.
  template <bool kLeft>
  struct VisibleTerm : Term {
    using Vec = typename Simd::Vec;
    REGARD_KERNEL_FN Vec add_visible(Vec sum, Vec a, Vec b) {
      return Simd::select(is_hidden<Simd>(kLeft ? a : b), sum, Simd::fma(a, b, sum));
    }
  };
  static constexpr int kPack = 1;               // elements of an operand
  static constexpr int kStep = 1;               // of a contraction that a product takes together
  static constexpr int kRowUnit = 1;            // packed rows are zeros up to a multiple of it
  static constexpr bool kHasRegisters = false;  // see AmxProducts

  /// The row block's rows of `view` as [dim][W].
  REGARD_KERNEL_FN void load_columns(const View& view, const RowBlock<FloatProducts>& row_block,
                                     std::int64_t dim, T* columns) {
    pack_columns<FloatProducts>(view, row_block, dim, columns);
  }
  /// Elements of kPack rows side by side.
  REGARD_KERNEL_FN void join_rows(Element type, const char* const (&rows)[kPack], std::int64_t size,
                                  T* to) {
    load_dense_row<Simd>(type, rows[0], size, to);
  }
  /// A tile's rows of K or V, as copies in `to` unless they serve in place.
  REGARD_KERNEL_FN Input load_rows(const BackwardArgs& a, const KvOperand& x, Tile tile, T* to) {
    if (!a.copies_tiles) return load_tile<Simd>(x, tile, to);
    return convert_tile<Simd>(x, tile, padded_head_dim(x.dim), to);
  }
  /// K^T of a tile's `size` keys.
  REGARD_KERNEL_FN Input transpose_rows(Input keys, std::int64_t, std::int64_t, T*) {
    return transposed(keys);
  }
  REGARD_KERNEL_FN bool is_finite(Input a, std::int64_t rows, std::int64_t dim) {
    return all_finite<Simd>(a, rows, dim);
  }
  /// What the products take of weights [size][W].
  REGARD_KERNEL_FN const T* round_weights(const RowBlock<FloatProducts>&, std::int64_t, T* weights,
                                          T*) {
    return weights;
  }
};

}  // namespace
}  // namespace regard::cpu
