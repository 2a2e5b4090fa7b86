#pragma once

#include <cstdint>

#include "cpu/decode/dense_scores.h"
#include "cpu/decode/tile_ahead.h"
#include "cpu/decode/tile_rows.h"
#include "cpu/decode/word_products.h"
#include "cpu/forward/tiled.h"
#include "cpu/simd/simd_vector.h"
#include "cpu/split.h"

// Decode rows of bf16 over K or V of u4, in bytes: a vector holds the codes of 128 columns, one
// group in each quarter. Each 32-bit lane adds up four products of codes, exactly; then the scale
// of the group takes one product for all four. What is rounded is q, to 2^-15 of a row's largest
// element, and the probabilities times V's scales, to 2^-15 of the largest of a tile.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// A whole number of at most 2^14 as two bytes with signs.
struct BytePair {
  std::int8_t high, low;
};
REGARD_KERNEL_FN BytePair bytes_of(std::int32_t number) {
  const std::int32_t high = (number + 128) >> 8;
  return {static_cast<std::int8_t>(high), static_cast<std::int8_t>(number - (high << 8))};
}

/// As word_scale, but the largest lies in [2^13, 2^14), or its high byte would not fit.
REGARD_KERNEL_FN WordScale byte_scale(float largest) {
  const WordScale scale = word_scale(largest);
  return {scale.up * 0.5f, scale.down * 2.0f};
}

template <class V>
struct GroupProducts {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  using Int = typename V::Int;
  static constexpr std::int64_t kBlock = 128;  // columns whose codes a vector holds

  /// q's floats, which are packed, as bytes behind them: [rows][blocks][high, low][even columns,
  /// odd ones][64]. Factors are those of words.
  static void pack(const Problem& p, std::int64_t rows, T* q) {
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    auto* const bytes = const_cast<char*>(bytes_of_rows(p, q));
    WordProducts<V>::scale_rows(p, rows, q, byte_scale, [&](std::int64_t r, float up) {
      const T* const row = q + r * step;
      for (std::int64_t d = 0; d < p.head_dim_qk; ++d) {
        const auto word = static_cast<std::int16_t>(bits_of(word_bits(row[d], up)));
        const BytePair pair = cpu::bytes_of(word);
        char* const block = bytes + 2 * (r * step + d / kBlock * kBlock);
        const std::int64_t at = d % 2 * (kBlock / 2) + d % kBlock / 2;
        block[at] = pair.high;
        block[kBlock + at] = pair.low;
      }
    });
  }

  /// Dense scores of keys, as WordProducts::dot_keys has them; false where one is not finite, which
  /// floats may compute otherwise.
  template <int kCount>
  REGARD_KERNEL_FN bool dot_keys(const Problem& p, const T* q, std::int64_t r, const WordRows& keys,
                                 T* to, RepeatedPrefetch* ahead) {
    constexpr int kSlots = slots_of(kCount), kKeys = V::kLanes / kSlots;
    const std::int64_t row_bytes = 2 * dot_row_size(p.head_dim_qk);
    const char* const bytes = bytes_of_rows(p, q) + r * row_bytes;
    const auto factors = DenseScores<V, kSlots>::repeated(WordProducts<V>::factors_of(p, q) + r);
    for (std::int64_t j = 0; j < keys.count; j += kKeys) V::store(to + j * kSlots, V::set(0));
    for (std::int64_t d = 0; d < p.head_dim_qk; d += kBlock) {
      const Int ones = Int{} + 0x01010101;
      Int each[4] = {};
      REGARD_UNROLL for (int x = 0; x < 4; ++x) {
        if (x % kSlots < kCount) {
          each[x] = products(ones, ones, bytes + x % kSlots * row_bytes + 2 * d);
        }
      }
      const Vec query_sums = sums_of_quarters(each);
      for (std::int64_t j = 0; j < keys.count; j += kKeys) {
        const KeyRows from = rows_from(*keys.rows, keys.begin + j);
        const Vec sums = dot_block<kCount, kKeys>(
            {from.first + d / 2, from.groups + d / kGroup * kGroupBytes, keys.rows->stride,
             keys.rows->groups_stride, keys.rows->groups_ahead},
            bytes + 2 * d, row_bytes, query_sums, ahead);
        V::store(to + j * kSlots, V::fma(sums, factors, V::load(to + j * kSlots)));
      }
    }
    Vec sum{};
    for (std::int64_t j = 0; j < keys.count * kSlots; j += V::kLanes) {
      sum += V::load(to + j) * V::set(0);
    }
    T total = 0;
    for (int lane = 0; lane < V::kLanes; ++lane) total += sum[lane];
    return total == 0;
  }

