#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "problem/element.h"
#include "regard/attention.h"
#include "tests/support/backends.h"
#include "tests/support/tensors.h"

// The stated error bounds hold whatever the number of keys. All queries of a problem are equal, so
// that one row of the truth, in long double, serves for all of them.

namespace regard::test {
namespace {

constexpr std::int64_t kDim = 4;
constexpr std::int64_t kCounts[] = {10, 100, 1000, 10'000, 100'000, 1'000'000};
constexpr std::int64_t kMaxKeys = 1'000'000;

struct Types {
  Dtype in, out;
};

struct Data {
  const char* name;
  bool equal_scores;
  bool equal_values;
};

constexpr Data kData[] = {{"equal_scores", true, false},
                          {"equal_scores_and_values", true, true},
                          {"random_scores", false, false}};

struct Param {
  Types types;
  Data data;
};

void PrintTo(const Param& p, std::ostream* to) {
  *to << to_string(p.types.in) << "_to_" << to_string(p.types.out) << "_" << p.data.name;
}

/// Some keys' exact output and lse.
struct Truth {
  double out[kDim];
  double lse;
};

class LongSequences : public testing::TestWithParam<Param> {
 protected:
  LongSequences()
      : in_(GetParam().types.in),
        q_(tensors_.make(in_, {1, 1, kMaxRows, kDim})),
        k_(tensors_.make(in_, {1, 1, kMaxKeys, kDim})),
        v_(tensors_.make(in_, {1, 1, kMaxKeys, kDim})) {
    const bool equal = GetParam().data.equal_scores;
    for (std::int64_t i = 0; i < kMaxRows; ++i) {
      set_row(q_, i,
              [&](std::int64_t d) { return equal ? 0.0 : 0.5 + static_cast<double>(d) / 4; });
    }
    std::mt19937 random(7);
    std::uniform_real_distribution<double> any(-2.0, 2.0), positive(0.5, 1.0);
    for (std::int64_t j = 0; j < kMaxKeys; ++j) {
      set_row(k_, j, [&](std::int64_t) { return any(random); });
      set_row(v_, j,
              [&](std::int64_t) { return GetParam().data.equal_values ? 0.7 : positive(random); });
    }
    find_truths();
  }

  /// The request of the first `keys` keys.
  AttentionRequest request(std::int64_t rows, std::int64_t keys) {
    AttentionRequest request;
    request.q = slice(q_, 2, 0, rows);
    request.k = slice(k_, 2, 0, keys);
    request.v = slice(v_, 2, 0, keys);
    request.out = tensors_.make(GetParam().types.out, {1, 1, rows, kDim});
    request.lse = tensors_.make(in_ == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32, {1, 1, rows});
    return request;
  }

  /// The largest error of the outputs, of the largest output, and of the lse.
  static void expect_near(const AttentionRequest& request, const Truth& truth, double bound,
                          const std::string& what) {
    const double largest = *std::max_element(truth.out, truth.out + kDim);
    const double unit = request.lse.dtype == Dtype::kF64 ? 0x1p-53 : 0x1p-24;
    double worst = 0.0, worst_lse = 0.0;
    for (std::int64_t i = 0; i < request.q.shape[2]; ++i) {
      double out[kDim] = {}, lse = 0.0;
      get_row(request.out, i, out);
      problem::load_row(element_of(request.lse),
                        static_cast<const char*>(request.lse.data) +
                            i * static_cast<std::int64_t>(size_of(request.lse.dtype)),
                        1, 1, &lse);
      for (std::int64_t d = 0; d < kDim; ++d) {
        worst = std::max(worst, std::abs(out[d] - truth.out[d]));
      }
      worst_lse = std::max(worst_lse, std::abs(lse - truth.lse));
    }
    EXPECT_LE(worst / largest, bound) << what;
    // The sum's relative error, and the rounding of the maximum and of the result.
    EXPECT_LE(worst_lse, 32 * unit + 4 * unit * std::abs(truth.lse)) << what << ", lse";
  }

  Dtype in_;
  Truth truths_[std::size(kCounts)];
  static constexpr std::int64_t kMaxRows = 65;  // past those that split their keys

