#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/llm/tiny_model.h"
#include "tools/llm/few_rows.h"
#include "tools/llm/linear.h"
#include "tools/llm/rows.h"

namespace llm {
namespace {

using regard::Dtype;

std::vector<float> random_floats(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> made;
  for (std::int64_t i = 0; i < count; ++i) {
    made.push_back(static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f);
  }
  return made;
}

/// Values as a type stores them.
std::vector<std::byte> stored(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> made(values.size() * static_cast<std::size_t>(regard::size_of(dtype)));
  const auto count = static_cast<std::int64_t>(values.size());
  convert_rows({const_cast<float*>(values.data()), Dtype::kF32, count}, {made.data(), dtype, count},
               1, count);
  return made;
}

std::vector<float> rounded_to_bf16(std::vector<float> values) {
  for (float& x : values) x = regard::f32_from_bf16(regard::bf16_from_f32(x));
  return values;
}

struct Size {
  std::int64_t outputs, inputs;
};
const Size kSizes[] = {{1, 1},   {3, 31},   {7, 32},    {5, 33},
                       {64, 64}, {17, 100}, {130, 257}, {1, 1000}};

/// Checks y [rows, outputs] against sums in double; the bound is that of a sum in f32.
void expect_product(const std::vector<float>& weights, const Size& size,
                    const std::vector<float>& x, std::int64_t rows, const float* y) {
  for (std::int64_t m = 0; m < rows; ++m) {
    for (std::int64_t n = 0; n < size.outputs; ++n) {
      double sum = 0.0, magnitude = 0.0;
      for (std::int64_t i = 0; i < size.inputs; ++i) {
        const double term = static_cast<double>(weights[n * size.inputs + i]) *
                            static_cast<double>(x[m * size.inputs + i]);
        sum += term;
        magnitude += std::abs(term);
      }
      const double terms = static_cast<double>(size.inputs);
      ASSERT_NEAR(y[m * size.outputs + n], sum, 6e-8 * (terms + 2.0) * magnitude)
          << size.outputs << "x" << size.inputs << ", row " << m << " of " << rows << ", " << n;
    }
  }
}

class FewRows : public ::testing::TestWithParam<Dtype> {
 protected:
  std::vector<float> weights_of(const Size& size) const {
    auto values = random_floats(size.outputs * size.inputs, 1);
    return GetParam() == Dtype::kBf16 ? rounded_to_bf16(values) : values;
  }
};

TEST_P(FewRows, EqualsSumsInDouble) {
  for (const Size& size : kSizes) {
    const auto weights = weights_of(size);
    const auto bytes = stored(weights, GetParam());
    const auto x = random_floats(kFewRows * size.inputs, 2);
    for (std::int64_t rows = 1; rows <= kFewRows; ++rows) {
      std::vector<float> y(static_cast<std::size_t>(rows * size.outputs + 1), 7.0f);
      multiply_few_rows(bytes.data(), GetParam(), size.outputs, size.inputs, x.data(), rows,
                        y.data());
      expect_product(weights, size, x, rows, y.data());
      EXPECT_EQ(y.back(), 7.0f) << "wrote behind its end";
    }
  }
}

TEST_P(FewRows, ARowsBitsDependOnNeitherRowsNorThreads) {
  for (const Size& size : kSizes) {
    const auto bytes = stored(weights_of(size), GetParam());
    const auto x = random_floats(kFewRows * size.inputs, 3);
    const auto alone = [&](std::int64_t row) {
      omp_set_num_threads(1);
      std::vector<float> y(static_cast<std::size_t>(size.outputs));
      multiply_few_rows(bytes.data(), GetParam(), size.outputs, size.inputs,
                        x.data() + row * size.inputs, 1, y.data());
      return y;
    };
    std::vector<std::vector<float>> expected;
    for (std::int64_t row = 0; row < kFewRows; ++row) expected.push_back(alone(row));
    for (const int threads : {1, 2, 5}) {
      omp_set_num_threads(threads);
      for (std::int64_t rows = 1; rows <= kFewRows; ++rows) {
        std::vector<float> y(static_cast<std::size_t>(rows * size.outputs));
        multiply_few_rows(bytes.data(), GetParam(), size.outputs, size.inputs, x.data(), rows,
                          y.data());
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::vector<float> found(y.begin() + row * size.outputs,
                                         y.begin() + (row + 1) * size.outputs);
          ASSERT_EQ(found, expected[static_cast<std::size_t>(row)])
              << "row " << row << " of " << rows << " on " << threads << " threads";
        }
      }
    }
  }
  omp_set_num_threads(2);
}

TEST_P(FewRows, LinearHasTheSameBitsUpToSixteenRows) {
  if (GetParam() == Dtype::kBf16 && !test::has_bf16()) GTEST_SKIP() << "bf16 needs AVX-512";
  const MatrixEngine engine;
  for (const Size& size : kSizes) {
    const auto weights = weights_of(size);
    const Linear linear(engine, GetParam(), size.outputs, size.inputs, weights.data());
    EXPECT_EQ(linear.bytes(), size.outputs * size.inputs * regard::size_of(GetParam()));
    auto x = random_floats(40 * size.inputs, 4);
    if (GetParam() == Dtype::kBf16) x = rounded_to_bf16(x);
    const auto x_bytes = stored(x, GetParam());
    std::vector<float> first;
    for (const std::int64_t rows : {1, 2, 7, 8, 9, 15, 16, 17, 18, 31, 40}) {
      std::vector<float> y(static_cast<std::size_t>(rows * size.outputs));
      linear.run(x_bytes.data(), rows, y.data());
      expect_product(weights, size, x, rows, y.data());
      if (rows == 1) first.assign(y.begin(), y.begin() + size.outputs);
      if (rows > 16) continue;
      EXPECT_EQ(std::vector<float>(y.begin(), y.begin() + size.outputs), first) << rows << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weights, FewRows, ::testing::Values(Dtype::kF32, Dtype::kBf16),
                         [](const auto& tested) { return regard::to_string(tested.param); });

TEST(Linears, AMatrixOutlivesMoreOfTheEngine) {
  // The engine's memory comes in pieces: later matrices must not move earlier ones.
  const MatrixEngine engine;
  std::vector<Linear> linears;
  std::vector<std::vector<float>> weights;
  const Size size{1024, 2100};  // 8.6 MB: four pieces of 32 MB
  for (unsigned seed = 0; seed < 13; ++seed) {
    weights.push_back(random_floats(size.outputs * size.inputs, 100 + seed));
    linears.emplace_back(engine, Dtype::kF32, size.outputs, size.inputs, weights.back().data());
  }
  const auto x = random_floats(size.inputs, 5);
  for (std::size_t i = 0; i < linears.size(); ++i) {
    std::vector<float> y(static_cast<std::size_t>(size.outputs));
    linears[i].run(x.data(), 1, y.data());
    expect_product(weights[i], size, x, 1, y.data());
  }
}

// Rows beside each other, and more than 65,536 elements, which threads divide.
const Size kRowSizes[] = {{1, 1}, {3, 33}, {5, 48}, {70, 1000}};

TEST(Rows, NormIsThatOfDoublePrecision) {
  for (const Size& size : kRowSizes) {
    auto x = random_floats(size.outputs * size.inputs, 6);
    for (std::int64_t i = 0; i < size.inputs; ++i) x[i] *= 1e-3f;  // where epsilon counts
    const auto weight = random_floats(size.inputs, 7);
    std::vector<float> out(x.size());
    rms_norm(x.data(), weight.data(), 1e-5, size.outputs, size.inputs, Dtype::kF32, out.data());
    for (std::int64_t r = 0; r < size.outputs; ++r) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < size.inputs; ++i) {
        squares += std::pow(static_cast<double>(x[r * size.inputs + i]), 2);
      }
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(size.inputs) + 1e-5);
      for (std::int64_t i = 0; i < size.inputs; ++i) {
        const double expected =
            static_cast<double>(x[r * size.inputs + i]) * scale * static_cast<double>(weight[i]);
        ASSERT_NEAR(out[r * size.inputs + i], expected, 2e-6 * std::abs(expected) + 1e-12);
      }
    }
  }
}

