#pragma once

#include <cstdint>

#include "semantics/kernel_fn.h"

// Element types as kernels see them: rows are converted to the type of the arithmetic (f32, or f64
// for f64) when they are read, and once, to nearest even, when they are written.

namespace regard::problem {

/// The values of regard::Dtype (problem.cc asserts it); kernels do not include public headers.
enum class Element : std::uint8_t {
  kF64 = 0,
  kF32,
  kBf16,
  kF16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kBool,
  kU4 = 11
};

REGARD_KERNEL_FN bool is_8_bit_float(Element type) {
  return type == Element::kF8E4M3 || type == Element::kF8E5M2;
}

REGARD_KERNEL_FN std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
REGARD_KERNEL_FN float f32_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

REGARD_KERNEL_FN float from_bf16(std::uint16_t h) {
  return f32_of(static_cast<std::uint32_t>(h) << 16);
}

/// All ones where a < b, for a and b below 2^31.
REGARD_KERNEL_FN std::uint32_t mask_less(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
}

/// By masks instead of conditions, which GCC 12 keeps as branches: attention on f16 was 1.5x
/// slower.
REGARD_KERNEL_FN float from_f16(std::uint16_t h) {
  const std::uint32_t magnitude = h & 0x7fffu;
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  // A denormal goes through an integer: shifted into place it would be lost where denormals of f32
  // are flushed.
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const std::uint32_t is_denormal = mask_less(magnitude, 0x400u);
  const std::uint32_t is_special = mask_less(0x7bffu, magnitude);  // infinity or NaN
  const std::uint32_t normal = ((magnitude << 13) + (112u << 23)) | (is_special & 0x7f800000u);
  return f32_of((is_denormal & bits_of(denormal)) | (~is_denormal & normal) | sign);
}

/// One NaN pattern and no infinity; 2^-9 is a denormal's unit.
REGARD_KERNEL_FN float from_f8e4m3(std::uint8_t x) {
  const std::uint32_t magnitude = x & 0x7fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x80u) << 24;
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9f;
  const std::uint32_t is_denormal = mask_less(magnitude, 8u);
  const std::uint32_t is_nan = mask_less(0x7eu, magnitude);
  const std::uint32_t normal = ((magnitude << 20) + (120u << 23)) | (is_nan & 0x7fc00000u);
  return f32_of((is_denormal & bits_of(denormal)) | (~is_denormal & normal) | sign);
}

/// The upper half of an f16.
REGARD_KERNEL_FN float from_f8e5m2(std::uint8_t x) {
  return from_f16(static_cast<std::uint16_t>(x << 8));
}

REGARD_KERNEL_FN float from_i8(std::int8_t x) { return static_cast<float>(x); }

/// Codes of 4 bits stand two in a byte, the first in its low half; groups of them along a row share
/// a scale and a minimum, f32 beside one another.
inline constexpr std::int64_t kGroup = 32;
inline constexpr float kMaxU4 = 15.0f;

REGARD_KERNEL_FN float from_u4(const void* row, std::int64_t x) {
  const std::uint32_t pair = static_cast<const std::uint8_t*>(row)[x / 2];
  return static_cast<float>((pair >> (x % 2 * 4)) & 15u);
}

REGARD_KERNEL_FN std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// Rounded to nearest even; what lies beyond the largest finite number becomes that. kMax and kNan
/// are codes.
template <int kMantissa, int kBias, std::uint32_t kMax, std::uint32_t kNan>
REGARD_KERNEL_FN std::uint8_t to_f8(float x) {
  constexpr int kShift = 23 - kMantissa;
  constexpr std::uint32_t kRebias = (127u - kBias) << 23;
  constexpr std::uint32_t kMinNormal = (128u - kBias) << 23;
  constexpr std::uint32_t kRounder = (151u - kBias - kMantissa) << 23;  // its unit is a denormal's
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t code = 0;
  if (magnitude > 0x7f800000u) {
    code = kNan;
  } else if (magnitude < kMinNormal) {
    code = bits_of(f32_of(magnitude) + f32_of(kRounder)) - kRounder;
  } else {
    const std::uint32_t half = (1u << (kShift - 1)) - 1u + ((magnitude >> kShift) & 1u);
    code = (magnitude - kRebias + half) >> kShift;
    code = code < kMax ? code : kMax;
  }
  return static_cast<std::uint8_t>(code | ((bits >> 24) & 0x80u));
}
REGARD_KERNEL_FN std::uint8_t to_f8e4m3(float x) { return to_f8<3, 7, 0x7e, 0x7f>(x); }
REGARD_KERNEL_FN std::uint8_t to_f8e5m2(float x) { return to_f8<2, 15, 0x7b, 0x7e>(x); }

/// Rounded to nearest even and held to -127 to 127; NaN becomes 0.
REGARD_KERNEL_FN std::int8_t to_i8(float x) {
  constexpr float kMax = 127.0f;
  constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23: its unit is 1
  const float held = x > kMax ? kMax : (x < -kMax ? -kMax : (x == x ? x : 0.0f));
  return static_cast<std::int8_t>((held + kRounder) - kRounder);
}

/// Rounded to nearest even and held to 0 to 15; NaN becomes 0. The other half of the byte is 0
/// before an even element is written.
REGARD_KERNEL_FN void put_u4(void* row, std::int64_t x, float value) {
  constexpr float kRounder = 8388608.0f;  // 2^23: its unit is 1
  const float held = value > kMaxU4 ? kMaxU4 : (value > 0.0f ? value : 0.0f);
  const auto code = static_cast<std::uint32_t>((held + kRounder) - kRounder);
  std::uint8_t& pair = static_cast<std::uint8_t*>(row)[x / 2];
  pair = static_cast<std::uint8_t>(x % 2 == 0 ? code : pair | code << 4);
}