  /// out = out * rescale + probs^T * values, of dense probabilities; false where one times a scale
  /// is not finite: nothing is added.
  template <int kCount>
  static bool add_values(const T* probs, const WordRows& values,
                         const typename WordProducts<V>::Sums& out, RepeatedPrefetch* ahead) {
    Weights<kCount> weights[kMaxBlocks];
    if (out.dim > kMaxBlocks * kBlock) return false;
    for (std::int64_t d = 0; d < out.dim; d += kBlock) {
      if (!set_weights<kCount>(probs, values, d, weights + d / kBlock)) return false;
    }
    for (std::int64_t d = 0; d < out.dim; d += kBlock) {
      add_block<kCount>(weights[d / kBlock], values, out, d, ahead);
    }
    return true;
  }

 private:
  static constexpr std::int64_t kGroupBytes = 2 * sizeof(float);
  static constexpr std::int64_t kMaxBlocks = 2;
  static constexpr std::int64_t kBytes = sizeof(Int);
  using Lanes = typename MakeIndexList<V::kLanes>::type;
  typedef float GroupNumbers __attribute__((vector_size(32), aligned(4), may_alias));

  /// Rows of some keys from a block's first column on.
  struct Block {
    const char* codes;
    const char* groups;
    std::int64_t stride, groups_stride, groups_ahead;
  };

  /// Within each quarter a[kFrom], b[kFrom], a[kFrom + 1], b[kFrom + 1].
  template <int kFrom, class X, int... kLane>
  REGARD_KERNEL_FN X interleaved(X a, X b, IndexList<kLane...>) {
    return __builtin_shufflevector(
        a, b, (kLane / 4 * 4 + kFrom + kLane % 4 / 2 + kLane % 2 * V::kLanes)...);
  }
  /// Quarters kA and kB of a, then those of b.
  template <int kA, int kB, int... kLane>
  REGARD_KERNEL_FN Vec quarters(Vec a, Vec b, IndexList<kLane...>) {
    return __builtin_shufflevector(
        a, b, ((kLane / 4 % 2 == 0 ? kA : kB) * 4 + kLane % 4 + kLane / 8 * V::kLanes)...);
  }
  /// What stands behind q's floats.
  REGARD_KERNEL_FN const char* bytes_of_rows(const Problem& p, const T* q) {
    return reinterpret_cast<const char*>(q + decode_rows_of(p, V::kWidth) *
                                                 dot_row_size(p.head_dim_qk));
  }
  REGARD_KERNEL_FN Int load(const char* p) {
    Int bytes;
    __builtin_memcpy(&bytes, p, sizeof(bytes));
    return bytes;
  }
  /// Four groups' scales and minima, by turns; those of the next tile are prefetched.
  REGARD_KERNEL_FN GroupNumbers numbers_at(const char* groups, std::int64_t ahead) {
    __builtin_prefetch(groups + ahead, 0, kIntoL2);
    return *reinterpret_cast<const GroupNumbers*>(groups);
  }
  /// The scale of its own group in each quarter, or the minimum.
  template <int kWhich, int... kLane>
  REGARD_KERNEL_FN Vec of_quarters(GroupNumbers x, IndexList<kLane...>) {
    return __builtin_shufflevector(x, x, (kLane / 4 * 2 + kWhich)...);
  }
  /// Those of all four groups in each quarter.
  template <int kWhich, int... kLane>
  REGARD_KERNEL_FN Vec in_quarters(GroupNumbers x, IndexList<kLane...>) {
    return __builtin_shufflevector(x, x, (kLane % 4 * 2 + kWhich)...);
  }
  /// From lane `slot` of each quarter on those of b.
  template <int... kLane>
  REGARD_KERNEL_FN Vec from_slot(Vec a, Vec b, int slot, IndexList<kLane...>) {
    const Int lane{kLane % 4 ...};
    return lane < slot ? a : b;
  }
  /// A row's number in each quarter of its own. A vector is read: GCC 12 widens four numbers by way
  /// of the stack, where the load waits for both stores.
  template <int kSlots, int... kLane>
  REGARD_KERNEL_FN Vec quarter_of_each(const T* slots, IndexList<kLane...>) {
    const Vec all = V::load(slots);
    return __builtin_shufflevector(all, all, (kLane / 4 % kSlots)...);
  }
  /// Lane kRow * 4 + g in quarter g.
  template <int kRow, int... kLane>
  REGARD_KERNEL_FN Int spread_row(Int x, IndexList<kLane...>) {
    return __builtin_shufflevector(x, x, (kRow * 4 + kLane / 4)...);
  }

