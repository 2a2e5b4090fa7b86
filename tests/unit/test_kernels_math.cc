#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/element.h"
#include "cpu/product.h"
#include "cpu/simd_scalar.h"
#include "cpu/vector_math.h"
#include "regard/dtype.h"

namespace regard::cpu {
namespace {

using F32 = simd_scalar::Simd<float>;

float exp_of(float x) { return exp_nonpositive<F32>(F32::set(x))[0]; }
float tanh_of(float x) { return tanh_vector<F32>(F32::set(x))[0]; }

double ulps(float actual, double expected) {
  const float near = std::fabs(static_cast<float>(expected));
  const double ulp = std::nextafter(near, std::numeric_limits<float>::infinity()) - near;
  return std::fabs(actual - expected) / ulp;
}

TEST(VectorMath, ExpIsExactAtItsEnds) {
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
  EXPECT_EQ(exp_of(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp_of(std::numeric_limits<float>::lowest()), 0.0f);
  EXPECT_EQ(exp_of(-88.0f), 0.0f);
  EXPECT_TRUE(std::isnan(exp_of(std::nanf(""))));
}

TEST(VectorMath, ExpErrorOverItsDomain) {
  double worst = 0.0;
  for (std::uint32_t bits = bits_of(-0x1p-30f); bits < bits_of(-87.3f); bits += 911) {
    const float x = f32_of(bits);
    worst = std::max(worst, ulps(exp_of(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 1.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(VectorMath, TanhErrorOverItsDomain) {
  double worst = 0.0;
  for (std::uint32_t bits = bits_of(0x1p-30f); bits < bits_of(20.0f); bits += 911) {
    const float x = f32_of(bits);
    worst = std::max(worst, ulps(tanh_of(x), std::tanh(static_cast<double>(x))));
    ASSERT_EQ(tanh_of(-x), -tanh_of(x));
  }
  EXPECT_LT(worst, 2.5);
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_EQ(tanh_of(std::numeric_limits<float>::infinity()), 1.0f);
  EXPECT_EQ(tanh_of(0.0f), 0.0f);
  EXPECT_TRUE(std::isnan(tanh_of(std::nanf(""))));
}

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

template <class V>
void check_product() {
  using T = typename V::Scalar;
  constexpr int kWidth = V::kWidth;
  for (const std::int64_t m : {1, 3, 4, 7, 13}) {
    for (const std::int64_t k : {0, 1, 5, 32}) {
      std::vector<T> a(static_cast<std::size_t>(m * k + 1)),
          b(static_cast<std::size_t>(k * kWidth));
      std::vector<T> c(static_cast<std::size_t>(m * kWidth), T(2)), carry(kWidth, T(0.5));
      for (std::size_t n = 0; n < a.size(); ++n) a[n] = static_cast<T>(n % 7) - T(3);
      for (std::size_t n = 0; n < b.size(); ++n) b[n] = static_cast<T>(n % 5);
      if (k > 1) {  // hidden from lane 0 by a -0
        a[1] = std::numeric_limits<T>::quiet_NaN();
        for (int w = 0; w < kWidth; ++w) b[static_cast<std::size_t>(kWidth + w)] = T(-0.0);
      }
      product_onto<V>({a.data(), k, 1}, b.data(), c.data(), m, k, carry.data(), true);
      for (std::int64_t i = 0; i < m; ++i) {
        for (int w = 0; w < kWidth; ++w) {
          T expected = 1;
          for (std::int64_t x = 0; x < k; ++x) {
            const T right = b[static_cast<std::size_t>(x * kWidth + w)];
            if (!std::signbit(right)) expected += a[static_cast<std::size_t>(i * k + x)] * right;
          }
          ASSERT_EQ(c[static_cast<std::size_t>(i * kWidth + w)], expected) << m << " " << k;
        }
      }
    }
  }
}

TEST(Product, SelectsAndCarries) {
  check_product<F32>();
  check_product<simd_scalar::Simd<double>>();
}

}  // namespace
}  // namespace regard::cpu
