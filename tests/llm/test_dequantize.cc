#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/llm/gguf_writer.h"
#include "tools/llm/gguf.h"

// Rows against a reference that computes one element at a time, by the description of each format:
// the same bits, for random bytes. python/tests/with_torch/test_llm_files.py compares them with the
// package gguf.

namespace llm {
namespace {

using Block = std::vector<std::uint8_t>;

std::uint32_t bits_at(const Block& block, int bit, int count) {
  std::uint32_t out = 0;
  for (int i = 0; i < count; ++i) {
    const int at = bit + i;
    out |= static_cast<std::uint32_t>(block[static_cast<std::size_t>(at / 8)] >> (at % 8) & 1) << i;
  }
  return out;
}

/// The half that begins at a byte of a block.
float half_at(const Block& block, int byte) {
  const int sign = static_cast<int>(bits_at(block, 8 * byte + 15, 1));
  const int exponent = static_cast<int>(bits_at(block, 8 * byte + 10, 5));
  const auto fraction = static_cast<float>(bits_at(block, 8 * byte, 10));
  float magnitude =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
  }
  return sign != 0 ? -magnitude : magnitude;
}

/// Four bits of element i where byte j of 16 holds elements j and j + 16.
int nibble_of_32(const Block& block, int byte, int i) {
  return static_cast<int>(bits_at(block, 8 * (byte + i % 16) + 4 * (i / 16), 4));
}

/// Four bits of element i where byte j of each 32 holds elements j and j + 32.
int nibble_of_64(const Block& block, int byte, int i) {
  return static_cast<int>(
      bits_at(block, 8 * (byte + 32 * (i / 64) + i % 32) + 4 * (i / 32 % 2), 4));
}

/// Scale or minimum (`kind` 0 or 1) of sub-block s of a K format: 6 bits.
int six_bits(const Block& block, int s, int kind) {
  if (s < 4) return static_cast<int>(bits_at(block, 8 * (4 + s + 4 * kind), 6));
  const auto low = bits_at(block, 8 * (8 + s) + 4 * kind, 4);
  const auto high = bits_at(block, 8 * (s + 4 * kind) + 6, 2);
  return static_cast<int>(low | high << 4);
}

float k_value(const Block& block, int i, int q) {
  const float scale = half_at(block, 0) * static_cast<float>(six_bits(block, i / 32, 0));
  const float minimum = half_at(block, 2) * static_cast<float>(six_bits(block, i / 32, 1));
  const float product = scale * static_cast<float>(q);
  return product - minimum;
}

float q6_value(const Block& block, int i) {
  const int half = i / 128;
  const int group = i / 32 % 4;
  const int j = i % 32;
  const auto low = bits_at(block, 8 * (64 * half + 32 * (group % 2) + j) + 4 * (group / 2), 4);
  const auto high = bits_at(block, 8 * (128 + 32 * half + j) + 2 * group, 2);
  const int scale = static_cast<std::int8_t>(bits_at(block, 8 * (192 + i / 16), 8));
  const float sub = half_at(block, 208) * static_cast<float>(scale);
  return sub * static_cast<float>(static_cast<int>(low | high << 4) - 32);
}

float with_minimum(const Block& block, int q) {
  const float product = static_cast<float>(q) * half_at(block, 0);
  return product + half_at(block, 2);
}

struct Format {
  GgmlType type;
  int elements;
  int bytes;
  std::function<float(const Block&, int)> value;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {GgmlType::kF32, 1, 4,
       [](const Block& b, int) { return std::bit_cast<float>(bits_at(b, 0, 32)); }},
      {GgmlType::kF16, 1, 2, [](const Block& b, int) { return half_at(b, 0); }},
      {GgmlType::kBF16, 1, 2,
       [](const Block& b, int) { return std::bit_cast<float>(bits_at(b, 0, 16) << 16); }},
      {GgmlType::kQ8_0, 32, 34,
       [](const Block& b, int i) {
         return static_cast<std::int8_t>(bits_at(b, 8 * (2 + i), 8)) * half_at(b, 0);
       }},
      {GgmlType::kQ4_0, 32, 18,
       [](const Block& b, int i) {
         return static_cast<float>(nibble_of_32(b, 2, i) - 8) * half_at(b, 0);
       }},
      {GgmlType::kQ4_1, 32, 20,
       [](const Block& b, int i) { return with_minimum(b, nibble_of_32(b, 4, i)); }},
      {GgmlType::kQ5_0, 32, 22,
       [](const Block& b, int i) {
         const int q = nibble_of_32(b, 6, i) + 16 * static_cast<int>(bits_at(b, 16 + i, 1));
         return static_cast<float>(q - 16) * half_at(b, 0);
       }},
      {GgmlType::kQ5_1, 32, 24,
       [](const Block& b, int i) {
         return with_minimum(b,
                             nibble_of_32(b, 8, i) + 16 * static_cast<int>(bits_at(b, 32 + i, 1)));
       }},
      {GgmlType::kQ4_K, 256, 144,
       [](const Block& b, int i) { return k_value(b, i, nibble_of_64(b, 16, i)); }},
      {GgmlType::kQ5_K, 256, 176,
       [](const Block& b, int i) {
         const int high = static_cast<int>(bits_at(b, 8 * (16 + i % 32) + i / 32, 1));
         return k_value(b, i, nibble_of_64(b, 48, i) + 16 * high);
       }},
      {GgmlType::kQ6_K, 256, 210, q6_value}};
  return all;
}

