#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

// Element types and their scalar codecs; needs the standard library only.

namespace regard {

enum class Dtype : std::uint8_t {
  kF64 = 0,
  kF32,
  kBf16,
  kF16,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kU8,
  kBool,
  kI32,
  kI64,
  kU4  // keys and values alone: 0 to 15, two in a byte, the first in its low half
};
inline constexpr int kDtypeCount = 12;

struct DtypeInfo {
  const char* name;   // in cases and JSON
  int size_bytes;     // of u4 the byte that two elements share
  int mantissa_bits;  // explicit fraction bits; 0 for integers
};

constexpr DtypeInfo dtype_info(Dtype dtype) noexcept {
  constexpr DtypeInfo kInfo[kDtypeCount] = {{"f64", 8, 52}, {"f32", 4, 23},   {"bf16", 2, 7},
                                            {"f16", 2, 10}, {"f8e4m3", 1, 3}, {"f8e5m2", 1, 2},
                                            {"i8", 1, 0},   {"u8", 1, 0},     {"bool", 1, 0},
                                            {"i32", 4, 0},  {"i64", 8, 0},    {"u4", 1, 0}};
  const int i = static_cast<int>(dtype);
  return i >= 0 && i < kDtypeCount ? kInfo[i] : DtypeInfo{"?", 0, 0};
}

constexpr const char* to_string(Dtype dtype) noexcept { return dtype_info(dtype).name; }
constexpr int size_of(Dtype dtype) noexcept { return dtype_info(dtype).size_bytes; }
constexpr bool is_known(Dtype dtype) noexcept { return dtype_info(dtype).size_bytes != 0; }
constexpr bool is_float(Dtype dtype) noexcept { return dtype_info(dtype).mantissa_bits != 0; }

/// 8-bit floats. They are storage: of q, k and v, which a descale may go with, and of out.
constexpr bool is_f8(Dtype dtype) noexcept {
  return dtype == Dtype::kF8E4M3 || dtype == Dtype::kF8E5M2;
}

/// Of 8 bits or 4: keys and values of these types may have scales.
constexpr bool is_quantised(Dtype dtype) noexcept {
  return is_f8(dtype) || dtype == Dtype::kI8 || dtype == Dtype::kU4;
}

/// Elements of u4 that share a scale and a minimum; the last group of a row may be smaller.
inline constexpr std::int64_t kGroupSize = 32;

/// Bytes of so many elements that follow one another, an even number where two share a byte.
constexpr std::int64_t bytes_of(Dtype dtype, std::int64_t elements) noexcept {
  return dtype == Dtype::kU4 ? elements / 2 : elements * dtype_info(dtype).size_bytes;
}

/// The type of out where none is named: q's, and bf16 where q has 8-bit floats.
constexpr Dtype default_dtype_out(Dtype dtype_q) noexcept {
  return is_f8(dtype_q) ? Dtype::kBf16 : dtype_q;
}

/// What d_out, and d_q, d_k and d_v, may be where q has 8-bit floats.
constexpr bool is_f8_gradient(Dtype dtype) noexcept {
  return is_f8(dtype) || dtype == Dtype::kBf16 || dtype == Dtype::kF16 || dtype == Dtype::kF32;
}

constexpr std::optional<Dtype> parse_dtype(std::string_view name) noexcept {
  for (int i = 0; i < kDtypeCount; ++i) {
    if (name == dtype_info(static_cast<Dtype>(i)).name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

/// The Dtype of a C++ type; empty where there is none. Specialise it for a type of your own:
///   template <>
///   inline constexpr std::optional<regard::Dtype> regard::dtype_of<Half> = regard::Dtype::kF16;
template <class T>
inline constexpr std::optional<Dtype> dtype_of = std::nullopt;
template <>
inline constexpr std::optional<Dtype> dtype_of<double> = Dtype::kF64;
template <>
inline constexpr std::optional<Dtype> dtype_of<float> = Dtype::kF32;
template <>
inline constexpr std::optional<Dtype> dtype_of<std::int8_t> = Dtype::kI8;
template <>
inline constexpr std::optional<Dtype> dtype_of<std::uint8_t> = Dtype::kU8;
template <>
inline constexpr std::optional<Dtype> dtype_of<bool> = Dtype::kBool;
template <>
inline constexpr std::optional<Dtype> dtype_of<std::int32_t> = Dtype::kI32;
template <>
inline constexpr std::optional<Dtype> dtype_of<long> = sizeof(long) == 8 ? Dtype::kI64
                                                                         : Dtype::kI32;
template <>
inline constexpr std::optional<Dtype> dtype_of<long long> = Dtype::kI64;

/// bf16 bits of x, rounded to nearest even; NaN stays NaN (quiet).
constexpr std::uint16_t bf16_from_f32(float x) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  const std::uint32_t round = 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>((bits + round) >> 16);
}

constexpr float f32_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// A small binary float with `kExp` exponent and `kMan` fraction bits, IEEE-like with infinities
/// unless kFiniteOnly (E4M3: no infinity, one NaN pattern S.1111.111, maximum 448).
template <int kExp, int kMan, bool kFiniteOnly>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExp - 1)) - 1;
  static constexpr int kMaxExpField = (1 << kExp) - 1;
  static constexpr std::uint32_t kManMask = (1u << kMan) - 1u;
  static constexpr std::uint32_t kMagMask = (1u << (kExp + kMan)) - 1u;
  static constexpr std::uint32_t kInf = static_cast<std::uint32_t>(kMaxExpField) << kMan;
  static constexpr std::uint32_t kNan = kFiniteOnly ? kMagMask : (kInf | (1u << (kMan - 1)));
  static constexpr std::uint32_t kMaxFinite = kFiniteOnly ? kMagMask - 1u : kInf - 1u;

