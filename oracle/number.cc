#include "oracle/number.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace regard::oracle {
namespace {

/// 2^exponent of a normal double, by its bits: std::ldexp took 7 % of the time of random cases.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

/// The exponent of a normal double, by its bits, as above.
int exponent_of(double value) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(value) >> 52 & 0x7ff) - 1023;
}

/// A binary floating-point format by its numbers: value = (-1)^s * 1.f * 2^(e - bias).
struct Format {
  int exponent_bits;
  int fraction_bits;
  bool has_infinity;

  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int exponent_of_smallest_normal() const { return 1 - bias(); }
  /// The unit in the last place of the subnormals.
  constexpr double smallest() const {
    return power_of_two(exponent_of_smallest_normal() - fraction_bits);
  }
  constexpr double largest() const {
    // E4M3 without infinity: exponent field 15 is a number, only the all-ones pattern is NaN.
    const int top = has_infinity ? bias() : bias() + 1;
    const double full = 2.0 - power_of_two(has_infinity ? -fraction_bits : 1 - fraction_bits);
    return full * power_of_two(top);
  }
};

constexpr Format kBf16{8, 7, true};
constexpr Format kF16{5, 10, true};
constexpr Format kF8E4M3{4, 3, false};
constexpr Format kF8E5M2{5, 2, true};

// Templates of the format, whose numbers are then constants: it is a fifth of the tests' time.

template <Format f>
double decode_small(std::uint32_t code) {
  const std::uint32_t fraction = code & ((1u << f.fraction_bits) - 1u);
  const std::uint32_t field = (code >> f.fraction_bits) & ((1u << f.exponent_bits) - 1u);
  const bool negative = (code >> (f.fraction_bits + f.exponent_bits)) != 0;
  const std::uint32_t top = (1u << f.exponent_bits) - 1u;
  double value = 0.0;
  if (f.has_infinity && field == top) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (!f.has_infinity && field == top && fraction == (1u << f.fraction_bits) - 1u) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (field == 0) {
    value = fraction * f.smallest();
  } else {
    value = (1.0 + fraction * power_of_two(-f.fraction_bits)) *
            power_of_two(static_cast<int>(field) - f.bias());
  }
  return negative ? -value : value;
}

/// The nearest integer (ties to even) of less than 2^51: the sum has no place for bits below 1.
/// std::nearbyint is a call.
double nearest_integer(double value) {
  constexpr double kUlpOfOne = 0x1.8p52;
  return std::copysign(value + kUlpOfOne - kUlpOfOne, value);
}

/// The nearest number of the format (ties to even) as a double; past the largest: infinity.
template <Format f>
double nearest(double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(exponent_of(value), f.exponent_of_smallest_normal());
  const int ulp = exponent - f.fraction_bits;
  const double rounded = nearest_integer(value * power_of_two(-ulp)) * power_of_two(ulp);
  if (std::fabs(rounded) <= f.largest()) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

template <Format f>
std::uint32_t encode_small(double value) {
  const std::uint32_t sign = std::signbit(value) ? 1u << (f.exponent_bits + f.fraction_bits) : 0u;
  const std::uint32_t top = ((1u << f.exponent_bits) - 1u) << f.fraction_bits;
  const double rounded = std::fabs(nearest<f>(value));
  if (std::isnan(rounded)) return sign | top | ((1u << f.fraction_bits) - 1u);
  if (std::isinf(rounded)) return sign | top | (f.has_infinity ? 0u : (1u << f.fraction_bits) - 1u);
  const double smallest_normal = power_of_two(f.exponent_of_smallest_normal());
  if (rounded < smallest_normal) return sign | static_cast<std::uint32_t>(rounded / f.smallest());
  const int exponent = exponent_of(rounded);
  const double fraction =
      rounded * power_of_two(f.fraction_bits - exponent) - (1 << f.fraction_bits);
  return sign | (static_cast<std::uint32_t>(exponent + f.bias()) << f.fraction_bits) |
         static_cast<std::uint32_t>(fraction);
}

template <class T>
double load(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return static_cast<double>(value);
}

template <class T>
void store(double value, void* element) {
  const T stored = static_cast<T>(value);
  std::memcpy(element, &stored, sizeof stored);
}

template <class T>
void store_integer(double value, void* element) {
  const double low = static_cast<double>(std::numeric_limits<T>::min());
  const double high = static_cast<double>(std::numeric_limits<T>::max());
  const double clamped = std::isnan(value) ? 0.0 : std::nearbyint(std::clamp(value, low, high));
  // The largest int64 is no double: 2^63 would not convert.
  store<T>(clamped >= 9.2e18 ? 9.2e18 : clamped, element);
}

template <class Int>
void store_code(std::uint32_t code, void* element) {
  const Int stored = static_cast<Int>(code);
  std::memcpy(element, &stored, sizeof stored);
}

template <class Int>
std::uint32_t load_code(const void* element) {
  Int code;
  std::memcpy(&code, element, sizeof code);
  return code;
}

}  // namespace

