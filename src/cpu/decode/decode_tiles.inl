// Tiles of K and V for decode rows: lanes lie along head_dim, so that K and V are read as they
// stand in memory, once for all rows of a row block. Memory bounds it, so the loops prefetch what
// the next tile reads. Included by float_tiles.inl and bf16_tiles.inl.

#include <cstdint>

#include "cpu/forward/row_block.h"
#include "cpu/forward/softmax.h"
#include "cpu/forward/tiled.h"
#include "cpu/kv_tiles.h"
#include "cpu/prefetch.h"
#include "cpu/rows.h"
#include "cpu/simd/product.h"
#include "cpu/split.h"

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// The output of a row block whose lanes lie along head_dim: [rows][dot_row_size].
template <class V>
struct RowsOut {
  using T = typename V::Scalar;

  REGARD_KERNEL_FN std::int64_t row_size(const Problem& p) { return dot_row_size(p.head_dim_v); }
  REGARD_KERNEL_FN std::int64_t size(const Problem& p) {
    return max_decode_rows(V::kWidth) * row_size(p);
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
  static void note_amax(const Problem& p, const RowBlock<V>& row_block, const T* out) {
    if (!p.out_amax.present) return;
    std::uint32_t max = 0;
    for (int w = 0; w < row_block.rows; ++w) {
      const T share = inverse_sum(p, row_block, w);
      for (std::int64_t d = 0; d < p.head_dim_v; ++d) {
        max = larger_magnitude(max, static_cast<float>(out[w * row_size(p) + d] * share));
      }
    }
    raise_amax(p.out_amax, 0, f32_of(max));
  }

  static void write(const Problem& p, const RowBlock<V>& row_block, T* out) {
    note_amax(p, row_block, out);
    const std::int64_t bytes = element_bytes(p.out.type);
    for (int w = 0; w < row_block.rows; ++w) {
      const auto share = V::set(inverse_sum(p, row_block, w));
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

/// An element type known to the compiler.
template <Element kType>
struct ElementConstant {
  static constexpr Element value = kType;
};

/// Calls f(ElementConstant) for the one of kTypes that `type` is; the last where it is none of
/// them.
template <Element kFirst, Element... kOthers, class F>
REGARD_KERNEL_FN void with_element(Element type, F f) {
  if constexpr (sizeof...(kOthers) > 0) {
    if (type != kFirst) return with_element<kOthers...>(type, f);
  }
  f(ElementConstant<kFirst>{});
}

/// Calls f(first, Count<size>) for blocks of 4 rows, and one of what is left.
template <class F>
REGARD_KERNEL_FN void for_row_groups(std::int64_t rows, F f) {
  std::int64_t r = 0;
  for (; r + 4 <= rows; r += 4) f(r, Count<4>{});
  switch (rows - r) {
    case 3: return f(r, Count<3>{});
    case 2: return f(r, Count<2>{});
    case 1: return f(r, Count<1>{});
    default: return;
  }
}

/// How many they are.
REGARD_KERNEL_FN std::int64_t row_groups(std::int64_t rows) { return (rows + 3) / 4; }

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
  static constexpr bool kStartsOut = false;

  REGARD_KERNEL_FN std::int64_t tile_kv(const TiledArgs&) { return kDecodeTileKv; }
  REGARD_KERNEL_FN std::int64_t query_size(const Problem& p) {
    return max_decode_rows(V::kWidth) * dot_row_size(p.head_dim_qk);
  }

  DecodeTiles(const TiledArgs& a, const TaskOrder& order, char* scratch)
      : p_(a.problem),
        b_(order.now.b),
        keys_buffer_(reinterpret_cast<T*>(scratch + a.at_keys)),
        values_buffer_(reinterpret_cast<T*>(scratch + a.at_values)) {}

  void start(TaskHead task_head, Tile tile) {
    tile_ = tile;
    const KvOperand k = k_operand(p_, b_, task_head.head_kv),
                    v = v_operand(p_, b_, task_head.head_kv);
    keys_ = rows_of_tile(k, tile, keys_buffer_, key_scales_);
    values_ = rows_of_tile(v, tile, values_buffer_, value_scales_);
    next_ = next_tile_prefetch(k, v, task_head, tile);
  }
  const Tile& tile() const { return tile_; }
  /// Not looked at.
  static bool are_values_finite() { return false; }

  /// [rows][dot_row_size], 0 where there is nothing.
  static void pack(const Problem& p, const RowBlock<V>& row_block, Query* q) {
    const auto factor = V::set(row_block.query_factor);
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    for (std::int64_t x = 0; x < row_block.rows * step; x += V::kLanes) V::store(q + x, V::set(0));
    for (int w = 0; w < row_block.rows; ++w) {
      const char* const row = row_address(p.q, row_block.b, row_block.head[w], row_block.query[w]);
      T* const to = q + w * step;
      load_dense_row<V>(p.q.type, row, p.head_dim_qk, to);
      for (std::int64_t d = 0; p.scales_q.present && d < p.head_dim_qk; ++d) {
        const QueryRow of{row_block.b, row_block.head[w], row_block.query[w]};
        to[d] *= static_cast<T>(row_scale(p, p.scales_q, of, d));
      }
      for (std::int64_t d = 0; d < p.head_dim_qk; d += V::kLanes) {
        V::store(to + d, V::load(to + d) * factor);
      }
      if (!p.channel_scales_k.present) continue;
      const std::int64_t head_kv = row_block.head[w] / p.group_size;
      for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
        to[d] *= static_cast<T>(channel_scale(p, head_kv, d));
      }
    }
  }

  /// scores^T of `visible` of the tile; `max` grows.
  template <int kVectors>
  REGARD_KERNEL_FN void scores(DecodeTiles* self, const RowBlock<V>& row_block, const Query* q,
                               Tile visible, T* to, T* max) {
    for (std::int64_t j = 0; j < visible.size; ++j) {  // lanes without a row are computed on 0
      for (int v = 0; v < kVectors; ++v) V::store(to + j * V::kWidth + v * V::kLanes, V::set(0));
    }
    with_element<kTypes...>(
        self->keys_.type, [&](auto type) __attribute__((always_inline)) {
          self->template dot_keys<decltype(type)::value>(row_block.rows, q, visible, to);
        });
    if (has_row_scales(self->keys_)) {
      multiply_keys<kVectors>(self->key_scales_ + (visible.begin - self->tile_.begin), visible.size,
                              to);
    }
    accumulate_max<V>(kVectors, visible.size, to, max);
  }

  /// out = out * rescale + probs^T * V of `visible`. `partial`: some probabilities may be masked.
  template <int kVectors>
  REGARD_KERNEL_FN void accumulate(DecodeTiles* self, const RowBlock<V>& row_block, T* probs,
                                   Tile visible, bool partial, const T* rescale, T* out) {
    if (has_row_scales(self->values_)) {
      multiply_keys<kVectors>(self->value_scales_ + (visible.begin - self->tile_.begin),
                              visible.size, probs);
    }
    with_element<kTypes...>(
        self->values_.type, [&](auto type) __attribute__((always_inline)) {
          constexpr Element kType = decltype(type)::value;
          if (partial) {
            self->template add_values<kType, true>(row_block.rows, probs, visible, rescale, out);
          } else {
            self->template add_values<kType, false>(row_block.rows, probs, visible, rescale, out);
          }
        });
  }

 private:
  /// A tile's rows where they are if they follow one another and their type has a loop of its own,
  /// else in `buffer`: as they are, or converted to f32.
  static KvOperand rows_of_tile(const KvOperand& x, Tile tile, T* buffer, T* scales) {
    const bool has_part_groups = x.type == Element::kU4 && x.dim % kGroup != 0;
    if (((x.type != kTypes) && ...) || has_part_groups || x.scales.columns != 0) {
      convert_tile<V>(x, tile, x.dim, buffer);
      return copied_operand(buffer, Element::kF32, x.dim, tile.size);
    }
    if (has_row_scales(x)) read_row_scales(x, tile, scales);
    if (is_one_run(x, tile)) return from_key(x, tile.begin);
    copy_keys(x, tile, buffer);
    KvOperand copy = copied_operand(buffer, x.type, x.dim, tile.size);
    copy.scales = x.scales;
    if (x.type == Element::kU4) copy.scales = copy_groups(x, tile, buffer);
    return copy;
  }

  /// One number for each row, not those of the groups of u4, which loops read beside the codes.
  REGARD_KERNEL_FN bool has_row_scales(const KvOperand& x) {
    return x.scales.first != nullptr && x.type != Element::kU4;
  }

  /// By runs of rows: finding each in its page takes a division a key.
  static void read_row_scales(const KvOperand& x, Tile tile, T* scales) {
    const std::int64_t end = tile.begin + tile.size;
    for (std::int64_t j = tile.begin; j < end;) {
      const std::int64_t run_end = j + run_of(x, j, end);
      const char* from = reinterpret_cast<const char*>(scale_at(x, j));
      for (; j < run_end; ++j, from += x.scales.stride) {
        scales[j - tile.begin] = static_cast<T>(*reinterpret_cast<const float*>(from));
      }
    }
  }

  /// Scales and minima of a tile's rows, behind their codes in the buffer.
  static KvScales copy_groups(const KvOperand& x, Tile tile, T* buffer) {
    const std::int64_t bytes = x.dim / kGroup * 2 * std::int64_t{sizeof(float)};
    char* const first = reinterpret_cast<char*>(buffer) + bytes_of(x.type, x.dim) * kDecodeTileKv;
    for (std::int64_t j = 0; j < tile.size; ++j) {
      __builtin_memcpy(first + j * bytes, scale_at(x, tile.begin + j),
                       static_cast<std::size_t>(bytes));
    }
    return {first, bytes, 0};
  }

  /// Scores, or probabilities, of each key times its scale: the sign of -0 stays.
  template <int kVectors>
  REGARD_KERNEL_FN void multiply_keys(const T* scales, std::int64_t size, T* numbers) {
    for (std::int64_t j = 0; j < size; ++j) {
      const auto scale = V::set(scales[j]);
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        T* const at = numbers + j * V::kWidth + v * V::kLanes;
        V::store(at, V::load(at) * scale);
      }
    }
  }

  /// Keys of pages smaller than a tile. Those of a later tile are prefetched beside them: no cursor
  /// goes from page to page.
  static void copy_keys(const KvOperand& x, Tile tile, T* buffer) {
    const std::int64_t row_bytes = bytes_of(x.type, x.dim);
    const semantics::KeyRange ahead = keys_ahead(x, tile);
    char* to = reinterpret_cast<char*>(buffer);
    for (std::int64_t j = 0; j < tile.size; ++j, to += row_bytes) {
      if (ahead.lo + j < ahead.hi) prefetch_key(x, ahead.lo + j);
      __builtin_memcpy(to, row_of(x, tile.begin + j), static_cast<std::size_t>(row_bytes));
    }
  }

  /// Lines that vectors of K or V are in memory.
  template <Element kType>
  REGARD_KERNEL_FN constexpr int lines_of_vectors(int count) {
    return static_cast<int>(lines_of(bytes_of(kType, count * V::kLanes)));
  }
  /// What prefetch_lines takes for them: with AVX-512 one row of q alone prefetches in a loop.
  template <int kRows, int kLines>
  static constexpr int kUnrolledLines = V::kLanes == 16 && kRows == 1 ? 0 : kLines;

  /// Elements [d, d + kLanes) of a row of `dim`; what lies past its end is 0, and not read.
  template <Element kType>
  REGARD_KERNEL_FN typename V::Vec load_at(const char* row, std::int64_t d, std::int64_t dim) {
    if (d + V::kLanes <= dim) return load_vector<V>(kType, row + bytes_of(kType, d));
    alignas(64) T tail[V::kLanes] = {};
    load_row(kType, row + bytes_of(kType, d), 1, dim - d, tail);
    return V::load(tail);
  }

  /// Rows that follow one another, and the scales and minima of their groups.
  struct KeyRows {
    const char* first;
    const char* groups;
  };
  REGARD_KERNEL_FN KeyRows rows_from(const KvOperand& x, std::int64_t j) {
    return {row_of(x, j), x.scales.first + j * x.scales.stride};
  }
  KeyRows behind(const KeyRows& rows, std::int64_t j) const {
    return {rows.first + j * keys_.stride, rows.groups + j * keys_.scales.stride};
  }

  /// Keys in blocks of kLanes: as many sums of products as fill a vector when added up.
  template <Element kType>
  void dot_keys(std::int64_t rows, const T* q, Tile visible, T* to) {
    RepeatedPrefetch ahead{next_.keys, row_groups(rows)};
    for (std::int64_t j = 0; j < visible.size; j += V::kLanes) {
      const std::int64_t count = visible.size - j < V::kLanes ? visible.size - j : V::kLanes;
      const KeyRows keys = rows_from(keys_, visible.begin - tile_.begin + j);
      for_row_groups(
          rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
            constexpr int kRows = decltype(size)::value;
            constexpr int kKeys = V::kLanes / kRows;
            const T* const query = q + r * dot_row_size(p_.head_dim_qk);
            T* const scores = to + j * V::kWidth + r;
            std::int64_t x = 0;
            for (; x + kKeys <= count; x += kKeys) {
              dot_block<kType, kRows, kKeys>(*this, query, behind(keys, x), scores + x * V::kWidth,
                                             &ahead);
            }
            for (; x < count; ++x) {
              dot_block<kType, kRows, 1>(*this, query, behind(keys, x), scores + x * V::kWidth,
                                         &ahead);
            }
          });
    }
  }