/// NaN has many bit patterns, and all are one value.
void expect_same(float got, float want, const std::string& where) {
  if (std::isnan(want)) {
    EXPECT_TRUE(std::isnan(got)) << where;
  } else {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want)) << where;
  }
}

TEST(Dequantize, RandomBytesGiveTheBitsOfTheReference) {
  std::mt19937 random(1);
  EXPECT_EQ(formats().size(), 11u);
  for (const Format& format : formats()) {
    constexpr int kRows = 24;
    constexpr int kRowBlocks = 3;
    std::vector<std::byte> data(static_cast<std::size_t>(kRows * kRowBlocks * format.bytes));
    for (std::byte& byte : data) byte = static_cast<std::byte>(random());
    const int columns = kRowBlocks * format.elements;
    const auto bytes = test::GgufWriter().tensor("t", {kRows, columns}, format.type, data).bytes();
    const auto contents = GgufContents::parse(bytes);
    ASSERT_TRUE(contents.ok()) << contents.status().to_string();
    const GgufTensor& tensor = contents->tensors().front();
    ASSERT_EQ(tensor.data.size(), data.size());
    std::vector<float> got(static_cast<std::size_t>(kRows * columns));
    // In two pieces, so that the first row counts.
    dequantize(tensor, 0, 7, got.data());
    dequantize(tensor, 7, kRows - 7, got.data() + 7 * columns);
    for (int n = 0; n < kRows * kRowBlocks; ++n) {
      Block block(static_cast<std::size_t>(format.bytes));
      std::memcpy(block.data(), data.data() + n * format.bytes, block.size());
      for (int i = 0; i < format.elements; ++i) {
        const int at = n * format.elements + i;
        expect_same(got[static_cast<std::size_t>(at)], format.value(block, i),
                    std::string(to_string(format.type)) + " element " + std::to_string(at));
      }
    }
  }
}

TEST(Dequantize, EveryHalf) {
  std::vector<std::byte> data(65536 * 2);
  for (std::size_t i = 0; i < 65536; ++i) {
    data[2 * i] = static_cast<std::byte>(i);
    data[2 * i + 1] = static_cast<std::byte>(i >> 8);
  }
  const auto bytes = test::GgufWriter().tensor("t", {65536}, GgmlType::kF16, data).bytes();
  const auto contents = GgufContents::parse(bytes);
  ASSERT_TRUE(contents.ok());
  std::vector<float> got(65536);
  dequantize(contents->tensors().front(), 0, 1, got.data());
  for (std::size_t i = 0; i < 65536; ++i) {
    const Block block = {static_cast<std::uint8_t>(i), static_cast<std::uint8_t>(i >> 8)};
    expect_same(got[i], half_at(block, 0), std::to_string(i));
  }
}

TEST(Dequantize, TheWritersConversionsComeBackWithinHalfAStep) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> values(32 * 64);
  for (float& x : values) x = uniform(random);
  // Half a step of a format for values in [-1, 1], and the rounding of its scales.
  const std::vector<std::pair<GgmlType, float>> cases = {{GgmlType::kF32, 0.0f},
                                                         {GgmlType::kF16, 0x1p-12f},
                                                         {GgmlType::kBF16, 0x1p-9f},
                                                         {GgmlType::kQ8_0, 0.6f / 127},
                                                         {GgmlType::kQ4_1, 1.1f / 15}};
  for (const auto& [type, tolerance] : cases) {
    const auto bytes = test::GgufWriter().tensor("t", {32, 64}, type, values).bytes();
    const auto contents = GgufContents::parse(bytes);
    ASSERT_TRUE(contents.ok());
    std::vector<float> got(values.size());
    dequantize(contents->tensors().front(), 0, 32, got.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_LE(std::abs(got[i] - values[i]), tolerance) << to_string(type) << ' ' << i;
    }
  }
}

TEST(Dequantize, NamesOfTypes) {
  EXPECT_STREQ(to_string(GgmlType::kQ4_1), "Q4_1");
  EXPECT_STREQ(to_string(GgmlType::kBF16), "BF16");
  EXPECT_STREQ(to_string(static_cast<GgmlType>(99)), "?");
}

}  // namespace
}  // namespace llm
