#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cpu/problem.h"
#include "regard/dtype.h"
#include "regard/env.h"
#include "vocabulary.h"

// Every function of every vocabulary that this machine can run.

namespace regard::test {
namespace {

using cpu::bits_of;
using cpu::f32_of;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Param {
  Isa isa;
  const Vocabulary* vocabulary;
};

std::vector<Param> vocabularies() {
  std::vector<Param> params = {{Isa::kScalar, &kScalarVocabulary}};
#if defined(__x86_64__)
  const Param compiled[] = {
    {Isa::kAvx2, &kAvx2Vocabulary},
#if !defined(REGARD_NO_AVX512_BF16)
    {Isa::kAvx512Bf16, &kAvx512Bf16Vocabulary},
#endif
    {Isa::kAvx512, &kAvx512Vocabulary}
  };
#elif defined(__aarch64__)
  const Param compiled[] = {{Isa::kNeon, &kNeonVocabulary}, {Isa::kNeonBf16, &kNeonBf16Vocabulary}};
#endif
#if defined(__x86_64__) || defined(__aarch64__)
  for (const Param& p : compiled) {
    if (read_env().isa_available.includes(p.isa)) params.push_back(p);
  }
#endif
  return params;
}

class VocabularyTest : public testing::TestWithParam<Param> {
 protected:
  const Vocabulary& v() const { return *GetParam().vocabulary; }
  std::size_t lanes() const { return static_cast<std::size_t>(v().lanes); }

  float apply(void (*function)(const float*, float*), float x) const {
    std::vector<float> in(lanes(), x), out(lanes());
    function(in.data(), out.data());
    for (const float y : out) EXPECT_EQ(bits_of(y), bits_of(out[0])) << x;
    return out[0];
  }

