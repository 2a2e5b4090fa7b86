// Tiles of K and V for decode rows: lanes lie along head_dim, so that K and V are read as they
// stand in memory, once for all rows of a row block. Memory bounds it, so the loops prefetch what
// the next tile reads. Included by float_tiles.inl and bf16_tiles.inl.

#pragma once

#include <cstdint>

#include "cpu/decode/dense_scores.h"
#include "cpu/decode/dot_columns.h"
#include "cpu/decode/group_loads.h"
#include "cpu/decode/group_products.h"
#include "cpu/decode/product_forms.h"
#include "cpu/decode/row_groups.h"
#include "cpu/decode/rows_out.h"
#include "cpu/decode/tile_ahead.h"
#include "cpu/decode/tile_rows.h"
#include "cpu/decode/word_products.h"
#include "cpu/forward/narrow_weights.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/tiled.h"
#include "cpu/forward/visible_keys.h"
#include "cpu/kv_tiles.h"
#include "cpu/rows.h"
#include "cpu/simd/product.h"
#include "cpu/split.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// kTypes: those of K and V that have loops of their own; tiles of other types are converted to
/// f32 first.
template <class V, Element... kTypes>
class DecodeTiles {
 public:
  using Vocabulary = V;
  using T = typename V::Scalar;
  using Query = T;
  using Out = RowsOut<V>;
  using Probs = FloatProbs<V>;
  static constexpr std::int64_t kKeyGroup = 1;  // visible keys begin at a multiple of it
  /// Scores are dot products of pairs, as exact as those of f32, where q is bf16 and K is or
  /// becomes it: half of the products, and no conversions.
  static constexpr bool kHasPairs = requires(typename V::Vec x, typename V::Int y) {
    V::dot(x, y, y);
  };
  /// That of a unit whose q, k and v are bf16 alone.
  static constexpr bool kPairsAlone = kHasPairs && sizeof...(kTypes) == 1;
  static constexpr bool kStartsOut = false;
  static constexpr bool kTakesRanges = false;
  static constexpr bool kAddsRows = false;
  static constexpr bool kReadsU4 = ((kTypes == Element::kU4) || ...);
  /// Where q is bf16, and k and v are or become it, probabilities are rounded to it, as those of
  /// prompts are: half of the products. An f32 output keeps them as they are.
  static constexpr bool kRoundsProbs = kHasPairs && requires(typename V::Int x) {
    V::pair_words(x, x, &x);
  };

  /// Whether int8 beside q of bf16 may be multiplied in words.
  static constexpr bool kHasWords =
      ((kTypes == Element::kI8) || ...) && requires(typename V::Int x) {
    V::add_words(x, x, x);
  };
  /// The same of u4, in bytes.
  static constexpr bool kHasGroupBytes = kReadsU4 && requires(typename V::Int x) {
    V::add_bytes(x, x, x);
  };

  REGARD_KERNEL_FN std::int64_t tile_kv(const TiledArgs& a) { return a.decode_tile_kv; }
  REGARD_KERNEL_FN std::int64_t query_size(const Problem& p) {
    const Element keys = type_of_keys(p);
    const bool has_words = multiplies_words(p, keys) || multiplies_groups(p, keys, p.head_dim_qk);
    return decode_query_size(decode_rows_of(p, V::kWidth), p.head_dim_qk, has_words);
  }

  DecodeTiles(const TiledArgs& a, const TaskOrder& order, char* scratch)
      : a_(a),
        p_(a.problem),
        b_(order.now.b),
        keys_buffer_(reinterpret_cast<T*>(scratch + a.at_keys)),
        values_buffer_(reinterpret_cast<T*>(scratch + a.at_values)) {}

