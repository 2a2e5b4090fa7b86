#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "regard/dtype.h"

// The codecs against arithmetic of their definition: sign * fraction * 2^exponent in doubles, and
// rounding by search among all values, with no bit tricks in common.

namespace regard {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

struct Format {
  int exponent_bits, fraction_bits;
  bool finite_only;  // no infinities, one NaN a sign

  int bits() const { return 1 + exponent_bits + fraction_bits; }
  double value(unsigned code) const {
    const unsigned fraction = code & ((1u << fraction_bits) - 1);
    const unsigned field = (code >> fraction_bits) & ((1u << exponent_bits) - 1);
    const double sign = (code >> (bits() - 1)) != 0 ? -1.0 : 1.0;
    const bool top = field == (1u << exponent_bits) - 1;
    if (top && !finite_only) return fraction == 0 ? sign * kInf : kNan;
    if (top && fraction == (1u << fraction_bits) - 1) return kNan;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double scaled = std::ldexp(static_cast<double>(fraction), -fraction_bits);
    return sign * (field == 0 ? std::ldexp(scaled, 1 - bias)
                              : std::ldexp(1.0 + scaled, static_cast<int>(field) - bias));
  }
};

constexpr Format kF16{5, 10, false};
constexpr Format kBf16{8, 7, false};
constexpr Format kE4M3{4, 3, true};
constexpr Format kE5M2{5, 2, false};

bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class Decode, class Encode>
void check_all_codes(const Format& format, Decode decode, Encode encode) {
  for (unsigned code = 0; code < 1u << format.bits(); ++code) {
    const double expected = format.value(code);
    const float decoded = decode(code);
    ASSERT_TRUE(same(decoded, expected)) << code << ": " << decoded << ", not " << expected;
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(decode(encode(decoded)))) << code;
      const unsigned sign = code >> (format.bits() - 1);
      const float nan =
          std::copysign(std::numeric_limits<float>::quiet_NaN(), sign != 0 ? -1.0f : 1.0f);
      ASSERT_TRUE(std::isnan(decode(encode(nan))));
    } else {
      ASSERT_EQ(encode(decoded), code) << "a value encodes to its own code";
    }
  }
}

// Between every two neighbours: the midpoint goes to the even code, anything beside it to the
// nearer.
template <class Encode>
void check_rounding(const Format& format, Encode encode) {
  const unsigned half = 1u << (format.bits() - 1);
  for (unsigned code = 0; code + 1 < half; ++code) {
    const double low = format.value(code);
    const double high = format.value(code + 1);
    if (!std::isfinite(low) || !std::isfinite(high)) break;
    const float middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(static_cast<double>(middle), (low + high) / 2);
    for (const float sign : {1.0f, -1.0f}) {
      const unsigned flip = sign < 0 ? half : 0;
      ASSERT_EQ(encode(sign * middle), flip | (code + (code & 1))) << code << " tie";
      ASSERT_EQ(encode(sign * std::nextafter(middle, 0.0f)), flip | code) << code;
      ASSERT_EQ(encode(sign * std::nextafter(middle, HUGE_VALF)), flip | (code + 1)) << code;
      ASSERT_EQ(encode(sign * std::nextafter(static_cast<float>(low), HUGE_VALF)), flip | code)
          << code;
    }
  }
}

// Past the largest finite value, with the midpoint to the value that would follow it.
template <class Encode>
void check_overflow(const Format& format, unsigned largest, unsigned above, Encode encode) {
  const double max = format.value(largest);
  const double step = max - format.value(largest - 1);
  const float tie = static_cast<float>(max + step / 2);
  const unsigned half = 1u << (format.bits() - 1);
  EXPECT_EQ(encode(static_cast<float>(max)), largest);
  EXPECT_EQ(encode(std::nextafter(tie, 0.0f)), largest);
  // The code past `largest` would be even where `largest` is odd: only then does a tie go up.
  EXPECT_EQ(encode(tie), (largest & 1) != 0 ? above : largest);
  EXPECT_EQ(encode(std::nextafter(tie, HUGE_VALF)), above);
  EXPECT_EQ(encode(std::numeric_limits<float>::max()), above);
  EXPECT_EQ(encode(std::numeric_limits<float>::infinity()), above);
  EXPECT_EQ(encode(-std::numeric_limits<float>::infinity()), half | above);
}