  /// The worst error of `function` in ulp over every 911th float of [from, to).
  double worst_ulp(void (*function)(const float*, float*), float from, float to,
                   double (*exact)(double)) const {
    double worst = 0.0;
    std::vector<float> in(lanes()), out(lanes());
    for (std::uint32_t bits = bits_of(from); bits < bits_of(to);) {
      for (float& x : in) {
        x = f32_of(std::min(bits, bits_of(to) - 1));
        bits += 911;
      }
      function(in.data(), out.data());
      for (std::size_t n = 0; n < in.size(); ++n) {
        const double expected = exact(static_cast<double>(in[n]));
        const float near = std::fabs(static_cast<float>(expected));
        const double ulp = std::nextafter(near, kInfinity) - near;
        worst = std::max(worst, std::fabs(out[n] - expected) / ulp);
      }
    }
    return worst;
  }
};

double exact_exp2(double t) { return std::exp2(t); }
double exact_tanh(double x) { return std::tanh(x); }
double exact_scaled_tanh(double x) { return 30.0 * std::tanh(x * -0.125 / 30.0); }
double exact_exp(double x) { return std::exp(x); }
double exact_log(double x) { return std::log(x); }
double exact_sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

TEST_P(VocabularyTest, Exp2IsExactAtItsEnds) {
  EXPECT_EQ(apply(v().exp2, 0.0f), 1.0f);
  EXPECT_EQ(apply(v().exp2, -0.0f), 1.0f);
  EXPECT_EQ(bits_of(apply(v().exp2, -kInfinity)), 0u);
  EXPECT_EQ(apply(v().exp2, std::numeric_limits<float>::lowest()), 0.0f);
  EXPECT_EQ(apply(v().exp2, -151.0f), 0.0f);
  EXPECT_EQ(apply(v().exp2, -1.0f), 0.5f);
  for (const std::uint32_t nan : {0x7fc00000u, 0x7fc00001u, 0xffffffffu, 0x7fffffffu}) {
    EXPECT_TRUE(std::isnan(apply(v().exp2, f32_of(nan)))) << nan;
  }
}

TEST_P(VocabularyTest, Exp2ErrorOverItsDomain) {
  EXPECT_LT(worst_ulp(v().exp2, -0x1p-30f, -125.0f, exact_exp2), 1.5);
}

TEST_P(VocabularyTest, TanhErrorOverItsDomain) {
  EXPECT_LT(worst_ulp(v().tanh, 0x1p-30f, 20.0f, exact_tanh), 2.5);
  EXPECT_LT(worst_ulp(v().tanh, -0x1p-30f, -20.0f, exact_tanh), 2.5);
  EXPECT_EQ(apply(v().tanh, kInfinity), 1.0f);
  EXPECT_EQ(apply(v().tanh, -kInfinity), -1.0f);
  EXPECT_EQ(apply(v().tanh, 0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(apply(v().tanh, kNan)));
}

TEST_P(VocabularyTest, ScaledTanhErrorOverItsDomain) {
  EXPECT_LT(worst_ulp(v().scaled_tanh, 0x1p-30f, 2400.0f, exact_scaled_tanh), 5.0);
  EXPECT_LT(worst_ulp(v().scaled_tanh, -0x1p-30f, -2400.0f, exact_scaled_tanh), 5.0);
  EXPECT_EQ(apply(v().scaled_tanh, kInfinity), -30.0f);
  EXPECT_EQ(apply(v().scaled_tanh, -kInfinity), 30.0f);
  EXPECT_EQ(apply(v().scaled_tanh, 0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(apply(v().scaled_tanh, kNan)));
}

TEST_P(VocabularyTest, ExpErrorOverItsDomain) {
  EXPECT_LT(worst_ulp(v().exp, 0x1p-30f, 88.722839f, exact_exp), 1.0);
  EXPECT_LT(worst_ulp(v().exp, -0x1p-30f, -87.336544f, exact_exp), 1.0);
  EXPECT_LT(worst_ulp(v().exp, -87.336544f, -110.0f, exact_exp), 1.0);  // denormal results
}

TEST_P(VocabularyTest, ExpIsExactAtItsEnds) {
  EXPECT_EQ(apply(v().exp, 0.0f), 1.0f);
  EXPECT_EQ(apply(v().exp, -0.0f), 1.0f);
  EXPECT_EQ(apply(v().exp, kInfinity), kInfinity);
  EXPECT_EQ(apply(v().exp, 88.72284f), kInfinity);
  EXPECT_EQ(apply(v().exp, 1e30f), kInfinity);
  EXPECT_EQ(bits_of(apply(v().exp, -kInfinity)), 0u);
  EXPECT_EQ(bits_of(apply(v().exp, -104.0f)), 0u);
  EXPECT_EQ(bits_of(apply(v().exp, -1e30f)), 0u);
  for (const std::uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u}) {
    EXPECT_TRUE(std::isnan(apply(v().exp, f32_of(nan)))) << nan;
  }
}

TEST_P(VocabularyTest, LogErrorOverItsDomain) {
  EXPECT_LT(worst_ulp(v().log, 0x1p-149f, 0x1p-126f, exact_log), 0.8);  // of denormals
  EXPECT_LT(worst_ulp(v().log, 0x1p-126f, kInfinity, exact_log), 0.8);
  EXPECT_EQ(apply(v().log, 1.0f), 0.0f);
  EXPECT_EQ(apply(v().log, 0.0f), -kInfinity);
  EXPECT_EQ(apply(v().log, -0.0f), -kInfinity);
  EXPECT_EQ(apply(v().log, kInfinity), kInfinity);
  for (const float below : {-0x1p-149f, -1.0f, -kInfinity, kNan}) {
    EXPECT_TRUE(std::isnan(apply(v().log, below))) << below;
  }
}

TEST_P(VocabularyTest, SqrtIsRounded) {
  for (std::uint32_t bits = 0; bits < bits_of(kInfinity); bits += 91100) {
    EXPECT_EQ(apply(v().sqrt, f32_of(bits)), std::sqrt(f32_of(bits))) << bits;
  }
  EXPECT_EQ(apply(v().sqrt, kInfinity), kInfinity);
  EXPECT_EQ(bits_of(apply(v().sqrt, -0.0f)), bits_of(-0.0f));
  EXPECT_TRUE(std::isnan(apply(v().sqrt, -1.0f)));
}

TEST_P(VocabularyTest, SigmoidErrorOverItsDomain) {
  EXPECT_LT(worst_ulp(v().sigmoid, 0x1p-30f, 110.0f, exact_sigmoid), 1.6);
  EXPECT_LT(worst_ulp(v().sigmoid, -0x1p-30f, -87.0f, exact_sigmoid), 2.1);
  EXPECT_EQ(apply(v().sigmoid, 0.0f), 0.5f);
  EXPECT_EQ(apply(v().sigmoid, kInfinity), 1.0f);
  EXPECT_EQ(apply(v().sigmoid, -kInfinity), 0.0f);
  EXPECT_EQ(apply(v().sigmoid, -100.0f), 0.0f);
  EXPECT_TRUE(std::isnan(apply(v().sigmoid, kNan)));
}

TEST_P(VocabularyTest, MaxPassesOverNan) {
  const float pairs[][3] = {
      {1, 2, 2},      {2, 1, 2}, {kNan, 3, 3}, {-kInfinity, -5, -5}, {-kInfinity, kNan, kNan},
      {7, kNan, kNan}};
  for (const auto& [a, b, expected] : pairs) {
    std::vector<float> left(lanes(), a), right(lanes(), b), out(lanes());
    v().max(left.data(), right.data(), out.data());
    for (const float x : out) {
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(x) : x == expected)
          << a << " " << b << " " << x;
    }
  }
}

TEST_P(VocabularyTest, HalvesEqualThePublicCodecs) {
  std::vector<std::uint16_t> halves(lanes());
  std::vector<std::uint16_t> pairs(2 * lanes());
  std::vector<float> floats(lanes());
  for (std::uint32_t h = 0; h < 65536; h += static_cast<std::uint32_t>(lanes())) {
    for (std::size_t n = 0; n < lanes(); ++n) halves[n] = static_cast<std::uint16_t>(h + n);
    v().load_bf16(halves.data(), floats.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      ASSERT_EQ(bits_of(floats[n]), bits_of(f32_from_bf16(halves[n]))) << halves[n];
    }
    v().load_f16(halves.data(), floats.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      const float expected = f32_from_f16(halves[n]);
      ASSERT_EQ(std::isnan(floats[n]), std::isnan(expected)) << halves[n];
      if (!std::isnan(expected)) {
        ASSERT_EQ(bits_of(floats[n]), bits_of(expected)) << halves[n];
      }
    }
  }
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4093 * lanes()) {
    for (std::size_t n = 0; n < lanes(); ++n) {
      floats[n] = f32_of(static_cast<std::uint32_t>(bits + 4093 * n));
    }
    v().store_bf16(floats.data(), halves.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      ASSERT_EQ(halves[n], bf16_from_f32(floats[n])) << bits_of(floats[n]);
    }
    std::vector<float> reversed(floats.rbegin(), floats.rend());
    v().bf16_pairs(floats.data(), reversed.data(), pairs.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      ASSERT_EQ(pairs[2 * n], bf16_from_f32(floats[n])) << bits_of(floats[n]);
      ASSERT_EQ(pairs[2 * n + 1], bf16_from_f32(reversed[n])) << bits_of(reversed[n]);
    }
    v().store_f16(floats.data(), halves.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      if (std::isnan(floats[n])) {
        ASSERT_TRUE(std::isnan(f32_from_f16(halves[n]))) << bits_of(floats[n]);
      } else {
        ASSERT_EQ(halves[n], f16_from_f32(floats[n])) << bits_of(floats[n]);
      }
    }
  }
}

TEST_P(VocabularyTest, CodesOfFourBitsBeginInTheLowHalf) {
  std::vector<std::uint8_t> bytes(lanes() / 2);
  std::vector<float> codes(lanes());
  for (int first = 0; first < 256; ++first) {
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      bytes[n] = static_cast<std::uint8_t>(first + 37 * n);
    }
    v().load_u4(bytes.data(), codes.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      const int expected = n % 2 == 0 ? bytes[n / 2] & 15 : bytes[n / 2] >> 4;
      ASSERT_EQ(codes[n], static_cast<float>(expected)) << n << " of byte " << int{bytes[n / 2]};
    }
  }
}

