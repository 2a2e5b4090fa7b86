#if defined(REGARD_HAS_AMX)

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "regard/env.h"
#include "tests/vocabulary/amx_product.h"

// The product of two registers of AMX, and that its configuration leaves another one as it was.

namespace regard {
namespace {

float value_of(std::uint32_t half) {
  const std::uint32_t bits = half << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

class AmxMatrices {
 public:
  explicit AmxMatrices(unsigned seed) : a_(16 * 32), b_(16 * 16), c_(16 * 16) {
    std::mt19937 random(seed);
    const auto small = [&] {  // 1 to 2, of either sign
      return static_cast<std::uint32_t>(0x3f80 + random() % 128 + (random() % 2) * 0x8000);
    };
    for (auto& x : a_) x = static_cast<std::uint16_t>(small());
    for (auto& x : b_) x = small() << 16 | small();
  }
  AmxProduct product() { return {a_.data(), b_.data(), c_.data()}; }

  void expect_product() const {
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 16; ++j) {
        double sum = 0.0;
        for (std::size_t k = 0; k < 32; ++k) {
          const std::uint32_t pair = b_[k / 2 * 16 + j];
          sum += static_cast<double>(value_of(a_[i * 32 + k])) *
                 static_cast<double>(value_of(k % 2 == 0 ? pair & 0xffff : pair >> 16));
        }
        EXPECT_NEAR(static_cast<double>(c_[i * 16 + j]), sum, 1e-4) << i << " " << j;
      }
    }
  }

 private:
  std::vector<std::uint16_t> a_;
  std::vector<std::uint32_t> b_;
  std::vector<float> c_;
};

TEST(Amx, ProductOfTwoRegisters) {
  if (!read_env().isa_available.includes(Isa::kAmxBf16)) GTEST_SKIP() << "no AMX";
  AmxMatrices matrices(1);
  multiply_by_amx(matrices.product());
  matrices.expect_product();
}

TEST(Amx, AConfigurationIsRestored) {
  if (!read_env().isa_available.includes(Isa::kAmxBf16)) GTEST_SKIP() << "no AMX";
  AmxMatrices outer(2), inner(3);
  multiply_by_amx_around(outer.product(), inner.product());
  outer.expect_product();
  inner.expect_product();
}

}  // namespace
}  // namespace regard

#endif