  void start(TaskHead task_head, Tile tile) {
    tile_ = tile;
    if (task_head.head_kv != head_kv_) {
      const bool is_first = head_kv_ < 0;
      head_kv_ = task_head.head_kv;
      k_ = k_operand(p_, b_, head_kv_);
      v_ = v_operand(p_, b_, head_kv_);
      descale_ = static_cast<T>(descale_of(p_.descale_q, b_, head_kv_) * k_.descale);
      if (is_first) {
        pages_.start(k_, tile, tile_kv(a_));
        keys_ahead_ = task_ahead(a_, k_, task_head.count, pages_.run_keys());
        values_ahead_ = task_ahead(a_, v_, task_head.count, pages_.run_keys());
      }
    }
    if (pages_.run_keys() > 0 && task_head.index == 0) {
      pages_.touch(k_, v_, keys_ahead_, values_ahead_);
      pages_.find(k_, tile);
    }
    set_tile_rows<V>(k_, tile, pages_, has_loop(k_.type), {keys_buffer_, key_scales_}, &keys_);
    set_tile_rows<V>(v_, tile, pages_, has_loop(v_.type), {values_buffer_, value_scales_},
                     &values_);
    next_keys_ = lines_ahead(k_, keys_ahead_, task_head.index, pages_, tile);
    next_values_ = lines_ahead(v_, values_ahead_, task_head.index, pages_, tile);
    pages_.prefetch_some(&next_keys_);
  }
  const Tile& tile() const { return tile_; }
  static bool are_values_finite() { return false; }  // not looked at

  static void pack(const Problem& p, const RowBlock<V>& row_block, Query* q) {
    const Element type = k_operand(p, row_block.b, row_block.head[0] / p.group_size).type;
    if constexpr (kHasPairs) {
      if (dots_pairs(p, type)) return DotColumns<V, true>::pack(p, row_block, q);
    }
    DotColumns<V, false>::pack(p, row_block, q);
    if constexpr (kHasWords) {
      if (dots_words(p, type)) Words::pack(p, row_block.rows, q);
    }
    if constexpr (kHasGroupBytes) {
      if (dots_groups(p, type)) Groups::pack(p, row_block.rows, q);
    }
  }

  /// scores^T of `visible` of the tile; `max` grows.
  template <int kVectors>
  REGARD_KERNEL_FN void scores(DecodeTiles* self, const RowBlock<V>& row_block, const Query* q,
                               Tile visible, T* to, T* max) {
    for (std::int64_t j = 0; j < visible.size; ++j) {  // lanes without a row are computed on 0
      for (int v = 0; v < kVectors; ++v) V::store(to + j * V::kWidth + v * V::kLanes, V::set(0));
    }
    self->dot_tile(row_block.rows, q, visible, {to, 0});
    if (self->keys_.has_row_scales) {
      multiply_keys<V, kVectors>(self->key_scales_ + (visible.begin - self->tile_.begin),
                                 visible.size, to);
    }
    accumulate_max<V>(kVectors, visible.size, to, max);
  }