TEST_P(VocabularyTest, BytesEqualThePublicCodecs) {
  std::vector<std::uint8_t> bytes(lanes());
  std::vector<float> e4m3(lanes()), e5m2(lanes());
  const auto expect_equal = [&](float actual, float expected, std::size_t n) {
    ASSERT_EQ(std::isnan(actual), std::isnan(expected)) << int{bytes[n]};
    if (!std::isnan(expected)) {
      ASSERT_EQ(bits_of(actual), bits_of(expected)) << int{bytes[n]};
    }
  };
  for (std::size_t code = 0; code < 256; code += lanes()) {
    for (std::size_t n = 0; n < lanes(); ++n) bytes[n] = static_cast<std::uint8_t>(code + n);
    v().load_f8e4m3(bytes.data(), e4m3.data());
    v().load_f8e5m2(bytes.data(), e5m2.data());
    for (std::size_t n = 0; n < lanes(); ++n) {
      expect_equal(e4m3[n], f32_from_f8e4m3(bytes[n]), n);
      expect_equal(e5m2[n], f32_from_f8e5m2(bytes[n]), n);
    }
  }
}

TEST_P(VocabularyTest, CodesOfEightBitsAreTheirF16) {
  if (v().f16_of_f8 == nullptr) GTEST_SKIP() << "not in this vocabulary";
  constexpr int kCodes = 32;
  for (const bool is_e5m2 : {false, true}) {
    for (int code = 0; code < 256; ++code) {
      std::uint8_t codes[kCodes] = {};
      std::uint16_t words[kCodes];
      const int at = code % kCodes;
      codes[at] = static_cast<std::uint8_t>(code);
      const float expected = is_e5m2 ? f32_from_f8e5m2(codes[at]) : f32_from_f8e4m3(codes[at]);
      const bool is_e4m3_nan = !is_e5m2 && std::isnan(expected);
      EXPECT_EQ(v().f16_of_f8(is_e5m2, codes, words), is_e4m3_nan) << is_e5m2 << " " << code;
      for (int n = 0; n < kCodes; ++n) {
        ASSERT_TRUE(n == at || words[n] == 0) << is_e5m2 << " " << code << " " << n;
      }
      const float actual = f32_from_f16(words[at]) * (is_e5m2 ? 1.0f : 256.0f);
      if (is_e4m3_nan) continue;  // a mark: whoever calls makes NaN of it
      ASSERT_EQ(std::isnan(actual), std::isnan(expected)) << is_e5m2 << " " << code;
      if (!std::isnan(expected)) {
        ASSERT_EQ(bits_of(actual), bits_of(expected)) << is_e5m2 << " " << code;
      }
    }
  }
}

