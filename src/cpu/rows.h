#pragma once

#include <cstdint>

#include "cpu/problem.h"
#include "cpu/simd/simd_vector.h"

// Dense rows of q, k, v and out, converted a vector at a time.

namespace regard::cpu {

/// The type of the arithmetic: its rows need no conversion.
template <class V>
inline constexpr Element kOwnElement = sizeof(typename V::Scalar) == sizeof(double) ? Element::kF64
                                                                                    : Element::kF32;

/// V::kLanes elements at `p` as V::Scalar.
template <class V>
REGARD_KERNEL_FN typename V::Vec load_vector(Element type, const char* p) {
  using T = typename V::Scalar;
  if constexpr (sizeof(T) == sizeof(float)) {
    switch (type) {
      case Element::kBf16: return V::load_bf16(reinterpret_cast<const std::uint16_t*>(p));
      case Element::kF16: return V::load_f16(reinterpret_cast<const std::uint16_t*>(p));
      case Element::kF8E4M3: return V::load_f8e4m3(reinterpret_cast<const std::uint8_t*>(p));
      case Element::kF8E5M2: return V::load_f8e5m2(reinterpret_cast<const std::uint8_t*>(p));
      case Element::kI8: return V::load_bytes(p);
      case Element::kU4: return V::load_u4(p);
      default: break;
    }
  }
  return V::load(reinterpret_cast<const T*>(p));
}

/// Rounded to nearest even.
template <class V>
REGARD_KERNEL_FN void store_vector(Element type, char* p, typename V::Vec v) {
  using T = typename V::Scalar;
  if constexpr (sizeof(T) == sizeof(float)) {
    switch (type) {
      case Element::kBf16: return V::store_bf16(reinterpret_cast<std::uint16_t*>(p), v);
      case Element::kF16: return V::store_f16(reinterpret_cast<std::uint16_t*>(p), v);
      case Element::kF8E4M3:
      case Element::kF8E5M2:
      case Element::kI8: {
        T lanes[V::kLanes];
        V::store(lanes, v);
        return store_row(type, p, lanes, 1, V::kLanes);
      }
      default: break;
    }
  }
  V::store(reinterpret_cast<T*>(p), v);
}

/// The same of vectors that follow one another.
template <class V, int kVectors>
REGARD_KERNEL_FN void store_vectors(Element type, char* p, const typename V::Vec (&v)[kVectors]) {
  constexpr int kPaired = sizeof(typename V::Scalar) == sizeof(float) ? kVectors / 2 * 2 : 0;
  const std::int64_t bytes = V::kLanes * element_bytes(type);
  if (kPaired > 0 && type == Element::kBf16) {
    REGARD_UNROLL for (int i = 0; i < kPaired; i += 2) {
      V::store_bf16_pair(reinterpret_cast<std::uint16_t*>(p + i * bytes), v[i], v[i + 1]);
    }
    REGARD_UNROLL for (int i = kPaired; i < kVectors; ++i)
        store_vector<V>(type, p + i * bytes, v[i]);
    return;
  }
  REGARD_UNROLL for (int i = 0; i < kVectors; ++i) store_vector<V>(type, p + i * bytes, v[i]);
}

/// Whether vectors are lines of the caches, which V::stream writes whole.
template <class V>
inline constexpr bool kHasStream = requires(char* p, typename V::Vec v) {
  V::stream(p, v);
};

/// As store_vectors; elements of f32 and pairs of vectors of bf16 that fill lines go past the
/// caches.
template <class V, int kVectors>
REGARD_KERNEL_FN void stream_vectors(Element type, char* p, const typename V::Vec (&v)[kVectors]) {
  const bool fills_lines = reinterpret_cast<std::uintptr_t>(p) % sizeof(typename V::Vec) == 0;
  if constexpr (kHasStream<V>) {
    if (fills_lines && type == kOwnElement<V>) {
      REGARD_UNROLL for (int i = 0; i < kVectors; ++i) V::stream(p + i * sizeof(v[i]), v[i]);
      return;
    }
    if constexpr (sizeof(typename V::Scalar) == sizeof(float) && kVectors % 2 == 0) {
      if (fills_lines && type == Element::kBf16) {
        REGARD_UNROLL for (int i = 0; i < kVectors; i += 2) {
          V::stream(p + i / 2 * sizeof(v[i]), V::bf16_pair_words(v[i], v[i + 1]));
        }
        return;
      }
    }
  }
  store_vectors<V>(type, p, v);
}

/// Whether load_vector knows the type.
template <class V>
REGARD_KERNEL_FN bool is_vector_type(Element type) {
  if (sizeof(typename V::Scalar) == sizeof(double)) return type == Element::kF64;
  return (type >= Element::kF32 && type <= Element::kI8) || type == Element::kU4;
}

/// to[x] = element x of the dense row at `row`, for x in [0, n).
template <class V>
REGARD_KERNEL_FN void load_dense_row(Element type, const char* row, std::int64_t n,
                                     typename V::Scalar* to) {
  std::int64_t x = 0;
  if (is_vector_type<V>(type)) {
    for (; x + V::kLanes <= n; x += V::kLanes) {
      V::store(to + x, load_vector<V>(type, row + bytes_of(type, x)));
    }
  }
  load_row(type, row + bytes_of(type, x), 1, n - x, to + x);
}

/// Calls f(x) for blocks of V::kLanes elements that cover [0, n), the last one over the one before
/// it where n is no multiple; returns the elements that are covered, none where n is less.
template <class V, class F>
REGARD_KERNEL_FN std::int64_t for_lanes(std::int64_t n, F f) {
  if (n < V::kLanes) return 0;
  for (std::int64_t x = 0; x + V::kLanes <= n; x += V::kLanes) f(x);
  if (n % V::kLanes != 0) f(n - V::kLanes);
  return n;
}

/// columns[x * V::kWidth + lane] = element x of rows[lane], for x in [0, n) and V::kLanes lanes; 0
/// from lane `count` on.
template <class V>
static void load_columns(Element type, const char* const* rows, int count, std::int64_t n,
                         typename V::Scalar* columns) {
  const std::int64_t bytes = element_bytes(type);
  std::int64_t x = 0;
  const auto load_blocks = [&](Element from, int used) __attribute__((always_inline)) {
    x = for_lanes<V>(
        n, [&](std::int64_t at) __attribute__((always_inline)) {
          typename V::Vec block[V::kLanes];
          REGARD_UNROLL for (int lane = 0; lane < V::kLanes; ++lane) {
            block[lane] = lane < used ? load_vector<V>(from, rows[lane] + at * bytes) : V::set(0);
          }
          V::transpose(block);
          REGARD_UNROLL for (int y = 0; y < V::kLanes; ++y) {
            V::store(columns + (at + y) * V::kWidth, block[y]);
          }
        });
  };
  if (type == kOwnElement<V> && count == V::kLanes) {  // without branches for each row
    load_blocks(kOwnElement<V>, V::kLanes);
  } else {
    load_blocks(type, count);
  }
  for (int lane = 0; x < n && lane < V::kLanes; ++lane) {
    typename V::Scalar tail[V::kLanes] = {};
    if (lane < count) load_row(type, rows[lane] + x * bytes, 1, n - x, tail);
    for (std::int64_t y = x; y < n; ++y) columns[y * V::kWidth + lane] = tail[y - x];
  }
}

/// store_columns to bf16 of as many elements as two vectors and more; returns how many are stored:
/// all, or all but an odd last one. Words of two elements are transposed, half as many.
template <class V>
static std::int64_t store_bf16_columns(char* const* rows, int count, std::int64_t n,
                                       const typename V::Scalar* columns, typename V::Vec by) {
  constexpr std::int64_t kPairBytes = 4;
  return 2 * for_lanes<V>(
                 n / 2, [&](std::int64_t at) __attribute__((always_inline)) {
                   typename V::Vec block[V::kLanes];  // bits that are only moved
                   REGARD_UNROLL for (int y = 0; y < V::kLanes; ++y) {
                     const auto* const column = columns + 2 * (at + y) * V::kWidth;
                     block[y] = V::from_unsigned(
                         V::bf16_pairs(V::load(column) * by, V::load(column + V::kWidth) * by));
                   }
                   V::transpose(block);
                   REGARD_UNROLL for (int lane = 0; lane < V::kLanes; ++lane) {
                     if (lane < count) {
                       __builtin_memcpy(rows[lane] + at * kPairBytes, &block[lane],
                                        sizeof(block[lane]));
                     }
                   }
                 });
}

/// The way back: element x of rows[lane] = columns[x * V::kWidth + lane] * by[lane], lanes below
/// `count`.
template <class V>
static void store_columns(Element type, char* const* rows, int count, std::int64_t n,
                          const typename V::Scalar* columns, typename V::Vec by) {
  const std::int64_t bytes = element_bytes(type);
  std::int64_t x = 0;
  const auto store_blocks = [&](Element to) __attribute__((always_inline)) {
    x = for_lanes<V>(
        n, [&](std::int64_t at) __attribute__((always_inline)) {
          typename V::Vec block[V::kLanes];
          REGARD_UNROLL for (int y = 0; y < V::kLanes; ++y) {
            block[y] = V::load(columns + (at + y) * V::kWidth) * by;
          }
          V::transpose(block);
          REGARD_UNROLL for (int lane = 0; lane < V::kLanes; ++lane) {
            if (lane < count) store_vector<V>(to, rows[lane] + at * bytes, block[lane]);
          }
        });
  };
  if (type == Element::kF32) {  // a branch for each vector took as long as its arithmetic
    store_blocks(Element::kF32);
  } else if (sizeof(typename V::Scalar) == sizeof(float) && type == Element::kBf16 &&
             n >= 2 * V::kLanes) {
    if constexpr (sizeof(typename V::Scalar) == sizeof(float)) {
      x = store_bf16_columns<V>(rows, count, n, columns, by);
    }
  } else {
    store_blocks(type);
  }
  for (int lane = 0; x < n && lane < count; ++lane) {
    typename V::Scalar tail[V::kLanes];
    for (std::int64_t y = x; y < n; ++y) tail[y - x] = columns[y * V::kWidth + lane] * by[lane];
    store_row(type, rows[lane] + x * bytes, tail, 1, n - x);
  }
}

}  // namespace regard::cpu
