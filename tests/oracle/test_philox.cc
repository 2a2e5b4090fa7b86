#include <gtest/gtest.h>

#include "oracle/philox.h"

namespace regard {
namespace {

using oracle::dropout_draw;
using oracle::dropout_threshold;
using oracle::philox4x32;
using oracle::PhiloxCounter;

// Random123's kat_vectors of philox4x32, 10 and 7 rounds.
TEST(OraclePhilox, KnownAnswers) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  const PhiloxCounter pi{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}, 10),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}, 10),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(pi, {0xa4093822, 0x299f31d0}, 10),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}, 7),
            (PhiloxCounter{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox4x32(pi, {0xa4093822, 0x299f31d0}, 7),
            (PhiloxCounter{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a}));
}

// Draws of an independent implementation in Python, with each part of key and counter different.
TEST(OraclePhilox, DropoutDraws) {
  constexpr std::uint64_t kSeed = 0x0123456789abcdef, kOffset = 0xfedcba9876543210;
  const auto draw = [&](std::uint64_t b, std::uint64_t h, std::uint32_t row, std::uint64_t j) {
    return dropout_draw(kSeed, kOffset, {b, 2, h, row, j});
  };
  EXPECT_EQ(draw(0, 0, 0, 0), 25207u);
  EXPECT_EQ(draw(0, 0, 0, 1), 59262u);
  EXPECT_EQ(draw(0, 0, 0, 2), 729u);
  EXPECT_EQ(draw(0, 0, 0, 3), 54348u);
  EXPECT_EQ(draw(0, 0, 1, 0), 49668u);
  EXPECT_EQ(draw(0, 1, 0, 0), 39265u);
  EXPECT_EQ(draw(1, 0, 0, 3), 40544u);
  EXPECT_EQ(draw(1, 1, 1, 2), 2288u);
  EXPECT_EQ(draw(0, 0, 0xffffffff, 1), 21373u);
}

TEST(OraclePhilox, Thresholds) {
  EXPECT_EQ(dropout_threshold(0.5), 32768u);
  EXPECT_EQ(dropout_threshold(0.25), 49152u);
  EXPECT_EQ(dropout_threshold(0.1), 58982u);  // 58982.4 + 0.5
  EXPECT_EQ(dropout_threshold(0x1p-16), 65535u);
  EXPECT_EQ(dropout_threshold(1.0 - 0x1p-16), 1u);
}

}  // namespace
}  // namespace regard
