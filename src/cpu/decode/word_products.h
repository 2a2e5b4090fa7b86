#pragma once

#include <cstdint>

#include "cpu/decode/dense_scores.h"
#include "cpu/decode/tile_ahead.h"
#include "cpu/decode/tile_rows.h"
#include "cpu/forward/row_block.h"
#include "cpu/forward/tiled.h"
#include "cpu/simd/simd_vector.h"
#include "cpu/split.h"

// Decode rows of bf16 over K or V of int8, in 16-bit words: half of the products that floats take
// and a quarter of the conversions. Products and their sums are exact in 32 bits. What is rounded
// is q, to 2^-16 of a row's largest element (nearly all of a bf16 are exact), and the probabilities
// times V's scales, to 2^-16 of the largest of a tile. Values of bf16 are multiplied in the same
// pairs of keys by probabilities of bf16.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// What a row's words are multiplied by, a power of two: the largest of them lies in [2^14, 2^15).
struct WordScale {
  float up, down;
};

/// `largest` is finite.
REGARD_KERNEL_FN WordScale word_scale(float largest) {
  constexpr std::uint32_t kExponent = 0x7f800000, kLeast = 0x0d000000;  // 2^-101
  const std::uint32_t held = bits_of(largest) & kExponent;
  const std::uint32_t exponent = held < kLeast ? kLeast : held;
  constexpr std::uint32_t kBias = 127u << 23, kWord = 14u << 23;
  return {f32_of(2 * kBias + kWord - exponent), f32_of(exponent - kWord)};
}

constexpr float kWordMagic = 12582912.0f;  // 1.5 * 2^23: the bits below are a whole number's

/// x * up as a whole number in the low 16 bits, to nearest even.
template <class X>
REGARD_KERNEL_FN X word_bits(X x, X up) {
  constexpr float kMax = 32767.0f;
  const X scaled = x * up;
  return (scaled < kMax ? scaled : kMax - X{}) + kWordMagic;
}

/// Values of int8 as they are multiplied: words of 16 bits.
template <class V>
struct ByteValues {
  using Sum = typename V::Int;
  static constexpr bool kIsBf16 = false;
  static constexpr std::int64_t kBytes = 1;  // of an element in memory
  REGARD_KERNEL_FN typename V::Int load(const char* p) { return V::words_of_bytes(p); }
  REGARD_KERNEL_FN Sum add(Sum sum, typename V::Int values, typename V::Int weights) {
    return V::add_words(sum, values, weights);
  }
  REGARD_KERNEL_FN typename V::Vec total(Sum sum, typename V::Vec down) {
    return __builtin_convertvector(sum, typename V::Vec) * down;
  }
};

/// Those of bf16.
template <class V>
struct Bf16Values {
  using Sum = typename V::Vec;
  static constexpr bool kIsBf16 = true;
  static constexpr std::int64_t kBytes = 2;
  REGARD_KERNEL_FN typename V::Int load(const char* p) {
    typename V::Int words;
    __builtin_memcpy(&words, p, sizeof(words));
    return words;
  }
  REGARD_KERNEL_FN Sum add(Sum sum, typename V::Int values, typename V::Int weights) {
    return V::dot(sum, values, weights);
  }
  REGARD_KERNEL_FN typename V::Vec total(Sum sum, typename V::Vec) { return sum; }
};

/// Weights of the values of a tile for one group of rows, as pairs of words of two keys: whole
/// numbers times `down`, or bf16.
template <int kSlots, bool kIsBf16 = false>
struct WordWeights {
  using Floats = typename SlotsOf<float, kSlots>::Type;
  using Bits = typename SlotsOf<std::uint32_t, kSlots>::Type;
  using Signed = typename SlotsOf<std::int32_t, kSlots>::Type;
  alignas(64) std::uint32_t pairs[kMaxDecodeTileKv / 2 * kSlots];
  float down[kSlots];

