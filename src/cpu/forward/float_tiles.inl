// Tiles of K and V for f32 arithmetic, each read when the first row block needs it. Included by a
// backend's isa_<isa>.cc.

#include <cstdint>

#include "cpu/decode/decode_tiles.inl"
#include "cpu/forward/columns_out.h"
#include "cpu/forward/output_rows.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/tiled.h"
#include "cpu/kv_tiles.h"
#include "cpu/prefetch.h"
#include "cpu/simd/product.h"
#include "cpu/split.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// u4 is read where it lies with AVX-512 alone: in AVX2's 16 registers the sums would spill, so its
/// tiles are converted. AVX-512 makes 16 bits of 8-bit floats first.
template <class V>
struct DotOf {
  using Type =
      DecodeTiles<V, Element::kF32, Element::kBf16, Element::kF16, Element::kF8E4M3, Element::kI8>;
};
template <class V>
requires kConvertsF8<V>
struct DotOf<V> {
  using Type =
      DecodeTiles<V, Element::kF32, Element::kBf16, Element::kF16, Element::kI8, Element::kU4>;
};

/// What must be converted, or lies in several pages, is copied. TiledArgs::copies_values: values
/// are copied too where they lie a multiple of 4 KB apart, or all keys of a tile would share one
/// set of the L1, and where head_dim is not a multiple of the product's block, for a padded block
/// costs less than its last rows one by one.
template <class V>
class FloatTiles {
 public:
  using Vocabulary = V;
  using T = typename V::Scalar;
  using Query = T;
  using Out = ColumnsOut<V>;
  using Probs = FloatProbs<V>;
  using Dot = typename DotOf<V>::Type;
  static constexpr std::int64_t kMaxDecodeRows = max_decode_rows(V::kWidth);
  static constexpr std::int64_t kTileFactor = 1;
  static constexpr bool kStartsOut = true;      // accumulate takes a null rescale
  static constexpr std::int64_t kKeyGroup = 1;  // visible keys begin at a multiple of it
  static constexpr bool kTakesRanges = true;    // each vector of rows may have keys of its own
  static constexpr bool kAddsRows = true;       // see output_rows.h
  static constexpr std::int64_t kStepKeys = 1;  // of a product with values

  REGARD_KERNEL_FN std::int64_t tile_kv(const TiledArgs& a) { return a.tile_kv; }
  REGARD_KERNEL_FN std::int64_t query_size(const Problem& p) {
    return padded_head_dim(p.head_dim_qk) * V::kWidth;
  }

  FloatTiles(const TiledArgs& a, const TaskOrder& order, char* scratch)
      : p_(a.problem),
        b_(order.now.b),
        row_blocks_(order.row_blocks),
        copies_values_(a.copies_values),
        copies_strided_(a.copies_strided),
        keys_buffer_(reinterpret_cast<T*>(scratch + a.at_keys)),
        values_buffer_(reinterpret_cast<T*>(scratch + a.at_values)) {
    TaskPrefetch::start(p_, order, a.has_narrow_window ? 0 : tile_kv(a), &task_);
    if (a.touches_pages) TaskPrefetch::touch(p_, order, task_);
    if (a.streams_out) TaskPrefetch::leave_out_outs(&task_);
  }

