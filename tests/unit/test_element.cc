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

TEST(Elements, FiniteDoublesStayFinite) {
  EXPECT_EQ(from_f64<float>(-1.7e308), std::numeric_limits<float>::lowest());
  EXPECT_EQ(from_f64<float>(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(from_f64<float>(-HUGE_VAL), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(from_f64<float>(std::nan(""))));
  EXPECT_EQ(from_f64<double>(-1.7e308), -1.7e308);
}
}  // namespace
}  // namespace regard::cpu