unsigned encode_f16(float x) { return f16_from_f32(x); }
unsigned encode_bf16(float x) { return bf16_from_f32(x); }
unsigned encode_e4m3(float x) { return f8e4m3_from_f32(x); }
unsigned encode_e5m2(float x) { return f8e5m2_from_f32(x); }
float decode_f16(unsigned code) { return f32_from_f16(static_cast<std::uint16_t>(code)); }
float decode_bf16(unsigned code) { return f32_from_bf16(static_cast<std::uint16_t>(code)); }
float decode_e4m3(unsigned code) { return f32_from_f8e4m3(static_cast<std::uint8_t>(code)); }
float decode_e5m2(unsigned code) { return f32_from_f8e5m2(static_cast<std::uint8_t>(code)); }

TEST(DtypeCodec, EveryCodeDecodesToItsDefinitionAndBack) {
  check_all_codes(kF16, decode_f16, encode_f16);
  check_all_codes(kBf16, decode_bf16, encode_bf16);
  check_all_codes(kE4M3, decode_e4m3, encode_e4m3);
  check_all_codes(kE5M2, decode_e5m2, encode_e5m2);
}

TEST(DtypeCodec, RoundsToNearestEven) {
  check_rounding(kF16, encode_f16);
  check_rounding(kE4M3, encode_e4m3);
  check_rounding(kE5M2, encode_e5m2);
  check_rounding(kBf16, encode_bf16);
}

TEST(DtypeCodec, Overflows) {
  check_overflow(kF16, 0x7bff, 0x7c00, encode_f16);
  check_overflow(kE5M2, 0x7b, 0x7c, encode_e5m2);
  check_overflow(kE4M3, 0x7e, 0x7f, encode_e4m3);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(bf16_from_f32(0x1.fep127f), 0x7f7f);
}

TEST(DtypeCodec, SmallestValuesUnderflowToSignedZero) {
  EXPECT_EQ(encode_f16(std::numeric_limits<float>::denorm_min()), 0u);
  EXPECT_EQ(encode_f16(-std::numeric_limits<float>::denorm_min()), 0x8000u);
  EXPECT_EQ(encode_e4m3(-1e-30f), 0x80u);
  EXPECT_EQ(encode_e5m2(1e-30f), 0u);
  EXPECT_EQ(encode_bf16(-0.0f), 0x8000u);
}

TEST(DtypeCodec, NanStaysNanWhateverItsPayload) {
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7fc00000u}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(decode_bf16(encode_bf16(nan))));
    EXPECT_TRUE(std::isnan(decode_f16(encode_f16(nan))));
    EXPECT_TRUE(std::isnan(decode_e4m3(encode_e4m3(nan))));
    EXPECT_TRUE(std::isnan(decode_e5m2(encode_e5m2(nan))));
  }
}

TEST(DtypeCodec, Bf16RoundsLikeDoubleArithmetic) {
  // A multiplicative walk over f32 patterns: the nearest of the two neighbours, ties to even.
  for (std::uint64_t i = 1; i < 400000; ++i) {
    const auto bits = static_cast<std::uint32_t>(i * 2654435761u) & 0x7fffffffu;
    if (bits >= 0x7f000000u) continue;
    const float x = std::bit_cast<float>(bits);
    const unsigned low = bits >> 16;
    const double to_low = static_cast<double>(x) - kBf16.value(low);
    const double to_high = kBf16.value(low + 1) - static_cast<double>(x);
    const unsigned expected = to_low < to_high ? low : to_low > to_high ? low + 1 : low + (low & 1);
    ASSERT_EQ(encode_bf16(x), expected) << x;
  }
}

TEST(Dtype, NamesAndSizes) {
  for (int i = 0; i < kDtypeCount; ++i) {
    const Dtype dtype = static_cast<Dtype>(i);
    EXPECT_TRUE(is_known(dtype));
    EXPECT_EQ(parse_dtype(to_string(dtype)), dtype);
  }
  EXPECT_FALSE(is_known(static_cast<Dtype>(kDtypeCount)));
  EXPECT_STREQ(to_string(static_cast<Dtype>(200)), "?");
  EXPECT_FALSE(parse_dtype("f33").has_value());
  EXPECT_FALSE(parse_dtype("?").has_value());
  EXPECT_EQ(size_of(Dtype::kBf16), 2);
  EXPECT_EQ(bytes_of(Dtype::kBf16, 6), 12);
  EXPECT_EQ(bytes_of(Dtype::kU4, 6), 3);
  EXPECT_TRUE(is_float(Dtype::kF8E5M2));
  EXPECT_FALSE(is_float(Dtype::kBool));
}

}  // namespace
}  // namespace regard