  void start(const TaskHead& task_head, Tile tile) {
    k_ = k_operand(p_, b_, task_head.head_kv);
    v_ = v_operand(p_, b_, task_head.head_kv);
    tile_ = tile;
    has_keys_ = has_values_ = finite_known_ = false;
    TilePrefetch::start(k_, v_, task_head, tile, task_, row_blocks_, &prefetch_);
  }
  /// Whether rows of values follow one another where they are multiplied: strided ones that stay in
  /// place share few sets of the L1.
  static bool has_dense_values(const Problem& p, std::int64_t b, std::int64_t head_kv) {
    const KvOperand v = v_operand(p, b, head_kv);
    return v.type != kOwnElement<V> || !has_gaps(v);
  }
  const Tile& tile() const { return tile_; }
  /// Then what is masked needs no mark, for its products are 0.
  bool are_values_finite() {
    need_values();
    return is_finite();
  }

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
    PrefetchCursor* const ahead = &self->prefetch_.left;
    if (is_left(*ahead)) {
      scores_of<V, ScalarTerm<V>, kVectors, true>(a, q_t, to, visible.size, self->p_.head_dim_qk,
                                                  max, ahead);
    } else {
      scores_of<V, ScalarTerm<V>, kVectors>(a, q_t, to, visible.size, self->p_.head_dim_qk, max);
    }
  }

  /// out_t = out_t * rescale + V^T * probs of `visible`; without out_t where rescale is null.
  /// `partial`: some probabilities may be masked.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate(FloatTiles* self, const RowBlock<V>&, T* probs, Tile visible,
                                   bool partial, const T* rescale, T* out_t) {
    self->need_values();
    const ProductInput<T> a = values_from(*self, visible.begin);
    const std::int64_t dim = self->values_dim_;
    PrefetchCursor* const ahead = &self->prefetch_.left;
    if (partial && !self->is_finite()) {
      add_product<V, ScalarTerm<V>, kVectors, true>(a, probs, out_t, dim, visible.size, rescale);
    } else if (self->prefetch_.with_values && is_left(*ahead)) {
      add_product<V, ScalarTerm<V>, kVectors, false, true>(a, probs, out_t, dim, visible.size,
                                                           rescale, ahead);
    } else {
      add_product<V, ScalarTerm<V>, kVectors, false>(a, probs, out_t, dim, visible.size, rescale);
    }
  }

  /// The same where each vector of rows has probabilities of some of `visible` alone, and values
  /// are finite.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate_ranges(FloatTiles* self, const T* probs, Tile visible,
                                          const StepRanges<kVectors>& keys, const T* rescale,
                                          T* out_t) {
    const ProductInput<T> a = values_from(*self, visible.begin);
    const std::int64_t dim = self->values_dim_;
    PrefetchCursor* const ahead = &self->prefetch_.left;
    if (self->prefetch_.with_values && is_left(*ahead)) {
      add_product_of_ranges<V, ScalarTerm<V>, kVectors, true>(a, probs, out_t, dim, keys, rescale,
                                                              ahead);
    } else {
      add_product_of_ranges<V, ScalarTerm<V>, kVectors, false>(a, probs, out_t, dim, keys, rescale,
                                                               ahead);
    }
  }

  /// Adds to `rows` rows the keys `visible`, of whose scores `probs` are, or of those the ones that
  /// each kOutputRows rows see. `selects`: some may be hidden, and values are not finite.
  static void add_rows(FloatTiles* self, const OutputRows<V>& to, std::int64_t rows, const T* probs,
                       Tile visible, const semantics::KeyRange* keys, bool selects) {
    self->need_values();
    const ProductInput<T> values = values_from(*self, visible.begin);
    const RowProduct<ScalarTerm<V>> of = {probs, values.data, values.step, visible.size, keys};
    add_output_rows<V>(self->p_, to, rows, of, selects, &self->prefetch_.left);
  }

 private:
  REGARD_KERNEL_FN bool has_gaps(const KvOperand& x) { return x.stride != bytes_of(x.type, x.dim); }

  /// V^T from a key of the tile on.
  REGARD_KERNEL_FN ProductInput<T> values_from(const FloatTiles& self, std::int64_t key) {
    ProductInput<T> a = transposed(self.values_);
    a.data += (key - self.tile_.begin) * a.step;
    return a;
  }

  // Not inline: with them a tile's function is so large that GCC 12 leaves the products out of it,
  // and spills their sums.
  __attribute__((noinline)) void need_keys() {
    if (has_keys_) return;
    has_keys_ = true;
    keys_ = load_tile<V>(k_, tile_, keys_buffer_);
  }

  __attribute__((noinline)) void need_values() {
    if (has_values_) return;
    has_values_ = true;
    const std::int64_t dim = v_.dim;
    const bool copied = v_.type != Element::kF32 || !is_one_run(v_, tile_) ||
                        (copies_values_ && (dim % V::kRows != 0 || shares_sets(v_))) ||
                        (copies_strided_ && has_gaps(v_));
    values_dim_ = copied ? (dim + V::kRows - 1) / V::kRows * V::kRows : dim;
    values_ = copied ? convert_tile<V>(v_, tile_, values_dim_, values_buffer_)
                     : rows_in_place<T>(v_, tile_.begin);
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
  std::int64_t row_blocks_;
  TaskPrefetch task_;
  bool copies_values_;
  bool copies_strided_;
  T* keys_buffer_;
  T* values_buffer_;
  Tile tile_{};
  KvOperand k_{};
  KvOperand v_{};
  TilePrefetch prefetch_;
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