  /// Products of codes with a row of q, summed as whole numbers within each lane.
  REGARD_KERNEL_FN Int products(Int even, Int odd, const char* row) {
    Int total = V::add_bytes(Int{}, even, load(row));
    total = V::add_bytes(total, odd, load(row + kBytes)) << 8;
    total = V::add_bytes(total, even, load(row + 2 * kBytes));
    return V::add_bytes(total, odd, load(row + 3 * kBytes));
  }

  /// Lane x of each quarter: the sum of that quarter of x. Below 2^24 for products, so exact.
  REGARD_KERNEL_FN Vec sums_of_quarters(const Int (&x)[4]) {
    const auto in_turn = [](Int a, Int b) __attribute__((always_inline)) {
      return interleaved<0>(a, b, Lanes{}) + interleaved<2>(a, b, Lanes{});
    };
    const Int first = in_turn(x[0], x[2]), second = in_turn(x[1], x[3]);
    return __builtin_convertvector(in_turn(first, second), Vec);
  }
  /// Quarter x: the sum of the quarters of x.
  REGARD_KERNEL_FN Vec sum_quarters(const Vec (&x)[4]) {
    const auto add = [](Vec a, Vec b) __attribute__((always_inline)) {
      return quarters<0, 2>(a, b, Lanes{}) + quarters<1, 3>(a, b, Lanes{});
    };
    return add(add(x[0], x[1]), add(x[2], x[3]));
  }
  /// Groups' scales of 4 / kSlots keys, or minima, for the lanes of sums_of_quarters.
  template <int kWhich, int kSlots>
  REGARD_KERNEL_FN Vec of_slots(const GroupNumbers* keys) {
    Vec x = of_quarters<kWhich>(keys[0], Lanes{});
    REGARD_UNROLL for (int key = 1; key < 4 / kSlots; ++key) {
      x = from_slot(x, of_quarters<kWhich>(keys[key], Lanes{}), key * kSlots, Lanes{});
    }
    return x;
  }

  /// Sums of products of kCount rows and kKeys keys, lanes as in DenseScores. Four of them are
  /// summed within groups before these are scaled, all four at once.
  template <int kCount, int kKeys>
  REGARD_KERNEL_FN Vec dot_block(const Block& keys, const char* bytes, std::int64_t row_bytes,
                                 Vec query_sums, RepeatedPrefetch* ahead) {
    constexpr int kSlots = slots_of(kCount), kEach = 4 / kSlots;
    static_assert(kKeys == 4 * kEach);
    const std::int64_t lines = lines_each(*ahead, 1);
    Vec sums[4];
    REGARD_UNROLL for (int four = 0; four < 4; ++four) {
      Int each[4] = {};
      GroupNumbers numbers[kEach];
      REGARD_UNROLL for (int x = 0; x < kEach; ++x) {
        const int key = four * kEach + x;
        prefetch_lines<1>(&ahead->cursor, lines);
        numbers[x] = numbers_at(keys.groups + key * keys.groups_stride, keys.groups_ahead);
        Int even, odd;
        V::codes_of_u4(load(keys.codes + key * keys.stride), &even, &odd);
        REGARD_UNROLL for (int r = 0; r < kCount; ++r) {
          each[x * kSlots + r] = products(even, odd, bytes + r * row_bytes);
        }
      }
      const Vec minima = of_slots<1, kSlots>(numbers);
      sums[four] =
          V::fma(sums_of_quarters(each), of_slots<0, kSlots>(numbers), minima * query_sums);
    }
    return sum_quarters(sums);
  }