  /// False where one is not finite, or becomes so.
  static bool set(std::int64_t keys, const float* dense, WordWeights* self) {
    constexpr std::int32_t kInfinity = 0x7f800000, kRoundsToInfinity = 0x7f7f8000;
    const auto* const bits = reinterpret_cast<const Bits*>(dense);
    Signed largest{};
    for (std::int64_t j = 0; j < keys; ++j) {
      const Signed held = (Signed)(bits[j] & 0x7fffffffu);
      largest = held > largest ? held : largest;
    }
    Floats up{};
    for (int s = 0; s < kSlots; ++s) {
      if (largest[s] >= (kIsBf16 ? kRoundsToInfinity : kInfinity)) return false;
      const WordScale scale = word_scale(f32_of(static_cast<std::uint32_t>(largest[s])));
      up[s] = scale.up;
      self->down[s] = scale.down;
    }
    if constexpr (kIsBf16) {
      for (std::int64_t j = 0; j < keys; j += 2) {
        *reinterpret_cast<Bits*>(self->pairs + j / 2 * kSlots) =
            (rounded(bits[j]) >> 16) | (rounded(bits[j + 1]) & 0xffff0000u);
      }
      return true;
    }
    const auto* const floats = reinterpret_cast<const Floats*>(dense);
    for (std::int64_t j = 0; j < keys; j += 2) {
      const Bits first = (Bits)word_bits<Floats>(floats[j], up),
                 second = (Bits)word_bits<Floats>(floats[j + 1], up);
      *reinterpret_cast<Bits*>(self->pairs + j / 2 * kSlots) = (first & 0xffffu) | (second << 16);
    }
    return true;
  }

 private:
  /// bf16 in the high halves, to nearest even, of finite numbers.
  static inline __attribute__((always_inline)) Bits rounded(Bits bits) {
    return bits + 0x7fff + ((bits >> 16) & 1);
  }
};

/// Keys [begin, begin + count) of a tile.
struct WordRows {
  const TileRows* rows;
  std::int64_t begin;
  std::int64_t count;
};

template <class V>
struct WordProducts {
  using T = typename V::Scalar;
  using Int = typename V::Int;
  static constexpr std::int64_t kStep = 2 * V::kLanes;  // elements of a vector of words
  typedef std::int16_t Word __attribute__((may_alias));

  /// What lies behind the floats of q: words [rows][dot_row_size], then what each row's stand for;
  /// 0: not finite.
  REGARD_KERNEL_FN const Word* words_of(const Problem& p, const T* q) {
    return reinterpret_cast<const Word*>(q + rows_of(p) * dot_row_size(p.head_dim_qk));
  }
  REGARD_KERNEL_FN const T* factors_of(const Problem& p, const T* q) {
    return q + decode_factors_at(rows_of(p), p.head_dim_qk);
  }

  /// q's floats, which are packed, as words.
  static void pack(const Problem& p, std::int64_t rows, T* q) {
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    auto* const words = const_cast<Word*>(words_of(p, q));
    scale_rows(p, rows, q, word_scale, [&](std::int64_t r, float up) {
      const T* const row = q + r * step;
      for (std::int64_t d = 0; d < step; ++d) {
        words[r * step + d] = static_cast<Word>(bits_of(word_bits(row[d], up)));
      }
    });
  }

