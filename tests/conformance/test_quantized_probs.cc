#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include "oracle/number.h"
#include "regard/attention.h"
#include "regard/case.h"
#include "regard/context.h"
#include "tests/support/backends.h"

// Probabilities and dS of 8 bits on every unit, number by number: conformance's tolerances hold
// whoever rounds them and whoever does not.

namespace regard {
namespace {

using test::Forced;

double rounded(double value, Dtype dtype, int exponent) {
  return std::ldexp(oracle::round_to(std::ldexp(value, exponent), dtype), -exponent);
}

/// log2 of a format's largest power of two.
int largest_exponent(Dtype dtype) { return dtype == Dtype::kF8E4M3 ? 8 : 15; }

/// A call whose scores are its bias, the logarithms of weights, and whose values are the rows of a
/// unit matrix: an output is a row's probabilities. Every row is the same.
class WeightsCall {
 public:
  WeightsCall(Dtype dtype, std::int64_t rows, const std::vector<double>& weights)
      : dtype_(dtype), rows_(rows), keys_(static_cast<std::int64_t>(weights.size())) {
    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    q_.assign(count(rows), code(1.0));
    k_.assign(count(keys_), code(0.0));
    v_.assign(count(keys_ * keys_), code(0.0));
    for (std::int64_t j = 0; j < keys_; ++j) v_[count(j * keys_ + j)] = code(1.0);
    for (const double w : weights) bias_.push_back(static_cast<float>(std::log(w)));
    out_.resize(count(rows * keys_));
    lse_.resize(count(rows));
    request_.q = make_view(q_.data(), dtype, {1, 1, rows, 1});
    request_.k = make_view(k_.data(), dtype, {1, 1, keys_, 1});
    request_.v = make_view(v_.data(), dtype, {1, 1, keys_, keys_});
    request_.out = make_view(out_.data(), {1, 1, rows, keys_});
    request_.lse = make_view(lse_.data(), {1, 1, rows});
    request_.attn_bias = make_view(bias_.data(), {1, 1, 1, keys_});
    request_.options.softmax_scale = 1.0;
    request_.options.quantize_probs = true;
    const double max = *std::max_element(bias_.begin(), bias_.end()) * std::numbers::log2e;
    const int exponent = largest_exponent(dtype) - static_cast<int>(std::ceil(max));
    for (const float bias : bias_) {
      weights_.push_back(rounded(std::exp(static_cast<double>(bias)), dtype, exponent));
      sum_ += weights_.back();
    }
  }

  AttentionRequest& request() { return request_; }
  std::uint8_t code(double value) const {
    std::uint8_t made = 0;
    oracle::encode(value, &made, dtype_);
    return made;
  }
  double weight(std::int64_t j) const { return weights_[static_cast<std::size_t>(j)] / sum_; }

  void expect_weights(const std::string& unit) const {
    for (std::int64_t n = 0; n < rows_ * keys_; ++n) {
      EXPECT_NEAR(out_[static_cast<std::size_t>(n)], weight(n % keys_), 1e-6 * weight(n % keys_))
          << unit << ", row " << n / keys_ << " key " << n % keys_;
    }
    for (const float lse : lse_) EXPECT_NEAR(lse, std::log(sum_), 1e-6) << unit;
  }

 private:
  Dtype dtype_;
  std::int64_t rows_, keys_;
  std::vector<std::uint8_t> q_, k_, v_;
  std::vector<float> bias_, out_, lse_;
  std::vector<double> weights_;  // per key, rounded
  double sum_ = 0.0;
  AttentionRequest request_;
};

/// Weights between the steps of both formats, down to where they become 0 in either, at half of the
/// smallest number; the first is the row's largest and no power of two.
std::vector<double> falling_weights(Dtype dtype) {
  const double smallest = std::ldexp(2.0, dtype == Dtype::kF8E4M3 ? -9 - 8 : -16 - 15);
  return {1.3,
          1.2,
          0.97,
          0.9,
          0.77,
          0.6,
          0.52,
          0.34,
          0.21,
          0.11,
          0.03,
          3e-3,
          2.3e-4,
          1.6 * smallest,
          0.6 * smallest,
          0.4 * smallest};
}

/// Each tile of keys raises the maximum.
std::vector<double> rising_weights() {
  std::vector<double> weights;
  for (int j = 0; j < 300; ++j) weights.push_back(0.07 * std::exp(0.02 * j));
  return weights;
}

TEST(QuantizedProbs, AreRoundedOnEveryUnit) {
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    for (const std::int64_t rows : {1, 3, 40}) {  // a decode's way, and that of a prompt
      for (const auto& weights : {falling_weights(dtype), rising_weights()}) {
        WeightsCall call(dtype, rows, weights);
        for (const Forced& forced : test::forced_backends()) {
          test::run_forced(*test::make_context(forced.isa), call.request(), forced);
          call.expect_weights(std::string(to_string(dtype)) + " " + test::name_of(forced));
        }
      }
    }
  }
}

// The row's sum is that of the rounded probabilities: of the others a row of a few keys would be
// off by some percent.
TEST(QuantizedProbs, ValuesOfOnesGiveOnes) {
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    for (const std::int64_t keys : {2, 3, 65, 5000}) {
      std::vector<std::uint8_t> ones(static_cast<std::size_t>(keys)), zeros(ones.size());
      for (std::uint8_t& x : ones) oracle::encode(1.0, &x, dtype);
      std::vector<float> bias;
      for (std::int64_t j = 0; j < keys; ++j) bias.push_back(static_cast<float>(j * 37 % 101) / -9);
      for (const std::int64_t rows : {1, 30}) {
        std::vector<float> out(static_cast<std::size_t>(rows));
        AttentionRequest request;
        request.q = make_view(zeros.data(), dtype, {1, 1, std::min(rows, keys), 1});
        request.out = make_view(out.data(), {1, 1, std::min(rows, keys), 1});
        request.k = make_view(zeros.data(), dtype, {1, 1, keys, 1});
        request.v = make_view(ones.data(), dtype, {1, 1, keys, 1});
        request.attn_bias = make_view(bias.data(), {1, 1, 1, keys});
        request.options.quantize_probs = true;
        for (const Forced& forced : test::forced_backends()) {
          test::run_forced(*test::make_context(forced.isa), request, forced);
          for (std::int64_t i = 0; i < request.q.shape[2]; ++i) {
            EXPECT_NEAR(out[static_cast<std::size_t>(i)], 1.0, 2e-6)
                << to_string(dtype) << " " << keys << " keys, " << test::name_of(forced);
          }
        }
      }
    }
  }
}