  /// Products of kRows rows and kKeys keys. A row's sum has the same order wherever it stands among
  /// them.
  template <Element kType, int kRows, int kKeys>
  REGARD_KERNEL_FN void dot_block(const DecodeTiles& self, const T* q, const KeyRows& rows, T* to,
                                  RepeatedPrefetch* ahead) {
    const char* const keys = rows.first;
    const std::int64_t dim = self.p_.head_dim_qk;
    const std::int64_t step = dot_row_size(dim);
    constexpr int kPrefetchKeys = kKeys < 8 ? kKeys : 4;
    constexpr int kLines = kKeys == 1 ? 0
                           : kType == Element::kU4
                               ? lines_of_vectors<kType>(kKeys * kGroup / V::kLanes)
                               : lines_of_vectors<kType>(kPrefetchKeys);
    const std::int64_t lines = lines_each(*ahead, kLines);
    typename V::Vec sum[V::kLanes] = {};
    const auto add = [&](std::int64_t d, const char* first, std::int64_t stride, auto load)
        __attribute__((always_inline)) {
      typename V::Vec query[kRows];
      REGARD_UNROLL for (int r = 0; r < kRows; ++r) query[r] = V::load(q + r * step + d);
      REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
        if (kLines > 0 && i % kPrefetchKeys == 0) {
          prefetch_lines<kUnrolledLines<kRows, kLines>>(&ahead->cursor, lines);
        }
        const auto key = load(first + i * stride);
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
          sum[i * kRows + r] = V::fma(query[r], key, sum[i * kRows + r]);
        }
      }
    };
    std::int64_t d = 0;
    if constexpr (kType == Element::kU4) {
      for (; d < dim; d += kGroup) {
        prefetch_lines<kUnrolledLines<kRows, kLines>>(&ahead->cursor, lines);
        dot_group<kRows, kKeys>(self, q + d, rows, d / kGroup, sum);
      }
    }
    REGARD_UNROLL_4 for (; d + V::kLanes <= dim; d += V::kLanes) {
      add(
          d, keys + d * element_bytes(kType), self.keys_.stride,
          [](const char* at) __attribute__((always_inline)) { return load_vector<V>(kType, at); });
    }
    if (d < dim) {  // by way of the stack, or GCC spills the sums of the loop above
      alignas(64) T tail[kKeys][V::kLanes];
      for (int i = 0; i < kKeys; ++i) {
        V::store(tail[i], load_at<kType>(keys + i * self.keys_.stride, d, dim));
      }
      add(
          d, reinterpret_cast<const char*>(tail), sizeof(tail[0]),
          [](const char* at)
              __attribute__((always_inline)) { return V::load(reinterpret_cast<const T*>(at)); });
    }
    alignas(64) T total[V::kLanes];
    V::store(total, V::sum_rows(sum));
    for (int i = 0; i < kKeys; ++i) {
      __builtin_memcpy(to + i * V::kWidth, total + i * kRows, kRows * sizeof(T));
    }
  }

  /// Group g of some keys, added to the sums of dot_block; `q` at the group's first column. A key's
  /// vectors take turns, so that its scale and minimum stay in registers.
  template <int kRows, int kKeys>
  REGARD_KERNEL_FN void dot_group(const DecodeTiles& self, const T* q, const KeyRows& rows,
                                  std::int64_t g, typename V::Vec* sum) {
    const std::int64_t step = dot_row_size(self.p_.head_dim_qk);
    REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
      const char* const codes =
          rows.first + i * self.keys_.stride + bytes_of(Element::kU4, g * kGroup);
      const auto group = group_at(rows.groups + i * self.keys_.scales.stride, g);
      REGARD_UNROLL for (int d = 0; d < kGroup; d += V::kLanes) {
        const auto key = load_from(group, codes + d / 2);
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
          sum[i * kRows + r] = V::fma(V::load(q + r * step + d), key, sum[i * kRows + r]);
        }
      }
    }
  }

  /// Of 32 elements of u4; with a table each is looked up.
  static constexpr bool kHasTable = requires(typename V::Vec x, const char* p) {
    V::load_u4_from(x, p);
  };
  struct Group {
    typename V::Vec scale, min;
  };
  REGARD_KERNEL_FN Group group_at(const char* groups, std::int64_t g) {
    const auto* const numbers = reinterpret_cast<const float*>(groups) + 2 * g;
    const Group group{V::set(static_cast<T>(numbers[0])), V::set(static_cast<T>(numbers[1]))};
    if constexpr (kHasTable) {
      return {V::group_table(group.scale, group.min), group.min};
    } else {
      return group;
    }
  }
  /// V::kLanes elements of a group.
  REGARD_KERNEL_FN typename V::Vec load_from(const Group& group, const char* codes) {
    if constexpr (kHasTable) {
      return V::load_u4_from(group.scale, codes);
    } else {
      return V::fma(V::load_u4(codes), group.scale, group.min);
    }
  }

  /// The rows of the tile's V are in the L1 while the rows of the row block take their turns.
  template <Element kType, bool kSelect>
  void add_values(std::int64_t rows, const T* probs, Tile visible, const T* rescale, T* out) {
    const std::int64_t step = Out::row_size(p_);
    RepeatedPrefetch ahead{next_.values, row_groups(rows)};
    const KeyRows values = rows_from(values_, visible.begin - tile_.begin);
    for_row_groups(
        rows, [&](std::int64_t r, auto size) __attribute__((always_inline)) {
          add_rows_of<kType, decltype(size)::value, kSelect>(
              {values, values_.stride, values_.scales.stride, visible.size}, probs + r,
              {out + r * step, step, p_.head_dim_v, rescale + r}, &ahead);
        });
  }

  /// Rows of V, and rows of out that grow by them.
  struct Values {
    KeyRows rows;
    std::int64_t row_bytes;
    std::int64_t groups_bytes;  // of a row's scales and minima
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
  static void add_rows_of(const Values& values, const T* weights, const Sums& out,
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
  REGARD_KERNEL_FN void add_block(const Values& values, const T* weights, const Sums& out,
                                  std::int64_t d, RepeatedPrefetch* ahead) {
    T* const to = out.first + d;
    typename V::Vec sum[kRows][kVectors] = {};  // the tile by itself: a short chain of additions
    const char* row = values.rows.first;
    const char* groups = values.rows.groups;
    const auto value_at = [&](int v) __attribute__((always_inline)) {
      if constexpr (kType == Element::kU4) {
        return load_from(group_at(groups, d / kGroup), row + bytes_of(kType, d + v * V::kLanes));
      }
      return kVectors > 1 ? load_vector<V>(kType, row + bytes_of(kType, d + v * V::kLanes))
                          : load_at<kType>(row, d, out.dim);
    };
    const auto add = [&](int r, int v, typename V::Vec value, typename V::Vec weight)
        __attribute__((always_inline)) {
      sum[r][v] = kSelect ? ScalarTerm<V>::add_visible(sum[r][v], value, weight)
                          : ScalarTerm<V>::add(sum[r][v], value, weight);
    };
    constexpr int kLines = lines_of_vectors<kType>(kVectors);
    const std::int64_t lines = lines_each(*ahead, kLines);
    const auto add_key = [&]() __attribute__((always_inline)) {
      prefetch_lines<kUnrolledLines<kRows, kLines>>(&ahead->cursor, lines);
      if constexpr (kRows < kVectors) {  // the fewer ones wait in registers
        typename V::Vec weight[kRows];
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) weight[r] = V::set(weights[r]);
        REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
          const auto value = value_at(v);
          REGARD_UNROLL for (int r = 0; r < kRows; ++r) add(r, v, value, weight[r]);
        }
      } else {
        typename V::Vec value[kVectors];
        REGARD_UNROLL for (int v = 0; v < kVectors; ++v) value[v] = value_at(v);
        REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
          const auto weight = V::set(weights[r]);
          REGARD_UNROLL for (int v = 0; v < kVectors; ++v) add(r, v, value[v], weight);
        }
      }
      row += values.row_bytes;
      if constexpr (kType == Element::kU4) groups += values.groups_bytes;
      weights += V::kWidth;
    };
    if constexpr (kVectors > 1) {
      REGARD_UNROLL_4 for (std::int64_t j = 0; j < values.count; ++j) add_key();
    } else {  // may end within a vector, by way of the stack
      for (std::int64_t j = 0; j < values.count; ++j) add_key();
    }
    REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
      const auto keep = V::set(out.rescale[r]);
      REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
        T* const at = to + r * out.step + v * V::kLanes;
        V::store(at, V::fma(V::load(at), keep, sum[r][v]));
      }
    }
  }

  const Problem& p_;
  std::int64_t b_;
  T* keys_buffer_;
  T* values_buffer_;
  alignas(64) T key_scales_[kDecodeTileKv];  // where rows that are not converted have scales
  alignas(64) T value_scales_[kDecodeTileKv];
  KvOperand keys_{};    // from the tile's first key on
  KvOperand values_{};  // likewise
  Tile tile_{};
  NextTilePrefetch next_{};
};

}  // namespace
}  // namespace regard::cpu