TEST_P(VocabularyTest, TransposeExchangesRowsAndColumns) {
  std::vector<float> square(lanes() * lanes());
  for (std::size_t n = 0; n < square.size(); ++n) square[n] = static_cast<float>(n);
  v().transpose(square.data());
  for (std::size_t i = 0; i < lanes(); ++i) {
    for (std::size_t j = 0; j < lanes(); ++j) {
      ASSERT_EQ(square[i * lanes() + j], static_cast<float>(j * lanes() + i)) << i << " " << j;
    }
  }
}

TEST_P(VocabularyTest, SumsOfRowsStandInOrder) {
  std::vector<float> square(lanes() * lanes()), sums(lanes());
  for (std::size_t n = 0; n < square.size(); ++n) square[n] = static_cast<float>(n * n % 1009);
  v().sum_rows(square.data(), sums.data());
  for (std::size_t i = 0; i < lanes(); ++i) {
    float sum = 0.0f;  // exact: small integers
    for (std::size_t j = 0; j < lanes(); ++j) sum += square[i * lanes() + j];
    ASSERT_EQ(sums[i], sum) << i;
  }
}

/// Small integers: every sum is exact, whatever its order.
struct Matrices {
  Matrices(std::int64_t m, std::int64_t k, std::int64_t width)
      : a(static_cast<std::size_t>(m * k + 1)),
        b(static_cast<std::size_t>(k * width)),
        c(static_cast<std::size_t>(m * width), 2.0f) {
    for (std::size_t n = 0; n < a.size(); ++n) a[n] = static_cast<float>(n % 7) - 3;
    for (std::size_t n = 0; n < b.size(); ++n) b[n] = static_cast<float>(n % 5);
  }
  std::vector<float> a, b, c;
};