REGARD_KERNEL_FN std::uint16_t to_f16(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  std::uint32_t h = 0;
  if (magnitude > 0x7f800000u) {
    h = 0x7e00u;
  } else if (magnitude >= 0x47800000u) {  // 65536: past every finite value
    h = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // 2^-14: adding 1/2 rounds at a denormal's last bit
    h = bits_of(f32_of(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    h = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return static_cast<std::uint16_t>(h | sign);
}

/// A finite double stays finite: finfo.min of f64 is a number in f32 arithmetic too, not a mask.
template <class T>
REGARD_KERNEL_FN T from_f64(double x) {
  if constexpr (sizeof(T) == sizeof(double)) {
    return x;
  } else {
    constexpr double kMax = 3.4028234663852886e38;  // finfo(f32).max
    const bool finite = x - x == 0.0;
    const double held = finite ? (x > kMax ? kMax : (x < -kMax ? -kMax : x)) : x;
    return static_cast<T>(held);
  }
}

/// Storage types, each with its conversion to the type of the arithmetic.
struct StoredF64 {
  using Bits = double;
  template <class T>
  REGARD_KERNEL_FN T value(double x) {
    return from_f64<T>(x);
  }
};
struct StoredF32 {
  using Bits = float;
  template <class T>
  REGARD_KERNEL_FN T value(float x) {
    return static_cast<T>(x);
  }
};
/// Fewer bits than an f32, which kWiden makes one.
template <class B, float (*kWiden)(B)>
struct StoredNarrow {
  using Bits = B;
  template <class T>
  REGARD_KERNEL_FN T value(B x) {
    return static_cast<T>(kWiden(x));
  }
};
using StoredBf16 = StoredNarrow<std::uint16_t, from_bf16>;
using StoredF16 = StoredNarrow<std::uint16_t, from_f16>;
using StoredF8E4M3 = StoredNarrow<std::uint8_t, from_f8e4m3>;
using StoredF8E5M2 = StoredNarrow<std::uint8_t, from_f8e5m2>;
using StoredI8 = StoredNarrow<std::int8_t, from_i8>;

/// to[x] = row[x * stride] for x in [0, n), as T; `row` is the address of the first element. The
/// stride of u4 is 1.
template <class T>
REGARD_KERNEL_FN void load_row(Element type, const void* row, std::int64_t stride, std::int64_t n,
                               T* to) {
  const auto load = [&](auto stored) __attribute__((always_inline)) {
    using Stored = decltype(stored);
    const auto* const from = static_cast<const typename Stored::Bits*>(row);
    for (std::int64_t x = 0; x < n; ++x) to[x] = Stored::template value<T>(from[x * stride]);
  };
  switch (type) {
    case Element::kF64: load(StoredF64()); break;
    case Element::kF32: load(StoredF32()); break;
    case Element::kBf16: load(StoredBf16()); break;
    case Element::kF16: load(StoredF16()); break;
    case Element::kF8E4M3: load(StoredF8E4M3()); break;
    case Element::kF8E5M2: load(StoredF8E5M2()); break;
    case Element::kI8: load(StoredI8()); break;
    case Element::kU4:
      for (std::int64_t x = 0; x < n; ++x) to[x] = static_cast<T>(from_u4(row, x));
      break;
    default: break;  // masks are not read as numbers
  }
}

/// row[x] = from[x * from_stride] for x in [0, n), rounded to nearest even.
template <class T>
REGARD_KERNEL_FN void store_row(Element type, void* row, const T* from, std::int64_t from_stride,
                                std::int64_t n) {
  for (std::int64_t x = 0; x < n; ++x) {
    const T value = from[x * from_stride];
    switch (type) {
      case Element::kF64: static_cast<double*>(row)[x] = static_cast<double>(value); break;
      case Element::kF32: static_cast<float*>(row)[x] = static_cast<float>(value); break;
      case Element::kBf16:
        static_cast<std::uint16_t*>(row)[x] = to_bf16(static_cast<float>(value));
        break;
      case Element::kF16:
        static_cast<std::uint16_t*>(row)[x] = to_f16(static_cast<float>(value));
        break;
      case Element::kF8E4M3:
        static_cast<std::uint8_t*>(row)[x] = to_f8e4m3(static_cast<float>(value));
        break;
      case Element::kF8E5M2:
        static_cast<std::uint8_t*>(row)[x] = to_f8e5m2(static_cast<float>(value));
        break;
      case Element::kI8:
        static_cast<std::int8_t*>(row)[x] = to_i8(static_cast<float>(value));
        break;
      case Element::kU4: put_u4(row, x, static_cast<float>(value)); break;
      default: break;
    }
  }
}

/// Of u4 the byte that two share: strides of its views count bytes.
REGARD_KERNEL_FN constexpr std::int64_t element_bytes(Element type) {
  switch (type) {
    case Element::kF64: return 8;
    case Element::kF32: return 4;
    case Element::kBf16:
    case Element::kF16: return 2;
    default: return 1;
  }
}

/// Bytes of n elements of a row, an even number of u4.
REGARD_KERNEL_FN constexpr std::int64_t bytes_of(Element type, std::int64_t n) {
  return type == Element::kU4 ? n / 2 : n * element_bytes(type);
}

/// row[x] = 0 for x in [0, n): no type has other bits for it.
REGARD_KERNEL_FN void clear_row(Element type, void* row, std::int64_t n) {
  __builtin_memset(row, 0, static_cast<std::size_t>(bytes_of(type, n)));
}

}  // namespace regard::problem
