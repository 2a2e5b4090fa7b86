#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "cpu/problem.h"
#include "regard/dtype.h"

namespace regard::cpu {
namespace {

TEST(Elements, ConversionsEqualThePublicCodecs) {
  for (std::uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    const float from_codec = f32_from_f16(half), from_kernel = from_f16(half);
    ASSERT_EQ(std::isnan(from_codec), std::isnan(from_kernel)) << h;
    if (!std::isnan(from_codec)) {
      ASSERT_EQ(bits_of(from_codec), bits_of(from_kernel)) << h;
    }
    ASSERT_EQ(bits_of(from_bf16(half)), bits_of(f32_from_bf16(half))) << h;
  }
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4093) {
    const float x = f32_of(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(to_bf16(x), bf16_from_f32(x)) << bits;
    ASSERT_EQ(std::isnan(x) ? 0x7e00 : to_f16(x), std::isnan(x) ? 0x7e00 : f16_from_f32(x)) << bits;
  }
  for (const float x : {65519.99f, 65520.0f, 65536.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, 0x1p-14f}) {
    EXPECT_EQ(to_f16(x), f16_from_f32(x)) << x;
  }
  EXPECT_TRUE(std::isnan(from_f16(to_f16(std::nanf("")))));
}

TEST(Elements, CodesOf8BitsAreThoseOfThePublicCodecs) {
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const float e4m3 = f32_from_f8e4m3(byte), e5m2 = f32_from_f8e5m2(byte);
    ASSERT_EQ(std::isnan(from_f8e4m3(byte)), std::isnan(e4m3)) << code;
    ASSERT_EQ(std::isnan(from_f8e5m2(byte)), std::isnan(e5m2)) << code;
    if (!std::isnan(e4m3)) {
      ASSERT_EQ(bits_of(from_f8e4m3(byte)), bits_of(e4m3)) << code;
      ASSERT_EQ(to_f8e4m3(e4m3), byte) << code;
    }
    if (!std::isnan(e5m2)) {
      ASSERT_EQ(bits_of(from_f8e5m2(byte)), bits_of(e5m2)) << code;
      ASSERT_EQ(to_f8e5m2(e5m2), std::isinf(e5m2) ? byte - 1 : byte) << code;
    }
  }
}

// As the public codecs round, but for what lies beyond the largest number.
TEST(Elements, OutputsOf8BitsSaturate) {
  const auto held = [](float x, float max) {
    return std::isnan(x) ? x : std::copysign(std::fmin(std::fabs(x), max), x);
  };
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4093) {
    const float x = f32_of(static_cast<std::uint32_t>(bits));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(from_f8e4m3(to_f8e4m3(x))));
      ASSERT_TRUE(std::isnan(from_f8e5m2(to_f8e5m2(x))));
      continue;
    }
    ASSERT_EQ(to_f8e4m3(x), f8e4m3_from_f32(held(x, 448.0f))) << x;
    ASSERT_EQ(to_f8e5m2(x), f8e5m2_from_f32(held(x, 57344.0f))) << x;
  }
  // Halves of the denormals' unit, and the ends.
  for (const float x : {0x1p-10f, 0x1.8p-10f, 0x1.8p-9f, 0x1p-11f, 0x1p-17f, 0x1.8p-16f, 0x1p-6f,
                        448.0f, 463.9f, -HUGE_VALF}) {
    EXPECT_EQ(to_f8e4m3(x), f8e4m3_from_f32(held(x, 448.0f))) << x;
    EXPECT_EQ(to_f8e5m2(x), f8e5m2_from_f32(held(x, 57344.0f))) << x;
  }
}

TEST(Elements, FiniteDoublesStayFinite) {
  EXPECT_EQ(from_f64<float>(-1.7e308), std::numeric_limits<float>::lowest());
  EXPECT_EQ(from_f64<float>(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(from_f64<float>(-HUGE_VAL), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(from_f64<float>(std::nan(""))));
  EXPECT_EQ(from_f64<double>(-1.7e308), -1.7e308);
}
}  // namespace
}  // namespace regard::cpu
