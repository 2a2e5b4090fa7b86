// Tiles of K and V as pairs of bf16, for dot products of pairs: the contraction over head_dim takes
// two elements of a row of K at a time, the one over keys two rows of V. Included by a backend's
// isa_<isa>.cc.

#include <cstdint>

#include "cpu/decode/decode_tiles.inl"
#include "cpu/forward/bf16_pairs.h"
#include "cpu/forward/columns_out.h"
#include "cpu/forward/output_rows.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/tiled.h"
#include "cpu/kv_tiles.h"
#include "cpu/prefetch.h"
#include "cpu/simd/product.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

template <class V>
class Bf16Tiles {
 public:
  using Vocabulary = V;
  using T = typename V::Scalar;
  using Query = Pair;
  using Out = ColumnsOut<V>;
  using Probs = PairProbs<V>;
  using Dot = DecodeTiles<V, Element::kBf16>;
  /// 12 rows of a row block are 1.02 to 1.16 times as fast on a Zen 5, 8 rows 0.8 to 0.9 times.
  static constexpr std::int64_t kMaxDecodeRows = 8;
  static constexpr std::int64_t kTileFactor = 1;
  static constexpr bool kStartsOut = true;      // accumulate takes a null rescale
  static constexpr std::int64_t kKeyGroup = 1;  // visible keys begin at a multiple of it
  static constexpr bool kTakesRanges = true;    // each vector of rows may have keys of its own
  static constexpr bool kAddsRows = true;       // see output_rows.h
  static constexpr std::int64_t kStepKeys = 2;  // of a product with values

  REGARD_KERNEL_FN std::int64_t tile_kv(const TiledArgs& a) { return a.tile_kv; }
  REGARD_KERNEL_FN std::int64_t query_size(const Problem& p) {
    return padded_head_dim(p.head_dim_qk) / 2 * V::kWidth;
  }

  Bf16Tiles(const TiledArgs& a, const TaskOrder& order, char* scratch)
      : p_(a.problem),
        b_(order.now.b),
        row_blocks_(order.row_blocks),
        pairs_qk_((p_.head_dim_qk + 1) / 2),
        values_dim_((p_.head_dim_v + V::kRows - 1) / V::kRows * V::kRows),
        keys_buffer_(reinterpret_cast<Pair*>(scratch + a.at_keys)),
        values_buffer_(reinterpret_cast<Pair*>(scratch + a.at_values)) {
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
  /// They are copied, pair by pair.
  static bool has_dense_values(const Problem&, std::int64_t, std::int64_t) { return true; }
  const Tile& tile() const { return tile_; }
  /// Then what is masked needs no mark, for its products are 0.
  bool are_values_finite() {
    need_values();
    return is_finite();
  }

  /// q^T [pairs][W].
  static void pack(const Problem& p, const RowBlock<V>& row_block, Query* q_t) {
    const bool negate = p.negates_scores;
    for (int v = 0; v < row_block.vectors; ++v) {
      char* rows[V::kLanes];
      const int count = lane_rows(p.q, row_block, v * V::kLanes, rows);
      load_pair_columns<V>(rows, count, p.head_dim_qk, q_t + v * V::kLanes);
    }
    const std::int64_t size = negate ? (p.head_dim_qk + 1) / 2 * V::kWidth : 0;
    for (std::int64_t x = 0; x < size; ++x) q_t[x].bits ^= 0x80008000u;
  }

  /// scores^T of `visible` of the tile; `max` grows.
  template <int kVectors>
  REGARD_KERNEL_FN void scores(Bf16Tiles* self, const RowBlock<V>&, const Query* q_t, Tile visible,
                               T* to, T* max) {
    self->need_keys();
    ProductInput<Pair> a = self->keys_;
    a.data += (visible.begin - self->tile_.begin) * a.row_stride;
    PrefetchCursor* const ahead = &self->prefetch_.left;
    if (is_left(*ahead)) {
      scores_of<V, PairTerm<V>, kVectors, true>(a, q_t, to, visible.size, self->pairs_qk_, max,
                                                ahead);
    } else {
      scores_of<V, PairTerm<V>, kVectors>(a, q_t, to, visible.size, self->pairs_qk_, max);
    }
  }

  /// out_t = out_t * rescale + V^T * probs of `visible`; without out_t where rescale is null.
  /// `partial`: some probabilities may be masked.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate(Bf16Tiles* self, const RowBlock<V>&, T* probs, Tile visible,
                                   bool partial, const T* rescale, T* out_t) {
    self->need_values();
    const Pair* const pairs = reinterpret_cast<const Pair*>(probs);
    const std::int64_t dim = self->values_dim_;
    const ProductInput<Pair> a = values_from(*self, visible.begin);
    const std::int64_t k = (visible.size + 1) / 2;
    PrefetchCursor* const ahead = &self->prefetch_.left;
    if (partial && !self->is_finite()) {
      add_product<V, PairTerm<V>, kVectors, true>(a, pairs, out_t, dim, k, rescale);
    } else if (self->prefetch_.with_values && is_left(*ahead)) {
      add_product<V, PairTerm<V>, kVectors, false, true>(a, pairs, out_t, dim, k, rescale, ahead);
    } else {
      add_product<V, PairTerm<V>, kVectors, false>(a, pairs, out_t, dim, k, rescale);
    }
  }

