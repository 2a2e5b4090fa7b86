// A plain decode of one head of K and V: what a short kernel reaches that hardware prefetchers
// like. Included by isa_<isa>.cc, in vectors as wide as that instruction set's.
//
// K's tile is multiplied while V's tile is prefetched into the L2, and V's while the next tile of K
// is: one stream at a time is read, the other one fetched.

#include <cstdint>

#include "decode_probe/kernel.h"

namespace probe {
namespace {  // members with linkage would be shared between units

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Words __attribute__((vector_size(4 * kLanes)));
typedef std::uint16_t Halves __attribute__((vector_size(2 * kLanes)));

constexpr int kTile = 64;  // keys: scores of 8 rows take 2 KB of the L1

Floats load(const float* p) {
  Floats x;
  __builtin_memcpy(&x, p, sizeof(x));
  return x;
}

Floats load(const std::uint16_t* p) {  // bf16: the upper half of a float
  Halves x;
  __builtin_memcpy(&x, p, sizeof(x));
  return (Floats)(__builtin_convertvector(x, Words) << 16);
}

void store(float* p, Floats x) { __builtin_memcpy(p, &x, sizeof(x)); }

Floats fill(float x) { return x - Floats{}; }

float sum(Floats x) {
  float lanes[kLanes];
  store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// 2^x for x <= 0, to 2e-6; 0 below -126.
Floats exp2_of(Floats x) {
  x = x < -126.0f ? fill(-126.0f) : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: rounds to a whole number
  const Floats whole = (x + kRound) - kRound, f = x - whole;
  Floats p = fill(1.3333558e-3f);
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  const auto exponent = (__builtin_convertvector(whole, Words) + 127) << 23;
  return p * (Floats)exponent;
}

void prefetch(const void* row, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) {
    __builtin_prefetch(static_cast<const char*>(row) + at, 0, 2);
  }
}

/// scores[g][j] of a tile's keys.
template <int kRows, class T>
void multiply_keys(const HeadCall& c, const T* keys, const T* values, std::int64_t size,
                   float (*scores)[kTile]) {
  for (std::int64_t j = 0; j < size; ++j) {
    prefetch(values + j * c.stride, c.dim * static_cast<std::int64_t>(sizeof(T)));
    Floats total[kRows] = {};
    const T* const key = keys + j * c.stride;
    for (std::int64_t d = 0; d < c.dim; d += kLanes) {
      const Floats k = load(key + d);
#pragma GCC unroll 8
      for (int g = 0; g < kRows; ++g) total[g] += load(c.q + g * c.dim + d) * k;
    }
#pragma GCC unroll 8
    for (int g = 0; g < kRows; ++g) scores[g][j] = sum(total[g]) * c.scale;
  }
}

/// out[g] += probabilities times a tile's values; four keys at a time share a load of out.
template <int kRows, class T>
void add_values(const HeadCall& c, const T* values, const T* next_keys, std::int64_t size,
                const float (*probs)[kTile], float* out) {
  for (std::int64_t j = 0; j < size; j += 4) {
    const std::int64_t keys = size - j < 4 ? size - j : 4;
    for (std::int64_t x = 0; x < keys && next_keys != nullptr; ++x) {
      prefetch(next_keys + (j + x) * c.stride, c.dim * static_cast<std::int64_t>(sizeof(T)));
    }
    const T* const first = values + j * c.stride;
    for (std::int64_t d = 0; d < c.dim; d += kLanes) {
      Floats v[4] = {};
      for (std::int64_t x = 0; x < keys; ++x) v[x] = load(first + x * c.stride + d);
#pragma GCC unroll 8
      for (int g = 0; g < kRows; ++g) {
        float* const to = out + g * c.dim + d;
        const float* const p = probs[g] + j;
        store(to, load(to) + v[0] * p[0] + v[1] * p[1] + v[2] * p[2] + v[3] * p[3]);
      }
    }
  }
}

/// The rows of c.q over all of its keys, into c.out [kRows][dim].
template <int kRows, class T>
void decode_rows(const HeadCall& c) {
  alignas(64) float scores[kRows][kTile];
  float max[kRows], total[kRows] = {};
  for (int g = 0; g < kRows; ++g) max[g] = -3e38f;
  for (std::int64_t x = 0; x < kRows * c.dim; ++x) c.out[x] = 0.0f;
  const T *keys = static_cast<const T*>(c.keys), *values = static_cast<const T*>(c.values);
  for (std::int64_t begin = 0; begin < c.length; begin += kTile) {
    const std::int64_t size = c.length - begin < kTile ? c.length - begin : kTile;
    for (auto& row : scores) {
      for (float& score : row) score = -3e38f;
    }
    multiply_keys<kRows>(c, keys + begin * c.stride, values + begin * c.stride, size, scores);
    for (int g = 0; g < kRows; ++g) {
      float top = max[g];
      for (const float score : scores[g]) top = top < score ? score : top;
      const float keep = sum(exp2_of(fill(max[g] - top))) / kLanes;
      Floats added{};
      for (int j = 0; j < kTile; j += kLanes) {
        const Floats p = exp2_of(load(scores[g] + j) - top);
        store(scores[g] + j, p);
        added += p;
      }
      total[g] = total[g] * keep + sum(added);
      if (keep != 1.0f) {
        for (std::int64_t d = 0; d < c.dim; ++d) c.out[g * c.dim + d] *= keep;
      }
      max[g] = top;
    }
    const bool is_last = begin + kTile >= c.length;
    add_values<kRows>(c, values + begin * c.stride,
                      is_last ? nullptr : keys + (begin + kTile) * c.stride, size, scores, c.out);
  }
  for (int g = 0; g < kRows; ++g) {
    for (std::int64_t d = 0; d < c.dim; ++d) c.out[g * c.dim + d] /= total[g];
  }
}

/// Of 1, 2, 4 or 8 rows.
template <class T>
void decode(const HeadCall& c) {
  switch (c.rows) {
    case 1: return decode_rows<1, T>(c);
    case 2: return decode_rows<2, T>(c);
    case 4: return decode_rows<4, T>(c);
    default: return decode_rows<8, T>(c);
  }
}

}  // namespace
}  // namespace probe
