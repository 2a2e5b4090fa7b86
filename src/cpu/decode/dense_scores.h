#pragma once

#include <cstdint>

#include "cpu/forward/softmax.h"
#include "cpu/simd/simd_vector.h"

// Scores, then probabilities, of keys that nothing edits, of up to 4 rows: [keys][slots], a slot
// for each row, so that a vector holds several keys. With rows in lanes ([keys][W]) four rows of
// AVX-512 would leave 12 of 16 lanes empty in every exp2. The bits are those of softmax.h.

namespace regard::cpu {
namespace {  // members with linkage would be shared between units

/// Slots of a key: 3 rows take 4, of which one is computed on 0.
REGARD_KERNEL_FN constexpr int slots_of(int rows) { return rows == 3 ? 4 : rows; }

/// They come in so many keys.
inline constexpr std::int64_t kDenseKeys = 16;

/// A number for each slot, at any address of one.
template <class T, int kSlots>
struct SlotsOf {
  typedef T Type __attribute__((vector_size(kSlots * sizeof(T)), aligned(sizeof(T)), may_alias));
};

/// Scores, or probabilities, [keys][W] of each key times its scale: the sign of -0 stays.
template <class V, int kVectors>
REGARD_KERNEL_FN void multiply_keys(const typename V::Scalar* scales, std::int64_t size,
                                    typename V::Scalar* numbers) {
  for (std::int64_t j = 0; j < size; ++j) {
    const auto scale = V::set(scales[j]);
    REGARD_UNROLL for (int v = 0; v < kVectors; ++v) {
      auto* const at = numbers + j * V::kWidth + v * V::kLanes;
      V::store(at, V::load(at) * scale);
    }
  }
}

template <class V, int kSlots>
struct DenseScores {
  using T = typename V::Scalar;
  using Vec = typename V::Vec;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kKeys = kLanes / kSlots;                        // of a vector
  static constexpr int kCount = static_cast<int>(kDenseKeys) / kKeys;  // vectors of kDenseKeys
  using Lanes = typename MakeIndexList<kLanes>::type;
  using Slots = typename SlotsOf<T, kSlots>::Type;

  /// Lane l has slot l % kSlots of those at `slots`.
  REGARD_KERNEL_FN Vec repeated(const T* slots) {
    return repeated(*reinterpret_cast<const Slots*>(slots), Lanes{});
  }

  /// Scores, or probabilities, of each of `keys` times its scale: the sign of -0 stays. A vector is
  /// read behind the last scale.
  REGARD_KERNEL_FN void multiply_keys(std::int64_t keys, const T* scales, T* numbers) {
    for (std::int64_t j = 0; j < keys; j += kKeys, numbers += kLanes) {
      V::store(numbers, V::load(numbers) * of_keys(V::load(scales + j), Lanes{}));
    }
  }

  /// max[r + slot] = the greatest score, a NaN passed over; the lanes behind are overwritten. Whole
  /// vectors are stored: parts of one would keep its next load waiting.
  REGARD_KERNEL_FN void store_max(std::int64_t keys, const T* scores, std::int64_t r, T* max) {
    Vec all = minus_infinity<V>();
    for (std::int64_t j = 0; j < keys; j += kDenseKeys) {
      REGARD_UNROLL for (int i = 0; i < kCount; ++i) {
        all = V::max(V::load(scores + j * kSlots + i * kLanes), all);
      }
    }
    fold<kLanes / 2>(&all);
    T* const to = max + r / kLanes * kLanes;
    const auto lane = static_cast<std::int32_t>(r % kLanes);
    V::store(to, V::select(lanes(Lanes{}) < lane, V::load(to), all));
  }

  /// See exponentiate: `max` and `sum` are the rows' own of the state.
  REGARD_KERNEL_FN void exponentiate(std::int64_t keys, T factor, T* scores, const T* max, T* sum) {
    const Vec from = subtrahend<V>(repeated(max));
    Slots total{};  // key by key, as rows in lanes are summed
    for (std::int64_t j = 0; j < keys; j += kDenseKeys, scores += kDenseKeys * kSlots) {
      constexpr int kVectors = kCount < kExp2Vectors ? kCount : kExp2Vectors;
      for (int i = 0; i < kCount; i += kVectors) {
        Vec prob[kVectors];
        REGARD_UNROLL for (int x = 0; x < kVectors; ++x) {
          prob[x] = V::load(scores + (i + x) * kLanes) - from;
        }
        exp2_nonpositive<V, kVectors>(prob, V::set(factor));
        REGARD_UNROLL for (int x = 0; x < kVectors; ++x) {
          V::store(scores + (i + x) * kLanes, prob[x]);
        }
      }
      REGARD_UNROLL for (int x = 0; x < kDenseKeys; ++x) {
        total += *reinterpret_cast<const Slots*>(scores + x * kSlots);
      }
    }
    *reinterpret_cast<Slots*>(sum) += total;
  }

 private:
  template <int... kLane>
  REGARD_KERNEL_FN typename V::Int lanes(IndexList<kLane...>) {
    return typename V::Int{kLane...};
  }
  template <int... kLane>
  REGARD_KERNEL_FN Vec repeated(Slots slots, IndexList<kLane...>) {
    if constexpr (kSlots == 1) return V::set(slots[0]);
    return __builtin_shufflevector(slots, slots, kLane % kSlots...);
  }
  template <int... kLane>
  REGARD_KERNEL_FN Vec of_keys(Vec keys, IndexList<kLane...>) {
    return __builtin_shufflevector(keys, keys, kLane / kSlots...);
  }
  template <int kStep, int... kLane>
  REGARD_KERNEL_FN Vec rotated(Vec x, IndexList<kLane...>) {
    return __builtin_shufflevector(x, x, (kLane + kStep) % kLanes...);
  }
  template <int kStep>
  REGARD_KERNEL_FN void fold(Vec* x) {
    if constexpr (kStep >= kSlots) {
      *x = V::max(rotated<kStep>(*x, Lanes{}), *x);
      fold<kStep / 2>(x);
    }
  }
};

/// Where scores and probabilities are: [keys][W], or of each group of rows in turn [keys][slots]
/// (DenseScores).
template <class V>
struct ScorePlace {
  using T = typename V::Scalar;
  T* first;
  std::int64_t dense_keys;  // 0: [keys][W]

  /// From key j to the next.
  template <int kRows>
  REGARD_KERNEL_FN std::int64_t step(const ScorePlace& self) {
    return self.dense_keys > 0 ? slots_of(kRows) : V::kWidth;
  }
  /// Key j's, of rows from r on.
  template <int kRows>
  REGARD_KERNEL_FN T* at(const ScorePlace& self, std::int64_t r, std::int64_t j) {
    return self.first + (self.dense_keys > 0 ? r * self.dense_keys : r) + j * step<kRows>(self);
  }
};

}  // namespace
}  // namespace regard::cpu