  /// Calls store(row, up) for each row of q's floats, of which scale_of(its largest magnitude)
  /// gives `up`, and the factor that is kept.
  template <class ScaleOf, class Store>
  REGARD_KERNEL_FN void scale_rows(const Problem& p, std::int64_t rows, T* q, ScaleOf scale_of,
                                   Store store) {
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    auto* const factors = const_cast<T*>(factors_of(p, q));
    for (std::int64_t r = 0; r < kFactors; ++r) factors[r] = 1;
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* const row = q + r * step;
      std::uint32_t largest = 0;
      for (std::int64_t d = 0; d < step; ++d) {
        const std::uint32_t held = bits_of(row[d]) & 0x7fffffff;
        largest = held > largest ? held : largest;
      }
      const bool is_finite = largest < 0x7f800000;
      const WordScale scale = scale_of(is_finite ? f32_of(largest) : 0);
      store(r, scale.up);
      factors[r] = is_finite ? scale.down : 0;
    }
  }

  static bool are_finite(const Problem& p, std::int64_t rows, const T* q) {
    bool all = true;
    for (std::int64_t r = 0; r < rows; ++r) all &= factors_of(p, q)[r] != 0;
    return all;
  }

  /// Dense scores of keys, whole runs or a multiple of kDenseKeys, and rows [r, r + kCount) of q.
  template <int kCount>
  REGARD_KERNEL_FN void dot_keys(const Problem& p, const T* q, std::int64_t r, const WordRows& keys,
                                 T* to, RepeatedPrefetch* ahead) {
    constexpr int kSlots = slots_of(kCount), kKeys = V::kLanes / kSlots;
    const std::int64_t step = dot_row_size(p.head_dim_qk);
    const Word* const words = words_of(p, q) + r * step;
    const auto factors = DenseScores<V, kSlots>::repeated(factors_of(p, q) + r);
    for (std::int64_t j = 0; j < keys.count; j += kKeys, to += V::kLanes) {
      const char* const first = rows_from(*keys.rows, keys.begin + j).first;
      const auto sums =
          dot_block<kCount, kKeys>(p.head_dim_qk, words, step, {first, keys.rows->stride}, ahead);
      V::store(to, sums * factors);
    }
  }

  /// Outputs of some rows: [rows][step].
  struct Sums {
    T* first;
    std::int64_t step;
    std::int64_t dim;  // a multiple of kStep
    const T* rescale;
  };

  /// out = out * rescale + weights^T * values.
  template <class Values, int kCount, int kSlots>
  REGARD_KERNEL_FN void add_values(const WordWeights<kSlots, Values::kIsBf16>& weights,
                                   const WordRows& values, const Sums& out,
                                   RepeatedPrefetch* ahead) {
    constexpr int kMost = V::kRows * V::kVectors * 2 / 3 / kSlots / 2;  // pairs of vectors
    constexpr int kColumns = kMost > 2 ? 2 : kMost < 1 ? 1 : kMost;
    std::int64_t d = 0;
    for (; d + kColumns * kStep <= out.dim; d += kColumns * kStep) {
      add_columns<Values, kCount, kColumns>(weights, values, out, d, ahead);
    }
    for (; d < out.dim; d += kStep) {
      add_columns<Values, kCount, 1>(weights, values, out, d, ahead);
    }
  }

 private:
  struct Rows {
    const char* first;
    std::int64_t stride;
  };
  static constexpr std::int64_t kFactors = 16;
  static_assert(max_decode_rows(V::kWidth) <= kFactors);
  REGARD_KERNEL_FN std::int64_t rows_of(const Problem& p) { return decode_rows_of(p, V::kWidth); }

  /// Sums of products of kCount rows and kKeys keys, lanes as in DenseScores.
  template <int kCount, int kKeys>
  REGARD_KERNEL_FN typename V::Vec dot_block(std::int64_t dim, const Word* words, std::int64_t step,
                                             Rows keys, RepeatedPrefetch* ahead) {
    constexpr int kSlots = slots_of(kCount), kTurn = kKeys < 4 ? kKeys : 4;
    constexpr int kLines = static_cast<int>(lines_of(kTurn * kStep));
    const std::int64_t lines = lines_each(*ahead, kLines);
    Int sum[V::kLanes] = {};
    const auto add = [&](std::int64_t d, const char* first, std::int64_t stride)
        __attribute__((always_inline)) {
      Int query[kCount];
      REGARD_UNROLL for (int r = 0; r < kCount; ++r) {
        __builtin_memcpy(&query[r], words + r * step + d, sizeof(query[r]));
      }
      REGARD_UNROLL for (int i = 0; i < kKeys; ++i) {
        if (i % kTurn == 0) {
          prefetch_lines<V::kLanes == 16 && kCount == 1 ? 0 : kLines>(&ahead->cursor, lines);
        }
        const Int key = V::words_of_bytes(first + i * stride);
        REGARD_UNROLL for (int r = 0; r < kCount; ++r) {
          sum[i * kSlots + r] = V::add_words(sum[i * kSlots + r], query[r], key);
        }
      }
    };
    std::int64_t d = 0;
    REGARD_UNROLL_4 for (; d + kStep <= dim; d += kStep) add(d, keys.first + d, keys.stride);
    if (d < dim) {
      alignas(64) char tail[kKeys][sizeof(Int)];
      for (int i = 0; i < kKeys; ++i) {
        V::copy_start(tail[i], keys.first + i * keys.stride + d, dim - d);
      }
      add(d, tail[0], sizeof(tail[0]));
    }
    typename V::Vec floats[V::kLanes];
    REGARD_UNROLL for (int i = 0; i < V::kLanes; ++i) {
      floats[i] = __builtin_convertvector(sum[i], typename V::Vec);
    }
    return V::sum_rows(floats);
  }

  /// kColumns times kStep columns of kCount rows, from column d on.
  template <class Values, int kCount, int kColumns, int kSlots>
  REGARD_KERNEL_FN void add_columns(const WordWeights<kSlots, Values::kIsBf16>& weights,
                                    const WordRows& values, const Sums& out, std::int64_t d,
                                    RepeatedPrefetch* ahead) {
    constexpr std::int64_t kStepBytes = kStep * Values::kBytes;
    constexpr int kLines = static_cast<int>(2 * lines_of(kColumns * kStepBytes));
    const std::int64_t lines = lines_each(*ahead, kLines), stride = values.rows->stride;
    typename Values::Sum sum[kCount][2 * kColumns] = {};
    const std::uint32_t* pair = weights.pairs;
    const char* row = nullptr;
    const auto add_keys = [&]() __attribute__((always_inline)) {
      prefetch_lines<V::kLanes == 16 && kSlots == 1 ? 0 : kLines, kHasBf16OfF8<V>>(&ahead->cursor,
                                                                                   lines);
      Int value[2 * kColumns];
      REGARD_UNROLL for (int c = 0; c < kColumns; ++c) {
        V::pair_words(Values::load(row + c * kStepBytes),
                      Values::load(row + stride + c * kStepBytes), value + 2 * c);
      }
      REGARD_UNROLL for (int r = 0; r < kCount; ++r) {
        const Int weight = static_cast<std::int32_t>(pair[r]) - Int{};
        REGARD_UNROLL for (int v = 0; v < 2 * kColumns; ++v) {
          sum[r][v] = Values::add(sum[r][v], value[v], weight);
        }
      }
      row += 2 * stride;
      pair += kSlots;
    };
    for (std::int64_t j = 0, run = 0; j < values.count; j += run) {
      run = run_from(*values.rows, values.begin + j, values.count - j);
      row = rows_from(*values.rows, values.begin + j).first + d * Values::kBytes;
      REGARD_UNROLL_4 for (std::int64_t x = 0; x < run; x += 2) add_keys();
    }
    REGARD_UNROLL for (int r = 0; r < kCount; ++r) {
      const auto keep = V::set(out.rescale[r]), down = V::set(weights.down[r]);
      REGARD_UNROLL for (int v = 0; v < 2 * kColumns; ++v) {
        T* const at = out.first + r * out.step + d + v * V::kLanes;
        V::store(at, V::fma(V::load(at), keep, Values::total(sum[r][v], down)));
      }
    }
  }
};

}  // namespace
}  // namespace regard::cpu
