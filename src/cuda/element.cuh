#pragma once

#include <cstdint>

#include "cuda/block.cuh"
#include "problem/problem.h"

// Single elements: reading, writing, the functions of the softmax, and what marks hidden ones.

namespace regard::cuda {

using problem::Element;
using problem::View;

template <class T>
REGARD_DEVICE_FN T minus_infinity() {
  return static_cast<T>(-__builtin_inf());
}

/// A probability or gradient that its row may not see is -0: it adds nothing, and its bits mark it
/// products to leave out what stands behind it, even a NaN.
template <class T>
REGARD_DEVICE_FN T hidden_value() {
  return static_cast<T>(-0.0);
}
REGARD_DEVICE_FN bool is_hidden(float x) {
  return __builtin_bit_cast(std::uint32_t, x) == 0x80000000u;
}
REGARD_DEVICE_FN bool is_hidden(double x) {
  return __builtin_bit_cast(std::uint64_t, x) == 0x8000000000000000u;
}

REGARD_DEVICE_FN float exp2_of(float x) { return __builtin_exp2f(x); }
REGARD_DEVICE_FN double exp2_of(double x) { return __builtin_exp2(x); }
/// The same where a denormal may be 0: one instruction instead of five.
REGARD_DEVICE_FN float exp2_flushed(float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return exp2_of(x);
#endif
}
REGARD_DEVICE_FN float tanh_of(float x) { return __builtin_tanhf(x); }
REGARD_DEVICE_FN double tanh_of(double x) { return __builtin_tanh(x); }

/// 2^((score - max) * factor), at most 1: a score that was computed again may lie above the maximum
/// that was saved, by a rounding that of huge scores is large.
template <class T>
REGARD_DEVICE_FN T exp2_below(T score, T max, T factor) {
  return score > max ? T(1) : exp2_of((score - max) * factor);
}

/// What a maximum is subtracted as: -inf (nothing seen yet) as 0, so that exp2(-inf - it) is 0.
template <class T>
REGARD_DEVICE_FN T subtrahend(T max) {
  return max == minus_infinity<T>() ? T(0) : max;
}

/// Calls f(stored) with the storage type of `type`: one loop for each, not one branch an element.
template <class F>
REGARD_DEVICE_FN void with_stored(Element type, F f) {
  switch (type) {
    case Element::kF64: f(problem::StoredF64()); break;
    case Element::kBf16: f(problem::StoredBf16()); break;
    case Element::kF16: f(problem::StoredF16()); break;
    case Element::kF8E4M3: f(problem::StoredF8E4M3()); break;
    case Element::kF8E5M2: f(problem::StoredF8E5M2()); break;
    default: f(problem::StoredF32()); break;
  }
}

/// Calls f(read) with what reads an element of `rows`: read(where its row lies, the row's number,
/// its column).
template <class T, class Rows, class F>
REGARD_DEVICE_FN void with_reader(const Rows& rows, F f) {
  with_stored(rows.type, [&](auto stored) {
    using Stored = decltype(stored);
    f([](const char* from, std::int64_t, std::int64_t column) {
      using Bits = typename Stored::Bits;
      return Stored::template value<T>(reinterpret_cast<const Bits*>(from)[column]);
    });
  });
}

/// Element `index` of `data` as T.
template <class T>
REGARD_DEVICE_FN T load_element(Element type, const char* data, std::int64_t index) {
  T value{};
  with_stored(type, [&](auto stored) {
    using Stored = decltype(stored);
    value = Stored::template value<T>(reinterpret_cast<const typename Stored::Bits*>(data)[index]);
  });
  return value;
}

/// Rounded to nearest even.
template <class T>
REGARD_DEVICE_FN void store_element(Element type, char* data, std::int64_t index, T value) {
  const auto single = static_cast<float>(value);
  switch (type) {
    case Element::kF64: reinterpret_cast<double*>(data)[index] = static_cast<double>(value); break;
    case Element::kBf16:
      reinterpret_cast<std::uint16_t*>(data)[index] = problem::to_bf16(single);
      break;
    case Element::kF16:
      reinterpret_cast<std::uint16_t*>(data)[index] = problem::to_f16(single);
      break;
    case Element::kF8E4M3:
      reinterpret_cast<std::uint8_t*>(data)[index] = problem::to_f8e4m3(single);
      break;
    case Element::kF8E5M2:
      reinterpret_cast<std::uint8_t*>(data)[index] = problem::to_f8e5m2(single);
      break;
    default: reinterpret_cast<float*>(data)[index] = single; break;
  }
}

}  // namespace regard::cuda