  /// Of a tile, kCount rows and 128 columns: bytes of four keys a lane, that of group g in quarter
  /// g.
  template <int kCount>
  struct Weights {
    Int bytes[kMaxDecodeTileKv / 4][kCount][2];  // the high ones, the low ones
    Vec down[kCount];
    Vec minima[kCount];  // probabilities times minima, summed over the keys
  };

  template <int kCount>
  REGARD_KERNEL_FN bool set_weights(const T* probs, const WordRows& values, std::int64_t d,
                                    Weights<kCount>* self) {
    constexpr int kSlots = slots_of(kCount);
    Vec weights[kMaxDecodeTileKv];
    Vec minima[4] = {};  // sums of every fourth key: one chain of additions would be waited for
    Int largest{};
    for (std::int64_t j = 0; j < values.count; j += kRunKeys) {
      const KeyRows from = rows_from(*values.rows, values.begin + j);
      const char* groups = from.groups + d / kGroup * kGroupBytes;
      for (std::int64_t x = j; x < j + kRunKeys; x += 4) {
        REGARD_UNROLL for (int i = 0; i < 4; ++i, groups += values.rows->groups_stride) {
          const GroupNumbers numbers = numbers_at(groups, values.rows->groups_ahead);
          const Vec prob = quarter_of_each<kSlots>(probs + (x + i) * kSlots, Lanes{});
          weights[x + i] = prob * in_quarters<0>(numbers, Lanes{});
          minima[i] = V::fma(prob, in_quarters<1>(numbers, Lanes{}), minima[i]);
          const Int held = V::to_bits(weights[x + i]) & 0x7fffffff;
          largest = held > largest ? held : largest;
        }
      }
    }
    Vec up{};
    for (int r = 0; r < kCount; ++r) {  // each row's own, or its bits would be its neighbours'
      std::int32_t most = 0;
      for (int g = 0; g < 4; ++g) most = largest[4 * r + g] > most ? largest[4 * r + g] : most;
      if (most >= 0x7f800000) return false;
      const WordScale scale = byte_scale(f32_of(static_cast<std::uint32_t>(most)));
      for (int g = 0; g < 4; ++g) up[4 * r + g] = scale.up;
      self->down[r] = V::set(scale.down);
    }
    set_rows<kCount>(
        [&](auto row, Int high, Int low, std::int64_t at) __attribute__((always_inline)) {
          constexpr int kRow = decltype(row)::value;
          self->bytes[at][kRow][0] = spread_row<kRow>(high, Lanes{});
          self->bytes[at][kRow][1] = spread_row<kRow>(low, Lanes{});
        },
        weights, values.count, up);
    const Int bits = V::to_bits((minima[0] + minima[1]) + (minima[2] + minima[3]));
    for_rows<kCount>([&](auto row) __attribute__((always_inline)) {
      constexpr int kRow = decltype(row)::value;
      self->minima[kRow] = V::from_bits(spread_row<kRow>(bits, Lanes{}));
    });
    return true;
  }

  /// f(Count<row>) for rows [0, kCount).
  template <int kCount, class F>
  REGARD_KERNEL_FN void for_rows(F f) {
    if constexpr (kCount > 1) for_rows<kCount - 1>(f);
    f(Count<kCount - 1>{});
  }
  template <int kCount, class F>
  REGARD_KERNEL_FN void set_rows(F f, const Vec* weights, std::int64_t keys, Vec up) {
    for (std::int64_t j = 0; j < keys; j += 4) {
      Int words[4];
      REGARD_UNROLL for (int x = 0; x < 4; ++x) {
        words[x] = V::to_bits(V::fma(weights[j + x], up, V::set(kWordMagic)));
      }
      Int high, low;
      V::join_bytes(words, &high, &low);
      for_rows<kCount>([&](auto row) __attribute__((always_inline)) { f(row, high, low, j / 4); });
    }
  }

