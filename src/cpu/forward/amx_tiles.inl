// Products of bf16 by AMX, which multiplies 16 rows of 32 elements by 16 columns: scores^T = K *
// q^T and out^T = V^T * probs. The forms of q^T and probs are those of bf16_tiles.inl, K is read in
// place where its rows are whole registers, and V is transposed. Included by isa_amx_bf16.cc.

#include <cstdint>

#include "cpu/forward/amx_transpose.h"
#include "cpu/forward/bf16_tiles.inl"
#include "cpu/simd/amx_tiles.h"
#include "cpu/simd/simd_avx512.h"

namespace regard::cpu {
namespace {

template <class V>
class AmxTiles : public Bf16Tiles<V> {
  using Base = Bf16Tiles<V>;

 public:
  using typename Base::Query;
  using typename Base::T;
  /// Decode rows in f32, 1.3 times as fast as in pairs with four heads on K and V in the L3: CPUs
  /// with AMX start a product of pairs every second cycle, where two of floats start each cycle.
  using Dot = DecodeTiles<simd_avx512::Simd<T>, Element::kBf16>;
  /// Products are a quarter of the time: what is done once a tile counts. 1.14 times as fast at
  /// head_dim 128, 1.03 at 64; four times as long it is no faster.
  static constexpr std::int64_t kTileFactor = 2;
  static constexpr bool kStartsOut = false;
  static constexpr bool kTakesRanges = false;
  static constexpr bool kAddsRows = false;
  /// A product adds up the even and the odd keys of its 32 apart: which they are must not depend on
  /// what other rows of a block see.
  static constexpr std::int64_t kKeyGroup = amx::kDepth;
  static constexpr std::int64_t kRowBytes = V::kWidth * sizeof(T);

  /// As far apart as floats are, with room for the zeros of a whole register.
  REGARD_KERNEL_FN std::int64_t query_size(const Problem& p) {
    return padded_head_dim(p.head_dim_qk) * V::kWidth;
  }

  AmxTiles(const TiledArgs& a, const TaskOrder& order, char* scratch)
      : Base(a, order, scratch),
        uses_registers_(fills_registers(a.problem)),
        steps_qk_(round_up(a.problem.head_dim_qk, amx::kDepth) / amx::kDepth) {}

  /// Not looked at.
  static bool are_values_finite() { return false; }

  /// As Bf16Tiles does, with zeros up to a whole register.
  static void pack(const Problem& p, const RowBlock<V>& row_block, Query* q_t) {
    Base::pack(p, row_block, q_t);
    if (!fills_registers(p)) return;
    const std::int64_t end = round_up(p.head_dim_qk, amx::kDepth) / 2;
    for (std::int64_t x = (p.head_dim_qk + 1) / 2 * V::kWidth; x < end * V::kWidth; ++x)
      q_t[x] = {0};
  }

  template <int kVectors>
  REGARD_KERNEL_FN void scores(AmxTiles* self, const RowBlock<V>& row_block, const Query* q_t,
                               Tile visible, T* to, T* max) {
    if (!self->uses_registers_) {
      return Base::template scores<kVectors>(self, row_block, q_t, visible, to, max);
    }
    self->need_keys();
    const std::int64_t row_bytes = self->keys_.row_stride * static_cast<std::int64_t>(sizeof(Pair));
    const char* const first = reinterpret_cast<const char*>(self->keys_.data) +
                              (visible.begin - self->tile_.begin) * row_bytes;
    const auto multiply = [&](std::int64_t j, auto blocks) __attribute__((always_inline)) {
      constexpr int kBlocks = decltype(blocks)::value;
      amx::Sums<kBlocks, kVectors>::multiply(first + j * row_bytes, row_bytes, q_t,
                                             to + j * V::kWidth, kRowBytes, self->steps_qk_);
      self->template prefetch<kBlocks>(self->steps_qk_);
    };
    const std::int64_t size = round_up(visible.size, amx::kRows);
    std::int64_t j = 0;
    for (; j + 2 * amx::kRows <= size; j += 2 * amx::kRows) multiply(j, Count<2>{});
    if (j < size) multiply(j, Count<1>{});
    accumulate_max<V>(kVectors, visible.size, to, max);
  }

  template <int kVectors>
  REGARD_KERNEL_FN void accumulate(AmxTiles* self, const RowBlock<V>& row_block, T* probs,
                                   Tile visible, bool partial, const T* rescale, T* out_t) {
    if (!self->uses_registers_) {
      return Base::template accumulate<kVectors>(self, row_block, probs, visible, partial, rescale,
                                                 out_t);
    }
    self->need_values();
    const std::int64_t pairs = (visible.size + 1) / 2, whole = round_up(pairs, amx::kRows);
    Pair* const probs_pairs = reinterpret_cast<Pair*>(probs);
    const Pair* const values = self->values_buffer_ + (visible.begin - self->tile_.begin) / 2;
    // What is hidden or not there is multiplied by 0, so that it must be finite. In every
    // tile, since which product is taken must not depend on what rows see of it.
    if (!self->is_finite()) {
      const ProductInput<Pair> a = {values, self->row_pairs_, 1};
      return add_product<V, PairTerm<V>, kVectors, true>(a, probs_pairs, out_t, self->values_dim_,
                                                         pairs, rescale);
    }
    for (std::int64_t x = pairs * V::kWidth; x < whole * V::kWidth; x += V::kLanes) {
      V::store(probs + x, V::set(0));
    }
    self->template add_values<kVectors>(values, probs_pairs, whole / amx::kRows, rescale, out_t);
  }