  /// The same where each vector of rows has probabilities of some of `visible` alone, from an even
  /// key on, and values are finite.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate_ranges(Bf16Tiles* self, const T* probs, Tile visible,
                                          const StepRanges<kVectors>& keys, const T* rescale,
                                          T* out_t) {
    const Pair* const pairs = reinterpret_cast<const Pair*>(probs);
    const std::int64_t dim = self->values_dim_;
    const ProductInput<Pair> a = values_from(*self, visible.begin);
    StepRanges<kVectors> steps;
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      steps.begin[v] = keys.begin[v] / 2;
      steps.end[v] = (keys.end[v] + 1) / 2;
    }
    PrefetchCursor* const ahead = &self->prefetch_.left;
    if (self->prefetch_.with_values && is_left(*ahead)) {
      add_product_of_ranges<V, PairTerm<V>, kVectors, true>(a, pairs, out_t, dim, steps, rescale,
                                                            ahead);
    } else {
      add_product_of_ranges<V, PairTerm<V>, kVectors, false>(a, pairs, out_t, dim, steps, rescale,
                                                             ahead);
    }
  }

  /// Adds to `rows` rows the keys `visible`, of whose scores `probs` are, or of their pairs the
  /// ones that each kOutputRows rows see. `selects`: some may be hidden, and values are not finite.
  static void add_rows(Bf16Tiles* self, const OutputRows<V>& to, std::int64_t rows, const T* probs,
                       Tile visible, const semantics::KeyRange* pairs, bool selects) {
    self->need_values();
    const ProductInput<Pair> values = values_from(*self, visible.begin);
    const RowProduct<PairTerm<V>> of = {reinterpret_cast<const Pair*>(probs), values.data,
                                        values.step, (visible.size + 1) / 2, pairs};
    add_output_rows<V>(self->p_, to, rows, of, selects, &self->prefetch_.left);
  }

 protected:
  /// V^T in pairs from an even key of the tile on.
  REGARD_KERNEL_FN ProductInput<Pair> values_from(const Bf16Tiles& self, std::int64_t key) {
    return {self.values_buffer_ + (key - self.tile_.begin) / 2 * self.values_dim_, 1,
            self.values_dim_};
  }

  void need_keys() {
    if (has_keys_) return;
    has_keys_ = true;
    keys_ = load_pairs(k_, tile_, keys_buffer_);
  }

  /// [keys / 2][padded head_dim_v]
  void need_values() {
    if (has_values_) return;
    has_values_ = true;
    pair_keys<V>(v_, tile_, values_dim_, values_buffer_);
    value_pairs_ = (tile_.size + 1) / 2 * values_dim_;
  }

  bool is_finite() {
    if (finite_known_) return finite_;
    finite_known_ = true;
    finite_ = all_finite_pairs<V>({values_buffer_, value_pairs_, 1}, 1, value_pairs_);
    return finite_;
  }

  const Problem& p_;
  std::int64_t b_;
  std::int64_t row_blocks_;
  TaskPrefetch task_;
  std::int64_t pairs_qk_;
  std::int64_t values_dim_;
  Pair* keys_buffer_;
  Pair* values_buffer_;
  std::int64_t value_pairs_ = 0;  // that need_values() left there
  Tile tile_{};
  KvOperand k_{};
  KvOperand v_{};
  TilePrefetch prefetch_;
  ProductInput<Pair> keys_{};
  bool has_keys_ = false;
  bool has_values_ = false;
  bool finite_known_ = false;
  bool finite_ = true;
};

}  // namespace
}  // namespace regard::cpu