TEST_P(VocabularyTest, ScoresAndTheirMaximum) {
  const std::int64_t width = v().lanes * v().vectors;
  for (const std::int64_t m : {1, 3, 4, 7, 8, 13, 24}) {
    for (const std::int64_t k : {1, 5, 32}) {
      for (int vectors = 1; vectors <= v().vectors; ++vectors) {
        Matrices x(m, k, width);
        std::vector<float> max(static_cast<std::size_t>(width), -kInfinity);
        v().scores({x.a.data(), x.b.data(), x.c.data(), m, k, vectors}, max.data());
        for (std::int64_t w = 0; w < width; ++w) {
          float row_max = -kInfinity;
          for (std::int64_t i = 0; i < m; ++i) {
            float expected = w < vectors * v().lanes ? 0.0f : 2.0f;  // the others stay
            for (std::int64_t y = 0; y < k && w < vectors * v().lanes; ++y) {
              expected += x.a[static_cast<std::size_t>(i * k + y)] *
                          x.b[static_cast<std::size_t>(y * width + w)];
            }
            ASSERT_EQ(x.c[static_cast<std::size_t>(i * width + w)], expected);
            row_max = std::max(row_max, expected);
          }
          if (w < vectors * v().lanes) {
            ASSERT_EQ(max[static_cast<std::size_t>(w)], row_max) << m << " " << k << " " << w;
          }
        }
      }
    }
  }
}

TEST_P(VocabularyTest, ProductSelectsAndCarries) {
  const std::int64_t width = v().lanes * v().vectors;
  for (const std::int64_t m : {1, 3, 4, 7, 13}) {
    for (const std::int64_t k : {0, 1, 5, 32}) {
      Matrices x(m, k, width);
      std::vector<float> rescale(static_cast<std::size_t>(width), 0.5f);
      const bool select = k > 1;
      if (select) {  // hidden from every lane by a -0
        x.a[1] = kNan;
        for (std::int64_t w = 0; w < width; ++w) x.b[static_cast<std::size_t>(width + w)] = -0.0f;
      }
      v().add_product({x.a.data(), x.b.data(), x.c.data(), m, k, v().vectors}, rescale.data(),
                      select);
      for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t w = 0; w < width; ++w) {
          float expected = 1;
          for (std::int64_t y = 0; y < k; ++y) {
            const float right = x.b[static_cast<std::size_t>(y * width + w)];
            if (!std::signbit(right)) expected += x.a[static_cast<std::size_t>(i * k + y)] * right;
          }
          ASSERT_EQ(x.c[static_cast<std::size_t>(i * width + w)], expected) << m << " " << k;
        }
      }
    }
  }
}

class PairsTest : public VocabularyTest {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PairsTest);

TEST_P(PairsTest, RoundKeepSignsAndHideHalves) {
  std::vector<float> low(lanes()), high(lanes());
  std::vector<std::uint16_t> pairs(2 * lanes());
  for (std::size_t n = 0; n < lanes(); ++n) {
    low[n] = 1.0f + static_cast<float>(n) * 0.01f;
    high[n] = -0.0f;
  }
  v().to_pairs(low.data(), high.data(), pairs.data());
  for (std::size_t n = 0; n < lanes(); ++n) {
    EXPECT_EQ(pairs[2 * n], bf16_from_f32(low[n])) << n;
    EXPECT_EQ(pairs[2 * n + 1], 0x8000) << n;  // a masked probability keeps its sign
  }
  const std::uint16_t nan = 0x7fc0, two = bf16_from_f32(2.0f), three = bf16_from_f32(3.0f);
  const auto dot = [&](std::uint16_t a_low, std::uint16_t a_high, bool visible) {
    const std::uint16_t a[] = {a_low, a_high};
    std::vector<float> sum(lanes(), 10.0f);
    v().dot(a, pairs.data(), visible, sum.data());
    return sum;
  };
  for (std::size_t n = 0; n < lanes(); ++n) {
    const float expected = 10.0f + 2.0f * f32_from_bf16(pairs[2 * n]);
    EXPECT_EQ(dot(two, three, false)[n], expected);
    EXPECT_EQ(dot(two, three, true)[n], expected);
    EXPECT_TRUE(std::isnan(dot(two, nan, false)[n]));
    EXPECT_EQ(dot(two, nan, true)[n], expected);
    EXPECT_TRUE(std::isnan(dot(nan, three, true)[n]));
  }
}