 private:
  /// A register of 32 elements of head_dim costs what one of 16 does; buffers have room from 16 on.
  static bool fills_registers(const Problem& p) {
    return p.head_dim_qk >= amx::kRows && p.head_dim_v >= amx::kRows;
  }

  /// out_t = out_t * rescale + V^T * probs. The tile is summed on its own first.
  template <int kVectors>
  __attribute__((always_inline)) void add_values(const Pair* values, const Pair* probs,
                                                 std::int64_t steps, const T* rescale, T* out_t) {
    constexpr int kBlocks = 2;
    const std::int64_t dim = this->p_.head_dim_v;
    alignas(64) T sums[kBlocks * amx::kRows * V::kWidth];
    const std::int64_t row_bytes = row_pairs_ * static_cast<std::int64_t>(sizeof(Pair));
    const auto add = [&](std::int64_t d, auto blocks) __attribute__((always_inline)) {
      constexpr int kCount = decltype(blocks)::value;
      amx::Sums<kCount, kVectors>::multiply(reinterpret_cast<const char*>(values) + d * row_bytes,
                                            row_bytes, probs, sums, kRowBytes, steps);
      if (this->prefetch_.with_values) this->template prefetch<kCount>(steps);
      const std::int64_t rows = kCount * amx::kRows < dim - d ? kCount * amx::kRows : dim - d;
      typename V::Vec by[kVectors];
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) by[v] = V::load(rescale + v * V::kLanes);
      T* const out = out_t + d * V::kWidth;
      for (std::int64_t i = 0; i < rows; ++i) {
        REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
          const std::int64_t at = i * V::kWidth + v * V::kLanes;
          V::store(out + at, V::fma(V::load(out + at), by[v], V::load(sums + at)));
        }
      }
    };
    std::int64_t d = 0;
    for (; d + kBlocks * amx::kRows <= round_up(dim, amx::kRows); d += kBlocks * amx::kRows) {
      add(d, Count<kBlocks>{});
    }
    if (d < dim) add(d, Count<1>{});
  }

  /// What the products of other units prefetch in as many steps of the same block.
  template <int kBlocks>
  __attribute__((always_inline)) void prefetch(std::int64_t steps) {
    for (std::int64_t x = 0; x < kBlocks * steps * 2 && is_left(this->prefetch_.left); ++x) {
      prefetch_rows<V::kRows>(&this->prefetch_.left);
    }
  }

  /// In place where every row is whole registers, and there are 16 for the last key.
  void need_keys() {
    if (this->has_keys_) return;
    const std::int64_t size = this->tile_.size, last = round_up(size, amx::kRows) - size;
    if (this->k_.dim % amx::kDepth == 0 && last == 0) return Base::need_keys();
    this->has_keys_ = true;
    const std::int64_t row_pairs = steps_qk_ * amx::kRows;
    this->keys_ = copy_pairs(this->k_, this->tile_, row_pairs, this->keys_buffer_);
    for (std::int64_t x = size * row_pairs; x < (size + last) * row_pairs; ++x) {
      this->keys_buffer_[x] = {0};
    }
  }

  /// V^T: [head_dim_v in whole registers][pairs of keys], zeros for keys past the tile's end.
  void need_values() {
    if (this->has_values_) return;
    this->has_values_ = true;
    row_pairs_ = round_up(this->tile_.size, amx::kDepth) / 2;
    this->value_pairs_ = round_up(this->v_.dim, amx::kRows) * row_pairs_;
    transpose_values();
  }

  /// Products that begin within a register read up to one past the last row.
  void transpose_values() {
    for (std::int64_t x = 0; x < V::kLanes; ++x) this->values_buffer_[this->value_pairs_ + x] = {0};
    for (std::int64_t pair = 0; pair < row_pairs_; pair += V::kLanes) {
      const char* rows[2 * V::kLanes];
      const int count = keys_of(2 * pair, rows);
      transpose_keys<V>(rows, count, this->v_.dim, this->values_buffer_ + pair, row_pairs_);
    }
  }

  /// The rows of keys [first, first + 32) of the tile; how many there are.
  int keys_of(std::int64_t first, const char** rows) const {
    int count = 0;
    for (; count < 2 * V::kLanes && first + count < this->tile_.size; ++count) {
      rows[count] = row_of(this->v_, this->tile_.begin + first + count);
    }
    return count;
  }

  amx::Configuration configuration_;
  bool uses_registers_;
  std::int64_t steps_qk_;
  std::int64_t row_pairs_ = 0;  // of V^T: those of the tile in whole registers
};

}  // namespace
}  // namespace regard::cpu
