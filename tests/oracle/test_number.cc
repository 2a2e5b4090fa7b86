#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "oracle/number.h"

namespace regard {
namespace {

double decoded(std::uint32_t code, Dtype dtype) {
  const std::uint16_t wide = static_cast<std::uint16_t>(code);
  const std::uint8_t narrow = static_cast<std::uint8_t>(code);
  return size_of(dtype) == 2 ? oracle::decode(&wide, dtype) : oracle::decode(&narrow, dtype);
}

std::uint32_t encoded(double value, Dtype dtype) {
  std::uint16_t wide = 0;
  std::uint8_t narrow = 0;
  if (size_of(dtype) == 2) {
    oracle::encode(value, &wide, dtype);
    return wide;
  }
  oracle::encode(value, &narrow, dtype);
  return narrow;
}

struct Code {
  Dtype dtype;
  std::uint32_t code;
  double value;
};

// From the formats' definitions: IEEE 754 binary16, bfloat16, OCP OFP8.
const Code kCodes[] = {
    {Dtype::kF16, 0x3c00, 1.0},         {Dtype::kF16, 0xc000, -2.0},
    {Dtype::kF16, 0x7bff, 65504.0},     {Dtype::kF16, 0x0400, 0x1p-14},
    {Dtype::kF16, 0x0001, 0x1p-24},     {Dtype::kF16, 0x3555, 0.333251953125},
    {Dtype::kF16, 0x7c00, HUGE_VAL},    {Dtype::kBf16, 0x3f80, 1.0},
    {Dtype::kBf16, 0x3fc0, 1.5},        {Dtype::kBf16, 0x4049, 3.140625},
    {Dtype::kBf16, 0x7f7f, 0x1.fep127}, {Dtype::kBf16, 0x0001, 0x1p-133},
    {Dtype::kBf16, 0xff80, -HUGE_VAL},  {Dtype::kF8E4M3, 0x38, 1.0},
    {Dtype::kF8E4M3, 0x7e, 448.0},      {Dtype::kF8E4M3, 0x01, 0x1p-9},
    {Dtype::kF8E4M3, 0x08, 0x1p-6},     {Dtype::kF8E4M3, 0xc4, -3.0},
    {Dtype::kF8E5M2, 0x3c, 1.0},        {Dtype::kF8E5M2, 0x7b, 57344.0},
    {Dtype::kF8E5M2, 0x01, 0x1p-16},    {Dtype::kF8E5M2, 0x7c, HUGE_VAL},
};

TEST(Numbers, KnownCodesBothWays) {
  for (const Code& c : kCodes) {
    EXPECT_EQ(decoded(c.code, c.dtype), c.value) << to_string(c.dtype) << " " << c.code;
    EXPECT_EQ(encoded(c.value, c.dtype), c.code) << to_string(c.dtype) << " " << c.value;
  }
}

TEST(Numbers, EveryCodeSurvivesARoundTrip) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16, Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    const std::uint32_t codes = size_of(dtype) == 2 ? 65536 : 256;
    int nans = 0;
    for (std::uint32_t code = 0; code < codes; ++code) {
      const double value = decoded(code, dtype);
      if (std::isnan(value)) {
        ++nans;
        EXPECT_TRUE(std::isnan(decoded(encoded(value, dtype), dtype)));
      } else {
        ASSERT_EQ(encoded(value, dtype), code) << to_string(dtype);
      }
    }
    const int expected = dtype == Dtype::kF16      ? 2046
                         : dtype == Dtype::kBf16   ? 254
                         : dtype == Dtype::kF8E4M3 ? 2
                                                   : 6;
    EXPECT_EQ(nans, expected) << to_string(dtype);
  }
}

// Halfway cases go to the even neighbour, everything else to the nearer one.
TEST(Numbers, RoundToNearestEven) {
  EXPECT_EQ(oracle::round_to(1.0 + 0x1p-11, Dtype::kF16), 1.0);
  EXPECT_EQ(oracle::round_to(1.0 + 3 * 0x1p-11, Dtype::kF16), 1.0 + 0x1p-9);
  EXPECT_EQ(oracle::round_to(1.0 + 0x1.001p-11, Dtype::kF16), 1.0 + 0x1p-10);
  EXPECT_EQ(oracle::round_to(1.0 + 0x1p-8, Dtype::kBf16), 1.0);
  EXPECT_EQ(oracle::round_to(1.0 + 3 * 0x1p-8, Dtype::kBf16), 1.0 + 0x1p-6);
  EXPECT_EQ(oracle::round_to(0x1p-25, Dtype::kF16), 0.0);
  EXPECT_EQ(oracle::round_to(0x1.8p-24, Dtype::kF16), 0x1p-23);
  EXPECT_EQ(oracle::round_to(65519.0, Dtype::kF16), 65504.0);
  EXPECT_EQ(oracle::round_to(65520.0, Dtype::kF16), HUGE_VAL);
  EXPECT_EQ(oracle::round_to(464.0, Dtype::kF8E4M3), 448.0);
  EXPECT_TRUE(std::isnan(oracle::round_to(465.0, Dtype::kF8E4M3)));
  EXPECT_EQ(oracle::round_to(0.1, Dtype::kF32), static_cast<double>(0.1f));
  EXPECT_EQ(oracle::round_to(0.1, Dtype::kF64), 0.1);
}

TEST(Numbers, UnitsAndLimits) {
  EXPECT_EQ(oracle::unit_roundoff(Dtype::kBf16), 1.0 / 256);
  EXPECT_EQ(oracle::unit_roundoff(Dtype::kF16), 1.0 / 2048);
  EXPECT_EQ(oracle::lowest(Dtype::kF16), -65504.0);
  EXPECT_EQ(oracle::lowest(Dtype::kBf16), -0x1.fep127);
  EXPECT_EQ(oracle::lowest(Dtype::kF32), -3.4028234663852886e38);
  EXPECT_EQ(oracle::half_of_smallest(Dtype::kF16), 0x1p-25);
}

TEST(Numbers, IntegersSaturate) {
  std::int8_t small = 0;
  oracle::encode(300.0, &small, Dtype::kI8);
  EXPECT_EQ(small, 127);
  std::int64_t large = 0;
  oracle::encode(-1e30, &large, Dtype::kI64);
  EXPECT_EQ(large, std::numeric_limits<std::int64_t>::min());
  const std::uint8_t truth = 2;
  EXPECT_EQ(oracle::decode(&truth, Dtype::kBool), 1.0);
  EXPECT_EQ(oracle::decode(&truth, Dtype::kU8), 2.0);
}

}  // namespace
}  // namespace regard