 private:
  static problem::Element element_of(const TensorView& view) {
    return static_cast<problem::Element>(view.dtype);
  }
  static char* row_of(const TensorView& view, std::int64_t i) {
    return static_cast<char*>(view.data) +
           i * kDim * static_cast<std::int64_t>(size_of(view.dtype));
  }
  template <class F>
  static void set_row(const TensorView& view, std::int64_t i, F value) {
    double row[kDim];
    for (std::int64_t d = 0; d < kDim; ++d) row[d] = value(d);
    problem::store_row(element_of(view), row_of(view, i), row, 1, kDim);
  }
  static void get_row(const TensorView& view, std::int64_t i, double* row) {
    problem::load_row(element_of(view), row_of(view, i), 1, kDim, row);
  }

  void find_truths() {
    // In blocks, or the chain of additions would be too long for f64's bound even here.
    constexpr std::int64_t kBlock = 1000;
    double q[kDim], k[kDim], v[kDim];
    get_row(q_, 0, q);
    long double sum = 0, sums[kDim] = {}, block = 0, blocks[kDim] = {};
    for (std::int64_t j = 0, n = 0; j < kMaxKeys; ++j) {
      get_row(k_, j, k);
      get_row(v_, j, v);
      long double score = 0;
      for (std::int64_t d = 0; d < kDim; ++d) score += static_cast<long double>(q[d]) * k[d];
      const long double weight = std::exp(score / 2);  // softmax_scale
      block += weight;
      for (std::int64_t d = 0; d < kDim; ++d) blocks[d] += weight * v[d];
      if ((j + 1) % kBlock != 0 && j + 1 < kCounts[n]) continue;
      sum += std::exchange(block, 0);
      for (std::int64_t d = 0; d < kDim; ++d) sums[d] += std::exchange(blocks[d], 0);
      if (j + 1 < kCounts[n]) continue;
      for (std::int64_t d = 0; d < kDim; ++d) {
        truths_[n].out[d] = static_cast<double>(sums[d] / sum);
      }
      truths_[n++].lse = static_cast<double>(std::log(sum));
    }
  }

  Tensors tensors_;
  TensorView q_, k_, v_;
};

TEST_P(LongSequences, StatedErrorBoundsHold) {
  for (const Forced& forced : forced_backends()) {
    const bool is_math = forced.backend == kMathRef;
    if (in_ == Dtype::kF64 && !is_math) continue;
    const std::unique_ptr<Context> context = make_context(forced.isa, 1);
    for (std::size_t n = 0; n < std::size(kCounts); ++n) {
      // MATH keeps all scores, and beyond f32 and f64 only the types of the tiles differ.
      const bool is_native = in_ == Dtype::kF32 || in_ == Dtype::kF64;
      if (kCounts[n] > 100'000 && !is_native && is_math) continue;
      for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{20}, kMaxRows}) {
        if (kCounts[n] > 100'000 && rows > 1 && (!is_native || is_math)) continue;
        AttentionRequest call = request(rows, kCounts[n]);
        const Plan plan = plan_forced(*context, call, forced);
        run_forced(*context, call, forced);
        expect_near(call, truths_[n], plan.selection().find(forced.backend)->error_bound,
                    name_of(forced) + ", " + std::to_string(rows) + " rows, " +
                        std::to_string(kCounts[n]) + " keys");
      }
    }
  }
}

std::vector<Param> params() {
  constexpr Types kTypes[] = {{Dtype::kF32, Dtype::kF32},   {Dtype::kF64, Dtype::kF64},
                              {Dtype::kBf16, Dtype::kF32},  {Dtype::kBf16, Dtype::kBf16},
                              {Dtype::kF16, Dtype::kF32},   {Dtype::kF16, Dtype::kF16},
                              {Dtype::kF8E4M3, Dtype::kF32}};
  std::vector<Param> all;
  for (const Types& types : kTypes) {
    for (const Data& data : kData) all.push_back({types, data});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, LongSequences, testing::ValuesIn(params()),
                         [](const auto& test) { return testing::PrintToString(test.param); });

}  // namespace
}  // namespace regard::test