  /// out = out * rescale + probs^T * V of `visible`. `partial`: some probabilities may be masked.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate(DecodeTiles* self, const RowBlock<V>& row_block, T* probs,
                                   Tile visible, bool partial, const T* rescale, T* out) {
    if (self->values_.has_row_scales) {
      multiply_keys<V, kVectors>(self->value_scales_ + (visible.begin - self->tile_.begin),
                                 visible.size, probs);
    }
    self->add_tile(row_block.rows, {probs, 0}, visible, partial, rescale, out);
  }

  /// Whether process_whole may: nothing edits the scores or probabilities of what all rows see.
  REGARD_KERNEL_FN bool is_whole(const Problem& p, VisibleKeys seen) {
    return seen.all && seen.range.size % kDenseKeys == 0 && !p.prescale_scores &&
           p.dropout.threshold == 0 && !rounds_probs(p);
  }

  /// Keys of which is_whole() is true, from scores to outputs; the bits are those of process_tile
  /// but where words or bytes are multiplied and where probabilities are rounded.
  static void process_whole(DecodeTiles* self, RowBlock<V>* row_block, const Query* q, Tile visible,
                            T* scores, T* out) {
    const Problem& p = self->p_;
    const std::int64_t rows = row_block->rows, keys = visible.size;
    const std::int64_t at = visible.begin - self->tile_.begin;
    const Place place{scores, keys};
    alignas(64) T max[V::kWidth];
    alignas(64) T rescale[V::kWidth];
    for (int w = 0; w < V::kWidth; w += V::kLanes) V::store(max + w, minus_infinity<V>());
    self->dot_whole(rows, q, visible, place);
    self->pages_.prefetch_some(&self->next_values_);
    const bool has_key_scales = self->keys_.has_row_scales,
               has_value_scales = self->values_.has_row_scales;
    for_row_groups(
        rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
          using Dense = DenseScores<V, slots_of(decltype(size)::value)>;
          T* const of_rows = scores + r * keys;
          if (has_key_scales) Dense::multiply_keys(keys, self->key_scales_ + at, of_rows);
          Dense::store_max(keys, of_rows, r, max);
        });
    update_max<V>(p, row_block->vectors, max, &row_block->state, rescale);
    self->pages_.prefetch_some(&self->next_values_);
    for_row_groups(
        rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
          using Dense = DenseScores<V, slots_of(decltype(size)::value)>;
          T* const of_rows = scores + r * keys;
          Dense::exponentiate(keys, static_cast<T>(p.exp2_scale), of_rows, row_block->state.max + r,
                              row_block->state.sum + r);
          if (has_value_scales) Dense::multiply_keys(keys, self->value_scales_ + at, of_rows);
        });
    self->pages_.prefetch_some(&self->next_values_);
    self->add_whole(rows, visible, place, rescale, out);
  }

 private:
  using Words = WordProducts<V>;
  using Groups = GroupProducts<V>;
  using Loads = GroupLoads<V>;
  using Place = ScorePlace<V>;

  REGARD_KERNEL_FN bool has_loop(Element type) { return ((type == kTypes) || ...); }
  /// Of a K of this type.
  REGARD_KERNEL_FN bool dots_pairs(const Problem& p, Element type) {
    return kPairsAlone || (kHasPairs && multiplies_pairs(p, type));
  }

  /// Dense scores.
  void dot_whole(std::int64_t rows, const Query* q, Tile visible, Place to) {
    if constexpr (kHasWords) {
      if (dots_words(p_, keys_.type) && Words::are_finite(p_, rows, q) &&
          (visible.begin - tile_.begin) % kRunKeys == 0) {
        RepeatedPrefetch ahead = repeated<V>(next_keys_, row_groups(rows), k_, keys_);
        const std::int64_t begin = visible.begin - tile_.begin;
        return for_row_groups(
            rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
              Words::template dot_keys<decltype(size)::value>(
                  p_, q, r, {&keys_, begin, visible.size}, to.first + r * visible.size, &ahead);
            });
      }
    }
    if constexpr (kHasGroupBytes) {
      if (dots_groups(p_, k_.type) && Words::are_finite(p_, rows, q) &&
          (visible.begin - tile_.begin) % kRunKeys == 0) {
        RepeatedPrefetch ahead = repeated<V>(next_keys_, row_groups(rows), k_, keys_);
        const WordRows keys{&keys_, visible.begin - tile_.begin, visible.size};
        bool all = true;
        for_row_groups(
            rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
              all &= Groups::template dot_keys<decltype(size)::value>(
                  p_, q, r, keys, to.first + r * visible.size, &ahead);
            });
        if (all) return;
      }
    }
    dot_tile(rows, q, visible, to);
  }

  /// The same for outputs and dense probabilities, which V's scales are in.
  void add_whole(std::int64_t rows, Tile visible, Place probs, const T* rescale, T* out) {
    const bool is_rounded = p_.out.type == Element::kBf16;
    const bool in_steps = is_rounded && p_.head_dim_v % Words::kStep == 0;
    if constexpr (kHasWords) {
      if (multiplies_words(p_, values_.type) && in_steps) {
        return add_pairs<ByteValues<V>, Element::kI8>(rows, visible, probs, rescale, out);
      }
    }
    if constexpr (kRoundsProbs) {
      if (in_steps && (kPairsAlone || rounds_f8_probs(p_, k_.type, v_.type, values_.type))) {
        return add_pairs<Bf16Values<V>, Element::kBf16>(rows, visible, probs, rescale, out);
      }
    }
    if constexpr (kHasGroupBytes) {
      if (multiplies_groups(p_, values_.type, p_.head_dim_v) && is_rounded &&
          (visible.begin - tile_.begin) % kRunKeys == 0) {
        RepeatedPrefetch ahead = repeated<V>(next_values_, row_groups(rows), v_, values_);
        const WordRows values{&values_, visible.begin - tile_.begin, visible.size};
        const std::int64_t step = Out::row_size(p_), keys = visible.size;
        return for_row_groups(
            rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
              constexpr int kRows = decltype(size)::value;
              if (!Groups::template add_values<kRows>(
                      probs.first + r * keys, values,
                      {out + r * step, step, p_.head_dim_v, rescale + r}, &ahead)) {
                add_group<Element::kU4, kRows, false>(r, probs, visible, rescale, out, &ahead);
              }
            });
      }
    }
    add_tile(rows, probs, visible, false, rescale, out);
  }

  /// Pairs of keys, or floats where weights are not finite.
  template <class Values, Element kType>
  void add_pairs(std::int64_t rows, Tile visible, Place probs, const T* rescale, T* out) {
    RepeatedPrefetch ahead = repeated<V>(next_values_, row_groups(rows), v_, values_);
    const WordRows values{&values_, visible.begin - tile_.begin, visible.size};
    const std::int64_t step = Out::row_size(p_), keys = visible.size;
    for_row_groups(
        rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
          constexpr int kRows = decltype(size)::value;
          WordWeights<slots_of(kRows), Values::kIsBf16> weights;
          if (weights.set(keys, probs.first + r * keys, &weights)) {
            Words::template add_values<Values, kRows>(
                weights, values, {out + r * step, step, p_.head_dim_v, rescale + r}, &ahead);
          } else {
            add_group<kType, kRows, false>(r, probs, visible, rescale, out, &ahead);
          }
        });
  }

  void dot_tile(std::int64_t rows, const Query* q, Tile visible, Place to) {
    if constexpr (kHasPairs) {
      if (dots_pairs(p_, k_.type)) return dot_keys<Element::kBf16, true>(rows, q, visible, to);
    }
    if constexpr (!kPairsAlone) {
      with_element<kTypes...>(
          keys_.type, [&](auto type) __attribute__((always_inline)) {
            dot_keys<decltype(type)::value, false>(rows, q, visible, to);
          });
    }
  }

  void add_tile(std::int64_t rows, Place probs, Tile visible, bool partial, const T* rescale,
                T* out) {
    with_element<kTypes...>(
        values_.type, [&](auto type) __attribute__((always_inline)) {
          constexpr Element kType = decltype(type)::value;
          if (partial) {
            add_values<kType, true>(rows, probs, visible, rescale, out);
          } else {
            add_values<kType, false>(rows, probs, visible, rescale, out);
          }
        });
  }

  /// Lines that vectors of K or V are in memory.
  template <Element kType>
  REGARD_KERNEL_FN constexpr int lines_of_vectors(int count) {
    return static_cast<int>(lines_of(bytes_of(kType, count * V::kLanes)));
  }
  /// What prefetch_lines takes for them: with AVX-512 one row of q alone prefetches in a loop.
  template <int kRows, int kLines>
  static constexpr int kUnrolledLines = V::kLanes == 16 && kRows == 1 ? 0 : kLines;

  /// Keys in blocks of kLanes: as many sums of products as fill a vector when added up.
  template <Element kType, bool kPairs>
  void dot_keys(std::int64_t rows, const T* q, Tile visible, Place to) {
    RepeatedPrefetch ahead = repeated<V>(next_keys_, row_groups(rows), k_, keys_);
    const std::int64_t at = visible.begin - tile_.begin;
    std::int64_t count = 0;
    for (std::int64_t j = 0; j < visible.size; j += count) {
      count = run_from(keys_, at + j, visible.size - j);
      if (count > V::kLanes) count = V::kLanes;
      const KeyRows keys = rows_from(keys_, at + j);
      for_row_groups(
          rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
            constexpr int kRows = decltype(size)::value;
            constexpr int kKeys = V::kLanes / slots_of(kRows);
            const T* const query = q + r * dot_row_size(p_.head_dim_qk);
            T* scores = Place::template at<kRows>(to, r, j);
            const std::int64_t step = Place::template step<kRows>(to);
            std::int64_t x = 0;
            for (; x + kKeys <= count; x += kKeys, scores += kKeys * step) {
              dot_block<kType, kPairs, kRows, kKeys>(*this, query, behind(keys_, keys, x),
                                                     {scores, step}, &ahead);
            }
            for (; x < count; ++x, scores += step) {
              dot_block<kType, kPairs, kRows, 1>(*this, query, behind(keys_, keys, x),
                                                 {scores, step}, &ahead);
            }
          });
    }
  }

  /// Of some rows, `step` from key to key.
  struct KeyScores {
    T* first;
    std::int64_t step;
  };

  /// Products of kRows rows and kKeys keys. A row's sum has the same order wherever it stands among
  /// them.
  template <Element kType, bool kPairs, int kRows, int kKeys>
  REGARD_KERNEL_FN void dot_block(const DecodeTiles& self, const T* q, const KeyRows& rows,
                                  KeyScores to, RepeatedPrefetch* ahead) {
    using Columns = DotColumns<V, kPairs>;
    using Column = typename Columns::Column;
    constexpr std::int64_t kStep = Columns::kStep;
    constexpr int kSlots = slots_of(kRows);
    const std::int64_t dim = self.p_.head_dim_qk;
    const std::int64_t step = dot_row_size(dim);
    constexpr int kPrefetchKeys = kKeys < 8 ? kKeys : 4;
    constexpr int kLines = kKeys == 1 ? 0
                           : kType == Element::kU4
                               ? lines_of_vectors<kType>(kKeys * kGroup / V::kLanes)
                               : lines_of_vectors<kType>(kPrefetchKeys * kStep / V::kLanes);
    const std::int64_t lines = lines_each(*ahead, kLines);
    typename V::Vec sum[V::kLanes] = {};
    const auto add = [&](std::int64_t d, const char* first, std::int64_t stride, auto load)
        __attribute__((always_inline)) {
      Column query[kRows];
      REGARD_UNROLL for (int r = 0; r < kRows; ++r) query[r] = Columns::of_query(q + r * step, d);
      REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
        if (kLines > 0 && i % kPrefetchKeys == 0) {
          prefetch_lines<kUnrolledLines<kRows, kLines>, kHasBf16OfF8<V>>(&ahead->cursor, lines);
        }
        const Column key = load(first + i * stride);
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
          sum[i * kSlots + r] = Columns::add(sum[i * kSlots + r], query[r], key);
        }
      }
    };
    std::int64_t d = 0;
    if constexpr (kType == Element::kU4) {
      for (; d < dim; d += kGroup) {
        prefetch_lines<kUnrolledLines<kRows, kLines>, kHasBf16OfF8<V>>(&ahead->cursor, lines);
        dot_group<kRows, kKeys>(self, q + d, rows, d / kGroup, sum);
      }
    }
    REGARD_UNROLL_4 for (; d + kStep <= dim; d += kStep) {
      add(
          d, rows.first + d * element_bytes(kType), self.keys_.stride,
          [](const char* at)
              __attribute__((always_inline)) { return Columns::template of_key<kType>(at); });
    }
    if (d < dim) {  // by way of the stack, or GCC spills the sums of the loop above
      alignas(64) char tail[kKeys][sizeof(Column)];
      for (int i = 0; i < kKeys; ++i) {
        const Column column =
            Columns::template of_tail<kType>(rows.first + i * self.keys_.stride, d, dim);
        __builtin_memcpy(tail[i], &column, sizeof(column));
      }
      add(
          d, tail[0], sizeof(tail[0]),
          [](const char* at) __attribute__((always_inline)) { return Columns::load(at); });
    }
    auto sums = V::sum_rows(sum);
    if constexpr (kPairs && !kPairsAlone) sums = sums * V::set(self.descale_);
    if constexpr (kType == Element::kF16) sums = sums * V::set(self.keys_.factor);
    if (kKeys * kSlots == V::kLanes && to.step == kSlots) return V::store(to.first, sums);
    alignas(64) T total[V::kLanes];
    V::store(total, sums);
    for (int i = 0; i < kKeys; ++i) {
      __builtin_memcpy(to.first + i * to.step, total + i * kSlots, kRows * sizeof(T));
    }
  }

  /// Group g of some keys, added to the sums of dot_block; `q` at the group's first column. A key's
  /// vectors take turns, so that its scale and minimum stay in registers.
  template <int kRows, int kKeys>
  REGARD_KERNEL_FN void dot_group(const DecodeTiles& self, const T* q, const KeyRows& rows,
                                  std::int64_t g, typename V::Vec* sum) {
    const std::int64_t step = dot_row_size(self.p_.head_dim_qk);
    constexpr int kSlots = slots_of(kRows);
    REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
      const char* const codes =
          rows.first + i * self.keys_.stride + bytes_of(Element::kU4, g * kGroup);
      const auto group = Loads::group_at(rows.groups + i * self.keys_.groups_stride, g);
      REGARD_UNROLL for (int d = 0; d < kGroup; d += V::kLanes) {
        const auto key = Loads::load_from(group, codes + d / 2);
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
          sum[i * kSlots + r] = V::fma(V::load(q + r * step + d), key, sum[i * kSlots + r]);
        }
      }
    }
  }

  /// The rows of the tile's V are in the L1 while the rows of the row block take their turns.
  template <Element kType, bool kSelect>
  void add_values(std::int64_t rows, Place probs, Tile visible, const T* rescale, T* out) {
    RepeatedPrefetch ahead = repeated<V>(next_values_, row_groups(rows), v_, values_);
    for_row_groups(
        rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
          add_group<kType, decltype(size)::value, kSelect>(r, probs, visible, rescale, out, &ahead);
        });
  }

  /// Rows from r on.
  template <Element kType, int kRows, bool kSelect>
  inline __attribute__((always_inline)) void add_group(std::int64_t r, Place probs, Tile visible,
                                                       const T* rescale, T* out,
                                                       RepeatedPrefetch* ahead) const {
    const std::int64_t step = Out::row_size(p_);
    add_rows_of<kType, kRows, kSelect>(
        {&values_, visible.begin - tile_.begin, visible.size},
        {Place::template at<kRows>(probs, r, 0), Place::template step<kRows>(probs)},
        {out + r * step, step, p_.head_dim_v, rescale + r}, ahead);
  }

  /// Rows of V, and rows of out that grow by them.
  struct Values {
    const TileRows* rows;
    std::int64_t begin;
    std::int64_t count;
  };
  struct Sums {
    T* first;
    std::int64_t step;
    std::int64_t dim;
    const T* rescale;
  };

  /// kRows rows of out, in blocks of 2/3 of the sums of a product, 3 rows as 4; these on AVX2 in
  /// blocks of 3 vectors, where 2 took a tenth more instructions, but where masked ones are
  /// selected, which needs registers. Not 3 and 1 where 2 and 2 do.
  template <Element kType, int kRows, bool kSelect>
  static void add_rows_of(const Values& values, KeyScores weights, const Sums& out,
                          RepeatedPrefetch* ahead) {
    constexpr bool kInGroups = kType == Element::kU4;
    constexpr int kUsual = V::kRows * V::kVectors * 2 / 3 / (kRows == 3 ? 4 : kRows);
    constexpr int kVectors = kInGroups                               ? vectors_in_group(kUsual)
                             : kUsual == 2 && kRows >= 3 && !kSelect ? 3
                                                                     : kUsual;
    constexpr std::int64_t kUneven = kVectors == 3 ? 4 * V::kLanes : -1;
    std::int64_t d = 0;
    const auto add = [&](auto count) __attribute__((always_inline)) {
      constexpr int kCount = decltype(count)::value;
      add_block<kType, kRows, kCount, kSelect>(values, weights, out, d, ahead);
      d += kCount * V::kLanes;
    };
    while (d + kVectors * V::kLanes <= out.dim && out.dim - d != kUneven) add(Count<kVectors>{});
    while (d + 2 * V::kLanes <= out.dim) add(Count<2>{});
    while (d < out.dim) add(Count<1>{});
  }

  /// At most so many, in a block that lies within a group.
  REGARD_KERNEL_FN constexpr int vectors_in_group(int max) {
    int count = kGroup / V::kLanes;
    while (count > max) count /= 2;
    return count;
  }

  template <Element kType, int kRows, int kVectors, bool kSelect>
  REGARD_KERNEL_FN void add_block(const Values& values, KeyScores weights, const Sums& out,
                                  std::int64_t d, RepeatedPrefetch* ahead) {
    T* const to = out.first + d;
    typename V::Vec sum[kRows][kVectors] = {};  // the tile by itself: a short chain of additions
    const std::int64_t row_bytes = values.rows->stride, groups_bytes = values.rows->groups_stride;
    const char* row = nullptr;
    const char* groups = nullptr;
    const auto value_at = [&](int v) __attribute__((always_inline)) {
      if constexpr (kType == Element::kU4) {
        return Loads::load_from(Loads::group_at(groups, d / kGroup),
                                row + bytes_of(kType, d + v * V::kLanes));
      }
      return kVectors > 1 ? load_vector<V>(kType, row + bytes_of(kType, d + v * V::kLanes))
                          : load_at<V, kType>(row, d, out.dim);
    };
    const auto add = [&](int r, int v, typename V::Vec value, typename V::Vec weight)
        __attribute__((always_inline)) {
      sum[r][v] = kSelect ? ScalarTerm<V>::add_visible(sum[r][v], value, weight)
                          : ScalarTerm<V>::add(sum[r][v], value, weight);
    };
    constexpr int kLines = lines_of_vectors<kType>(kVectors);
    const std::int64_t lines = lines_each(*ahead, kLines);
    const auto add_key = [&]() __attribute__((always_inline)) {
      prefetch_lines<kUnrolledLines<kRows, kLines>, kHasBf16OfF8<V>>(&ahead->cursor, lines);
      if constexpr (kRows < kVectors) {  // the fewer ones wait in registers
        typename V::Vec weight[kRows];
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) weight[r] = V::set(weights.first[r]);
        REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
          const auto value = value_at(v);
          REGARD_UNROLL for (int r = 0; r < kRows; ++r) add(r, v, value, weight[r]);
        }
      } else {
        typename V::Vec value[kVectors];
        REGARD_UNROLL for (int v = 0; v < kVectors; ++v) value[v] = value_at(v);
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
          const auto weight = V::set(weights.first[r]);
          REGARD_UNROLL for (int v = 0; v < kVectors; ++v) add(r, v, value[v], weight);
        }
      }
      row += row_bytes;
      if constexpr (kType == Element::kU4) groups += groups_bytes;
      weights.first += weights.step;
    };
    for (std::int64_t j = 0, run = 0; j < values.count; j += run) {
      run = run_from(*values.rows, values.begin + j, values.count - j);
      const KeyRows from = rows_from(*values.rows, values.begin + j);
      row = from.first;
      groups = from.groups;
      if constexpr (kVectors > 1) {
        REGARD_UNROLL_4 for (std::int64_t x = 0; x < run; ++x) add_key();
      } else {  // may end within a vector, by way of the stack
        for (std::int64_t x = 0; x < run; ++x) add_key();
      }
    }
    REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
      const auto keep = V::set(out.rescale[r]);
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        T* const at = to + r * out.step + v * V::kLanes;
        if constexpr (kType == Element::kF16) sum[r][v] *= V::set(values.rows->factor);
        V::store(at, V::fma(V::load(at), keep, sum[r][v]));
      }
    }
  }

  const TiledArgs& a_;
  const Problem& p_;
  std::int64_t b_;
  T* keys_buffer_;
  T* values_buffer_;
  // Where rows that are not converted have scales; a vector more may be read.
  alignas(64) T key_scales_[kMaxDecodeTileKv + V::kLanes] = {};
  alignas(64) T value_scales_[kMaxDecodeTileKv + V::kLanes] = {};
  std::int64_t head_kv_ = -1;
  KvOperand k_{};  // of that head
  KvOperand v_{};
  TileRows keys_{};
  TileRows values_{};
  Tile tile_{};
  T descale_ = 1;  // of q and K, where their pairs are multiplied as they are
  TaskAhead keys_ahead_{};
  TaskAhead values_ahead_{};
  LinesCursor next_keys_{};
  LinesCursor next_values_{};
  PageRuns pages_;
};

}  // namespace
}  // namespace regard::cpu
