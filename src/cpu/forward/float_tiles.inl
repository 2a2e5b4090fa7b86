// Tiles of K and V for f32 arithmetic, each read when the first row block needs it. Included by a
// backend's isa_<isa>.cc.

#include <cstdint>

#include "cpu/asks.h"
#include "cpu/decode/decode_tiles.inl"
#include "cpu/forward/columns_out.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/tiled.h"
#include "cpu/simd/product.h"
#include "cpu/split.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// What must be converted is copied. TiledArgs::copies_values: values are copied too where they lie
/// a multiple of 4 KB apart, or all keys of a tile would share one set of the L1, and where
/// head_dim is not a multiple of the product's block, for a padded block costs less than its last
/// rows one by one.
template <class V>
class FloatTiles {
 public:
  using Vocabulary = V;
  using T = typename V::Scalar;
  using Query = T;
  using Out = ColumnsOut<V>;
  using Probs = FloatProbs<V>;
  using Dot = DecodeTiles<V, Element::kF32, Element::kBf16, Element::kF16>;
  static constexpr std::int64_t kMaxDecodeRows = max_decode_rows(V::kWidth);

  REGARD_KERNEL_FN std::int64_t tile_kv(const TiledArgs& a) { return a.tile_kv; }
  REGARD_KERNEL_FN std::int64_t query_size(const Problem& p) {
    return padded_head_dim(p.head_dim_qk) * V::kWidth;
  }

  FloatTiles(const TiledArgs& a, std::int64_t b, char* scratch)
      : p_(a.problem),
        b_(b),
        copies_values_(a.copies_values),
        keys_buffer_(reinterpret_cast<T*>(scratch + a.at_keys)),
        values_buffer_(reinterpret_cast<T*>(scratch + a.at_values)) {}

  void start(TaskHead task_head, Tile tile) {
    head_kv_ = task_head.head_kv;
    tile_ = tile;
    has_keys_ = has_values_ = finite_known_ = false;
    asks_ = TileAsks::at_tile(p_, b_, task_head, tile);
  }
  const Tile& tile() const { return tile_; }

  static void pack(const Problem& p, const RowBlock<V>& row_block, Query* q_t) {
    pack_queries<V>(p, row_block, q_t);
  }

  /// scores^T of `visible` of the tile; `max` grows.
  template <int kVectors>
  REGARD_KERNEL_FN void scores(FloatTiles* self, const RowBlock<V>&, const Query* q_t, Tile visible,
                               T* to, T* max) {
    self->need_keys();
    ProductInput<T> a = self->keys_;
    a.data += (visible.begin - self->tile_.begin) * a.row_stride;
    AskedRows* const asked = TileAsks::with_keys(&self->asks_);
    if (is_left(*asked)) {
      scores_of<V, ScalarTerm<V>, kVectors, true>(a, q_t, to, visible.size, self->p_.head_dim_qk,
                                                  max, asked);
    } else {
      scores_of<V, ScalarTerm<V>, kVectors>(a, q_t, to, visible.size, self->p_.head_dim_qk, max);
    }
  }

  /// out_t = out_t * rescale + V^T * probs of `visible`. `partial`: some probabilities may be
  /// masked.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate(FloatTiles* self, const RowBlock<V>&, T* probs, Tile visible,
                                   bool partial, const T* rescale, T* out_t) {
    self->need_values();
    ProductInput<T> a = transposed(self->values_);
    a.data += (visible.begin - self->tile_.begin) * a.step;
    const std::int64_t dim = self->values_dim_;
    AskedRows* const asked = &self->asks_.few_row_blocks;
    if (partial && !self->is_finite()) {
      add_product<V, ScalarTerm<V>, kVectors, true>(a, probs, out_t, dim, visible.size, rescale);
    } else if (is_left(*asked)) {
      add_product<V, ScalarTerm<V>, kVectors, false, true>(a, probs, out_t, dim, visible.size,
                                                           rescale, asked);
    } else {
      add_product<V, ScalarTerm<V>, kVectors, false>(a, probs, out_t, dim, visible.size, rescale);
    }
  }

 private:
  ProductInput<T> read(const View& view, std::int64_t dim, std::int64_t padded, T* buffer) {
    const char* first = row_address(view, b_, head_kv_, tile_.begin);
    return copy_rows<V>(view, first, tile_.size, dim, padded, buffer);
  }

  ProductInput<T> in_place(const View& view) const {
    const char* first = row_address(view, b_, head_kv_, tile_.begin);
    return {reinterpret_cast<const T*>(first), view.stride[2], 1};
  }

  void need_keys() {
    if (has_keys_) return;
    has_keys_ = true;
    const std::int64_t dim = p_.head_dim_qk;
    const bool copied = p_.k.type != Element::kF32;
    keys_ = copied ? read(p_.k, dim, dim, keys_buffer_) : in_place(p_.k);
  }

  void need_values() {
    if (has_values_) return;
    has_values_ = true;
    const std::int64_t dim = p_.head_dim_v;
    const bool copied = p_.v.type != Element::kF32 ||
                        (copies_values_ && (dim % V::kRows != 0 || shares_sets(p_.v)));
    values_dim_ = copied ? (dim + V::kRows - 1) / V::kRows * V::kRows : dim;
    values_ = copied ? read(p_.v, dim, values_dim_, values_buffer_) : in_place(p_.v);
  }

  bool is_finite() {
    if (!finite_known_) {
      finite_known_ = true;
      finite_ = all_finite<V>(values_, tile_.size, p_.head_dim_v);
    }
    return finite_;
  }

  const Problem& p_;
  std::int64_t b_;
  bool copies_values_;
  std::int64_t head_kv_ = 0;
  T* keys_buffer_;
  T* values_buffer_;
  Tile tile_{};
  TileAsks asks_{};
  ProductInput<T> keys_{};
  ProductInput<T> values_{};
  std::int64_t values_dim_ = 0;
  bool has_keys_ = false;
  bool has_values_ = false;
  bool finite_known_ = false;
  bool finite_ = true;
};

}  // namespace
}  // namespace regard::cpu