/// The gradients of a row of weights, whose dP are d_out.
void expect_gradients(const Forced& forced, Dtype dtype, Dtype d_out_dtype) {
  WeightsCall call(dtype, 1, falling_weights(dtype));
  const std::int64_t keys = call.request().k.shape[2];
  std::vector<std::uint8_t> d_out(static_cast<std::size_t>(4 * keys));
  std::vector<double> d_probs;
  double delta = 0.0, largest = 0.0;
  const auto at = [&](std::int64_t j) {
    return d_out.data() + j * static_cast<std::int64_t>(size_of(d_out_dtype));
  };
  for (std::int64_t j = 0; j < keys; ++j) {
    oracle::encode(std::cos(static_cast<double>(j)), at(j), d_out_dtype);
    d_probs.push_back(oracle::decode(at(j), d_out_dtype));
    delta += call.weight(j) * d_probs.back();
  }
  std::vector<float> stats(2), d_k(static_cast<std::size_t>(keys)),
      d_v(static_cast<std::size_t>(keys * keys));
  AttentionGradRequest request;
  static_cast<AttentionRequest&>(request) = call.request();
  request.lse = {};
  request.saved_stats = make_view(stats.data(), {1, 1, 1, 2});
  request.saved = {request.saved_stats, SavedContext::Kind::kStats, 0, 0, {}};
  request.d_out = make_view(d_out.data(), d_out_dtype, {1, 1, 1, keys});
  request.d_k = make_view(d_k.data(), {1, 1, keys, 1});
  request.d_v = make_view(d_v.data(), {1, 1, keys, keys});
  request.options.needs_grad = true;
  request.options.dtype_d_out = d_out_dtype;
  request.options.dtype_gradients = Dtype::kF32;
  const auto context = test::make_context(forced.isa);
  const Plan plan = test::plan_forced(*context, request, forced);
  std::vector<double> memory(static_cast<std::size_t>(
      std::max(plan.workspace_bytes(), plan.backward_workspace_bytes()) / 8 + 16));
  Launch launch;
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory.data()) + 63) / 64 * 64;
  launch.workspace = {reinterpret_cast<void*>(begin), (memory.size() - 8) * 8};
  ASSERT_TRUE(execute(plan, request, launch).ok()) << test::name_of(forced);
  const Status status = execute_backward(plan, request, request, launch);
  ASSERT_TRUE(status.ok()) << test::name_of(forced) << ": " << status.message();

  const auto d_score = [&](std::int64_t j) {
    return call.weight(j) * (d_probs[static_cast<std::size_t>(j)] - delta);
  };
  for (std::int64_t j = 0; j < keys; ++j) largest = std::max(largest, std::fabs(d_score(j)));
  const bool narrow = size_of(d_out_dtype) == 1;
  for (std::int64_t j = 0; j < keys; ++j) {
    const std::string where = test::name_of(forced) + " " + to_string(dtype) + ", d_out " +
                              to_string(d_out_dtype) + ", key " + std::to_string(j);
    const int exponent = largest_exponent(d_out_dtype) - 1 - std::ilogb(largest);
    const double expected = narrow ? rounded(d_score(j), d_out_dtype, exponent) : d_score(j);
    EXPECT_NEAR(d_k[static_cast<std::size_t>(j)], expected, 2e-6 * largest) << where;
    for (std::int64_t d = 0; d < keys; ++d) {
      const double value = call.weight(j) * d_probs[static_cast<std::size_t>(d)];
      EXPECT_NEAR(d_v[static_cast<std::size_t>(j * keys + d)], value, 1e-6 * std::fabs(value))
          << where;
    }
  }
}

TEST(QuantizedProbs, TheBackwardRoundsThemAndDs) {
  for (const Dtype dtype : {Dtype::kF8E4M3, Dtype::kF8E5M2}) {
    for (const Dtype d_out : {Dtype::kF8E4M3, Dtype::kF8E5M2, Dtype::kF32}) {
      for (const Forced& forced : test::forced_backends()) expect_gradients(forced, dtype, d_out);
    }
  }
}

TEST(QuantizedProbs, GrowTheErrorBound) {
  Context context;
  const auto bound = [&](const std::string& text) {
    const Expected<Case> c = parse_case(text);
    return explain(context, c->params, Policy{}).find({BackendId::kMath, ""})->error_bound;
  };
  EXPECT_NEAR(bound("sq4 d8 f8e4m3 out=f32 quantized_probs") - bound("sq4 d8 f8e4m3 out=f32"), 7e-2,
              1e-9);
  EXPECT_NEAR(bound("sq4 d8 f8e5m2 out=f32 quantized_probs") - bound("sq4 d8 f8e5m2 out=f32"),
              1.3e-1, 1e-9);
  EXPECT_FALSE(
      parse_case("sq4 d8 bf16 quantized_probs")->params.features.has(Feature::kQuantizedProbs));
}

}  // namespace
}  // namespace regard