  /// Rounded to nearest even. Beyond the largest finite value: infinity, or NaN if the type has no
  /// infinity (the OCP FP8 rule without saturation).
  static constexpr std::uint32_t encode(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t sign = (bits >> 31) << (kExp + kMan);
    const std::uint32_t mag = bits & 0x7fffffffu;
    if (mag > 0x7f800000u) return sign | kNan;
    const std::uint32_t overflow = kFiniteOnly ? kNan : kInf;
    if (mag == 0x7f800000u) return sign | overflow;
    int exponent = static_cast<int>(mag >> 23) - 127;
    const int min_exponent = 1 - kBias;
    std::uint64_t fraction = mag & 0x7fffffu;
    if ((mag >> 23) != 0) fraction |= 0x800000u;  // f32 denormals are below every rounding point
    int shift = 23 - kMan;
    if (exponent < min_exponent) {
      shift += min_exponent - exponent;
      exponent = min_exponent;
    }
    if (shift > 40) return sign;
    const std::uint64_t half = std::uint64_t{1} << (shift - 1);
    const std::uint64_t odd = (fraction >> shift) & 1u;
    const std::uint64_t kept = (fraction + half - 1 + odd) >> shift;
    // kept carries the hidden bit: adding it to (exponent field - 1) handles carry and denormals.
    const std::uint64_t code = (static_cast<std::uint64_t>(exponent - min_exponent) << kMan) + kept;
    return sign | (code > kMaxFinite ? overflow : static_cast<std::uint32_t>(code));
  }

  static constexpr float decode(std::uint32_t code) noexcept {
    const bool negative = ((code >> (kExp + kMan)) & 1u) != 0;
    const std::uint32_t mag = code & kMagMask;
    float value = 0.0f;
    if (kFiniteOnly ? mag == kMagMask : mag > kInf) {
      value = std::numeric_limits<float>::quiet_NaN();
    } else if (!kFiniteOnly && mag == kInf) {
      value = std::numeric_limits<float>::infinity();
    } else {
      const int field = static_cast<int>(mag >> kMan);
      const std::uint32_t fraction = (mag & kManMask) | (field != 0 ? 1u << kMan : 0u);
      const int power = (field != 0 ? field : 1) - kBias - kMan;  // within f32's normal range
      value = static_cast<float>(fraction) *
              std::bit_cast<float>(static_cast<std::uint32_t>(power + 127) << 23);
    }
    return negative ? -value : value;
  }
};

using F16Codec = SmallFloat<5, 10, false>;
using F8E4M3Codec = SmallFloat<4, 3, true>;
using F8E5M2Codec = SmallFloat<5, 2, false>;

constexpr std::uint16_t f16_from_f32(float x) noexcept {
  return static_cast<std::uint16_t>(F16Codec::encode(x));
}
constexpr float f32_from_f16(std::uint16_t bits) noexcept { return F16Codec::decode(bits); }
constexpr std::uint8_t f8e4m3_from_f32(float x) noexcept {
  return static_cast<std::uint8_t>(F8E4M3Codec::encode(x));
}
constexpr float f32_from_f8e4m3(std::uint8_t bits) noexcept { return F8E4M3Codec::decode(bits); }
constexpr std::uint8_t f8e5m2_from_f32(float x) noexcept {
  return static_cast<std::uint8_t>(F8E5M2Codec::encode(x));
}
constexpr float f32_from_f8e5m2(std::uint8_t bits) noexcept { return F8E5M2Codec::decode(bits); }

}  // namespace regard