TEST_P(PairsTest, CodesOfEightBitsAreTheirBf16) {
  if (v().bf16_of_f8 == nullptr) GTEST_SKIP() << "not in this vocabulary";
  for (const bool is_e5m2 : {false, true}) {
    for (int first = 0; first < 256; first += 64) {
      std::uint8_t codes[64];
      std::uint16_t words[64];
      for (int n = 0; n < 64; ++n) codes[n] = static_cast<std::uint8_t>(first + n);
      v().bf16_of_f8(is_e5m2, codes, words);
      for (int n = 0; n < 64; ++n) {
        const float expected = is_e5m2 ? f32_from_f8e5m2(codes[n]) : f32_from_f8e4m3(codes[n]);
        const float actual = f32_from_bf16(words[n]);
        ASSERT_EQ(std::isnan(actual), std::isnan(expected)) << is_e5m2 << " " << first + n;
        if (!std::isnan(expected)) {
          ASSERT_EQ(bits_of(actual), bits_of(expected)) << is_e5m2 << " " << first + n;
        }
      }
    }
  }
}

TEST_P(PairsTest, BytesAreJoinedAndMultipliedByFour) {
  if (v().add_bytes == nullptr) GTEST_SKIP() << "not in this vocabulary";
  std::uint8_t codes[256], joined[64];
  std::int8_t numbers[64], high[64], low[64];
  std::int32_t sum[16], words[64];
  for (int n = 0; n < 256; ++n) codes[n] = static_cast<std::uint8_t>(41 * n + n / 64);
  for (int n = 0; n < 64; ++n) numbers[n] = static_cast<std::int8_t>(77 * n - 128);
  for (int n = 0; n < 16; ++n) sum[n] = 1000 * n;
  v().add_bytes(codes, numbers, sum);
  for (int lane = 0; lane < 16; ++lane) {
    int expected = 1000 * lane;
    for (int n = 4 * lane; n < 4 * lane + 4; ++n) expected += codes[n] * numbers[n];
    EXPECT_EQ(sum[lane], expected) << lane;
  }
  for (int quad = 0; quad < 4; ++quad) {
    v().join_quads(quad, codes, joined);
    for (int n = 0; n < 64; ++n) {
      const int expected = codes[n % 4 * 64 + n / 16 * 16 + 4 * quad + n % 16 / 4];
      EXPECT_EQ(joined[n], expected) << quad << " " << n;
    }
  }
  // What stands above a word is not part of it.
  for (int n = 0; n < 64; ++n) words[n] = ((n * 521 - 16384) & 0xffff) | 0x4b400000;
  v().join_bytes(words, high, low);
  for (int n = 0; n < 64; ++n) {
    const int lane = n / 4, vector = n % 4;
    EXPECT_EQ(high[n] * 256 + low[n], (vector * 16 + lane) * 521 - 16384) << n;
  }
}

std::vector<Param> vocabularies_of_pairs() {
  std::vector<Param> params = vocabularies();
  std::erase_if(params, [](const Param& p) { return p.vocabulary->to_pairs == nullptr; });
  return params;
}

INSTANTIATE_TEST_SUITE_P(All, PairsTest, testing::ValuesIn(vocabularies_of_pairs()),
                         [](const auto& param) { return std::string(to_string(param.param.isa)); });
INSTANTIATE_TEST_SUITE_P(All, VocabularyTest, testing::ValuesIn(vocabularies()),
                         [](const auto& param) { return std::string(to_string(param.param.isa)); });

}  // namespace
}  // namespace regard::test
