#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "semantics/philox.h"

namespace regard::semantics {
namespace {

void expect_words(const PhiloxBlock& block, std::uint32_t w0, std::uint32_t w1, std::uint32_t w2,
                  std::uint32_t w3) {
  EXPECT_EQ(block.word[0], w0);
  EXPECT_EQ(block.word[1], w1);
  EXPECT_EQ(block.word[2], w2);
  EXPECT_EQ(block.word[3], w3);
}

// Random123's known answers for philox4x32 with 7 rounds.
TEST(Philox, KnownAnswers) {
  expect_words(philox4x32_7({{0, 0, 0, 0}}, {{0, 0}}), 0x5f6fb709u, 0x0d893f64u, 0x4f121f81u,
               0x4f730a48u);
  const std::uint32_t ones = 0xffffffffu;
  expect_words(philox4x32_7({{ones, ones, ones, ones}}, {{ones, ones}}), 0x5207ddc2u, 0x45165e59u,
               0x4d8ee751u, 0x8c52f662u);
  expect_words(philox4x32_7({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
                            {{0xa4093822u, 0x299f31d0u}}),
               0x4dfccabau, 0x190a87f0u, 0xc47362bau, 0xb6b5242au);
}

TEST(Philox, WhereEachNumberGoes) {
  const std::uint64_t seed = 0x1122334455667788u, offset = 0x99aabbccddeeff00u;
  const Dropout d = make_dropout(0.25, seed, offset);
  EXPECT_EQ(d.threshold, 49152u);
  const DropoutRow row = dropout_row({}, 7, -10, 5, 2, 8);  // position -3 mod 2^32
  const PhiloxBlock expected =
      philox4x32_7({{2, 0xfffffffdu, 42, 0xddeeff00u}}, {{0x55667788u, 0x11223344u ^ 0x99aabbccu}});
  const PhiloxBlock actual = dropout_block(d, row, 21);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(actual.word[i], expected.word[i]);
  EXPECT_EQ(dropout_draw(actual, 16), expected.word[0] & 0xffffu);
  EXPECT_EQ(dropout_draw(actual, 21), expected.word[2] >> 16);
  EXPECT_EQ(dropout_keeps(d, row, 21), (expected.word[2] >> 16) < 49152u);
}

TEST(Philox, PositionsWrapAtTwoToTheThirtyTwo) {
  EXPECT_EQ(dropout_row({}, 5, INT64_MAX, 0, 0, 1).position, 4u);
  EXPECT_EQ(dropout_row({}, 5, INT64_MIN, 0, 0, 1).position, 5u);
}

TEST(Philox, Thresholds) {
  EXPECT_EQ(dropout_threshold(0.0), 65536u);
  EXPECT_EQ(dropout_threshold(std::ldexp(1.0, -16)), 65535u);
  EXPECT_EQ(dropout_threshold(0.5), 32768u);
  EXPECT_EQ(make_dropout(0.0, 1, 2).threshold, 0u);  // no dropout
}

// 200,000 draws keep a share within 5 standard deviations of the threshold's, in every lane of 8.
TEST(Philox, ShareKept) {
  const Dropout d = make_dropout(0.3, 123, 456);
  const double share = d.threshold / 65536.0;
  std::int64_t kept[8] = {};
  for (std::int64_t i = 0; i < 250; ++i) {
    for (std::int64_t j = 0; j < 800; ++j)
      kept[j % 8] += dropout_keeps(d, dropout_row(d, i, 0, 0, 3, 4), j);
  }
  for (const std::int64_t n : kept) {
    EXPECT_NEAR(static_cast<double>(n) / 25000.0, share,
                5 * std::sqrt(share * (1 - share) / 25000));
  }
}

}  // namespace
}  // namespace regard::semantics