double decode(const void* element, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return load<double>(element);
    case Dtype::kF32: return load<float>(element);
    case Dtype::kBf16: return decode_small<kBf16>(load_code<std::uint16_t>(element));
    case Dtype::kF16: return decode_small<kF16>(load_code<std::uint16_t>(element));
    case Dtype::kF8E4M3: return decode_small<kF8E4M3>(load_code<std::uint8_t>(element));
    case Dtype::kF8E5M2: return decode_small<kF8E5M2>(load_code<std::uint8_t>(element));
    case Dtype::kI8: return load<std::int8_t>(element);
    case Dtype::kU8: return load<std::uint8_t>(element);
    case Dtype::kBool: return load<std::uint8_t>(element) != 0.0 ? 1.0 : 0.0;
    case Dtype::kI32: return load<std::int32_t>(element);
    case Dtype::kI64: return load<std::int64_t>(element);
    case Dtype::kU4: return static_cast<double>(load_code<std::uint8_t>(element) & 15u);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void encode(double value, void* element, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: store<double>(value, element); break;
    case Dtype::kF32: store<float>(value, element); break;
    case Dtype::kBf16: store_code<std::uint16_t>(encode_small<kBf16>(value), element); break;
    case Dtype::kF16: store_code<std::uint16_t>(encode_small<kF16>(value), element); break;
    case Dtype::kF8E4M3: store_code<std::uint8_t>(encode_small<kF8E4M3>(value), element); break;
    case Dtype::kF8E5M2: store_code<std::uint8_t>(encode_small<kF8E5M2>(value), element); break;
    case Dtype::kI8: store_integer<std::int8_t>(value, element); break;
    case Dtype::kU8: store_integer<std::uint8_t>(value, element); break;
    case Dtype::kBool: store<std::uint8_t>(value != 0.0 ? 1.0 : 0.0, element); break;
    case Dtype::kI32: store_integer<std::int32_t>(value, element); break;
    case Dtype::kI64: store_integer<std::int64_t>(value, element); break;
    case Dtype::kU4: store_integer<std::uint8_t>(std::min(value, 15.0), element); break;
  }
}

double round_to(double value, Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return value;
    case Dtype::kF32: return static_cast<float>(value);
    case Dtype::kBf16: return nearest<kBf16>(value);
    case Dtype::kF16: return nearest<kF16>(value);
    default: break;
  }
  unsigned char element[8] = {};
  encode(value, element, dtype);
  return decode(element, dtype);
}

double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return std::ldexp(1.0, -53);
    case Dtype::kF32: return std::ldexp(1.0, -24);
    case Dtype::kBf16: return std::ldexp(1.0, -8);
    case Dtype::kF16: return std::ldexp(1.0, -11);
    case Dtype::kF8E4M3: return std::ldexp(1.0, -4);
    case Dtype::kF8E5M2: return std::ldexp(1.0, -3);
    default: return 0.0;
  }
}

double lowest(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return std::numeric_limits<double>::lowest();
    case Dtype::kF32: return std::numeric_limits<float>::lowest();
    case Dtype::kBf16: return -kBf16.largest();
    case Dtype::kF16: return -kF16.largest();
    case Dtype::kF8E4M3: return -kF8E4M3.largest();
    case Dtype::kF8E5M2: return -kF8E5M2.largest();
    default: return 0.0;
  }
}

double half_of_smallest(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64: return std::ldexp(1.0, -1074);  // all of it: its half is no double
    case Dtype::kF32: return std::ldexp(1.0, -150);
    case Dtype::kBf16: return kBf16.smallest() / 2;
    case Dtype::kF16: return kF16.smallest() / 2;
    case Dtype::kF8E4M3: return kF8E4M3.smallest() / 2;
    case Dtype::kF8E5M2: return kF8E5M2.smallest() / 2;
    default: return 0.5;
  }
}

}  // namespace regard::oracle