  /// 128 columns of kCount rows, from column d on.
  template <int kCount>
  REGARD_KERNEL_FN void add_block(const Weights<kCount>& weights, const WordRows& values,
                                  const typename WordProducts<V>::Sums& out, std::int64_t d,
                                  RepeatedPrefetch* ahead) {
    Vec sums[kCount][8];
    constexpr int kOfTwo = kCount < 2 ? kCount : 2;
    add_quads<kCount, 0, 0, kOfTwo>(weights, values, d, ahead, sums);
    add_quads<kCount, 2, 0, kOfTwo>(weights, values, d, ahead, sums);
    if constexpr (kCount > 2) {
      add_quads<kCount, 0, 2, kCount - 2>(weights, values, d, ahead, sums);
      add_quads<kCount, 2, 2, kCount - 2>(weights, values, d, ahead, sums);
    }
    for (int r = 0; r < kCount; ++r) {
      const auto keep = V::set(out.rescale[r]);
      T* const to = out.first + r * out.step + d;
      REGARD_UNROLL for (int half = 0; half < 2; ++half) {
        // Quarter g of vector x has columns 32 g + 4 x and on.
        const Vec* const x = sums[r] + 4 * half;
        const Vec first = quarters<0, 1>(x[0], x[1], Lanes{}),
                  second = quarters<0, 1>(x[2], x[3], Lanes{}),
                  third = quarters<2, 3>(x[0], x[1], Lanes{}),
                  fourth = quarters<2, 3>(x[2], x[3], Lanes{});
        const Vec columns[4] = {
            quarters<0, 2>(first, second, Lanes{}), quarters<1, 3>(first, second, Lanes{}),
            quarters<0, 2>(third, fourth, Lanes{}), quarters<1, 3>(third, fourth, Lanes{})};
        REGARD_UNROLL for (int g = 0; g < 4; ++g) {
          T* const at = to + kGroup * g + V::kLanes * half;
          V::store(at, V::fma(V::load(at), keep, columns[g]));
        }
      }
    }
  }

  /// Columns of codes 4 kQuad to 4 kQuad + 7 of each group, as vectors from 2 kQuad on, of kRows
  /// rows from kFirst on. Two rows and eight codes: with four of each there are not enough
  /// registers, and four rows and four codes read each weight twice as often.
  template <int kCount, int kQuad, int kFirst, int kRows>
  REGARD_KERNEL_FN void add_quads(const Weights<kCount>& weights, const WordRows& values,
                                  std::int64_t d, RepeatedPrefetch* ahead, Vec (&sums)[kCount][8]) {
    constexpr int kLines = kCount > 2 ? 1 : 2;
    const std::int64_t lines = lines_each(*ahead, kLines), stride = values.rows->stride;
    Int high[kRows][4] = {}, low[kRows][4] = {};
    for (std::int64_t j = 0; j < values.count; j += 4) {
      const char* const row = rows_from(*values.rows, values.begin + j).first + d / 2;
      prefetch_lines<kLines>(&ahead->cursor, lines);
      const Int keys[4] = {load(row), load(row + stride), load(row + 2 * stride),
                           load(row + 3 * stride)};
      Int codes[4];  // even and odd ones of a quad
      V::codes_of_u4(V::template join_quads<kQuad>(keys[0], keys[1], keys[2], keys[3]), codes,
                     codes + 1);
      V::codes_of_u4(V::template join_quads<kQuad + 1>(keys[0], keys[1], keys[2], keys[3]),
                     codes + 2, codes + 3);
      REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
        const Int(&of)[2] = weights.bytes[j / 4][kFirst + r];
        REGARD_UNROLL for (int x = 0; x < 4; ++x) {
          high[r][x] = V::add_bytes(high[r][x], codes[x], of[0]);
          low[r][x] = V::add_bytes(low[r][x], codes[x], of[1]);
        }
      }
    }
    REGARD_UNROLL for (int r = 0; r < kRows; ++r) {
      Vec columns[4];
      REGARD_UNROLL for (int x = 0; x < 4; ++x) {
        columns[x] = V::fma(__builtin_convertvector((high[r][x] << 8) + low[r][x], Vec),
                            weights.down[kFirst + r], weights.minima[kFirst + r]);
      }
      Vec* const to = sums[kFirst + r] + 2 * kQuad;
      to[0] = interleaved<0>(columns[0], columns[1], Lanes{});
      to[1] = interleaved<2>(columns[0], columns[1], Lanes{});
      to[2] = interleaved<0>(columns[2], columns[3], Lanes{});
      to[3] = interleaved<2>(columns[2], columns[3], Lanes{});
    }
  }
};

}  // namespace
}  // namespace regard::cpu