TEST(Rows, SwigluIsThatOfDoublePrecisionForAllGates) {
  for (const Size& size : kRowSizes) {
    auto gate_up = random_floats(2 * size.outputs * size.inputs, 8);
    const float special[] = {0.0f,   -0.0f,  20.0f,   -20.0f, 86.9f,
                             -86.9f, 100.0f, -100.0f, 1e30f,  1e-30f};
    for (std::size_t i = 0; i < gate_up.size(); ++i) {
      if (i % 3 == 0) gate_up[i] = special[i / 3 % std::size(special)];
      if (i % 3 == 1) gate_up[i] *= 12.0f;
    }
    std::vector<float> out(static_cast<std::size_t>(size.outputs * size.inputs));
    swiglu(gate_up.data(), size.outputs, size.inputs, Dtype::kF32, out.data());
    for (std::int64_t r = 0; r < size.outputs; ++r) {
      for (std::int64_t i = 0; i < size.inputs; ++i) {
        const double gate = gate_up[2 * r * size.inputs + i];
        const double up = gate_up[(2 * r + 1) * size.inputs + i];
        const double expected = gate / (1.0 + std::exp(-gate)) * up;
        if (std::abs(expected) > 3e38) continue;  // beyond f32
        // The exponential is limited to that of 88.
        ASSERT_NEAR(out[r * size.inputs + i], expected,
                    1e-6 * std::abs(expected) + 6.1e-39 * std::abs(gate * up) + 1e-44)
            << gate << " " << up;
      }
    }
  }
}

TEST(Rows, ConvertsBetweenStrides) {
  const auto values = rounded_to_bf16(random_floats(6 * 10, 9));
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const auto from = stored(values, dtype);
    std::vector<float> to(6 * 7, -5.0f);
    convert_rows({const_cast<std::byte*>(from.data()), dtype, 10}, {to.data(), Dtype::kF32, 7}, 6,
                 4);
    for (std::size_t r = 0; r < 6; ++r) {
      for (std::size_t i = 0; i < 7; ++i) {
        EXPECT_EQ(to[r * 7 + i], i < 4 ? values[r * 10 + i] : -5.0f);
      }
    }
  }
}

TEST(Rows, AddsLongRowsToo) {
  for (const std::int64_t count : {1, 17, 70000}) {
    const auto x = random_floats(count, 10);
    auto to = random_floats(count, 11);
    const auto before = to;
    add(x.data(), count, to.data());
    for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], before[i] + x[i]);
  }
}

}  // namespace
}  // namespace llm
