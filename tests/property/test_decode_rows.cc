#include <cmath>
#include <vector>

#include "oracle/number.h"
#include "tests/property/property.h"
#include "tests/support/all_units.h"

// Rows over many keys: kernels that split the keys, and the edges at which they change.

namespace regard {
namespace {

using conformance::Problem;
using test::unequal;

class DecodeRows : public test::Property {
 protected:
  void expect_right(const std::string& text) {
    const Problem problem = problem_of(text);
    run(problem.request());
    expect_within_tolerance(problem.request(), oracle::compute(problem.request()).value(), text);
  }
};

/// The attention of one query over the first keys, one key after another in double.
struct Growing {
  double max = -HUGE_VAL, sum = 0.0;
  std::vector<double> out;

  void add(double score, const std::vector<double>& value) {
    out.resize(value.size());
    const double next = std::fmax(max, score);
    const double keep = std::exp(max - next), weight = std::exp(score - next);
    for (std::size_t d = 0; d < value.size(); ++d) out[d] = out[d] * keep + weight * value[d];
    sum = sum * keep + weight;
    max = next;
  }
};

std::vector<double> row_of(const TensorView& view, std::int64_t h, std::int64_t i) {
  std::vector<double> row;
  const auto* const first = static_cast<const unsigned char*>(view.data);
  for (std::int64_t d = 0; d < view.shape[3]; ++d) {
    const std::int64_t at = h * view.strides[1] + i * view.strides[2] + d;
    row.push_back(
        static_cast<double>(oracle::decode(first + at * size_of(view.dtype), view.dtype)));
  }
  return row;
}

// A cache that grows from 1 to 5,000 keys.
TEST_P(DecodeRows, EveryLengthIsRight) {
  const Problem problem = problem_of("b1 hq2 hkv1 sq1 skv5000 d9 dv7 f32 seed=1");
  AttentionRequest step = problem.request();
  const std::vector<std::vector<double>> queries = {row_of(step.q, 0, 0), row_of(step.q, 1, 0)};
  Growing exact[2];
  for (std::int64_t length = 1; length <= 5000; ++length) {
    step.k.shape[2] = step.v.shape[2] = length;
    run(step);
    const std::vector<double> key = row_of(step.k, 0, length - 1);
    for (std::int64_t h = 0; h < 2; ++h) {
      double score = 0.0;
      for (std::size_t d = 0; d < key.size(); ++d) {
        score += queries[static_cast<std::size_t>(h)][d] * key[d] / 3.0;  // sqrt(9)
      }
      exact[h].add(score, row_of(step.v, 0, length - 1));
      const std::vector<double> out = row_of(step.out, h, 0);
      for (std::size_t d = 0; d < out.size(); ++d) {
        ASSERT_NEAR(out[d], exact[h].out[d] / exact[h].sum, 4e-6) << length << " keys, head " << h;
      }
    }
  }
}

// What a row has not seen before a split has no maximum either: -inf is not taken from -inf.
TEST_P(DecodeRows, SplitsWithoutVisibleKeysAddNothing) {
  for (const char* text : {"b1 hq1 sq1 skv1700 d17 f32 window=30,0 diag=br lse poison",
                           "b1 hq3 hkv1 sq7 skv2100 d12 bf16 window=5,2 diag=br lse poison",
                           "b1 hq2 hkv1 sq3 skv1700 d40 f16 window=9,700 diag=20 lse poison",
                           "b1 hq2 hkv1 sq2 skv1200 d8 f32 causal diag=-2000 lse poison"}) {
    expect_right(text);
  }
}

// Whether workers share the splits of a sequence, or one takes them all, decides no bit; nor does
// the company that a sequence keeps.
TEST_P(DecodeRows, BitsDoNotDependOnWorkersOrBatch) {
  for (const char* text : {"b3 hq1 sq70 skv12500 d8 f32 lens causal diag=br lse poison",
                           "b2 hq3 hkv1 sq50 skv18000 d16 bf16 window=9000,-1 diag=br sinks lse",
                           "b2 hq1 sq2 skv20000 d8 f16 lens causal diag=br lse poison",
                           "b8 hq4 hkv1 sq1 skv3000 d64 f32 lens causal diag=br lse poison",
                           "b8 hq8 hkv4 sq4 skv1300 d40 bf16 mask bias sinks lse",
                           "b8 hq2 hkv2 sq20 skv900 d32 f16 causal diag=br dropout=0.3 lse"}) {
    const Problem problem = problem_of(text);
    const AttentionRequest& whole = problem.request();
    run(whole);
    for (const int workers : {1, 2, 7, 64}) {
      const auto context = test::make_context(GetParam().isa, workers);
      AttentionRequest other = whole;
      tensors_.renew_outputs(&other);
      test::run_forced(*context, other, GetParam());
      EXPECT_EQ(unequal(whole.out, other.out), "") << text << " on " << workers << " workers";
      EXPECT_EQ(unequal(whole.lse, other.lse), "") << text << " on " << workers << " workers";
      const AttentionRequest cut = test::single_sequence(whole, 0);  // its number is in the dropout
      AttentionRequest alone = cut;
      tensors_.renew_outputs(&alone);
      test::run_forced(*context, alone, GetParam());
      EXPECT_EQ(unequal(cut.out, alone.out), "") << text << " alone on " << workers << " workers";
    }
  }
}

/// MATH has one kernel for any number of rows.
std::vector<test::Forced> backends_with_decode_rows() {
  std::vector<test::Forced> found = test::forced_backends();
  std::erase_if(found, [](const test::Forced& unit) { return unit.backend == test::kMathRef; });
  return found;
}

INSTANTIATE_TEST_SUITE_P(All, DecodeRows, testing::ValuesIn(backends_with_decode_rows()),
                         [](const auto& param) { return test::name_of(param.param); });

// Lengths and rows around the edges of splits, tiles and kernels.
TEST(FewDecodeRows, EdgesAreWithinTheTolerance) {
  test::AllUnits& units = test::AllUnits::instance();
  const std::vector<std::string> decode = {"hq1 hkv1 sq1", "hq5 hkv1 sq5"};
  const std::vector<std::string> all = {"hq1 hkv1 sq1",  "hq3 hkv1 sq1",  "hq11 hkv1 sq1",
                                        "hq4 hkv1 sq3",  "hq13 hkv1 sq1", "hq5 hkv1 sq5",
                                        "hq1 hkv1 sq63", "hq2 hkv1 sq32", "hq5 hkv1 sq13"};
  for (const int length : {15, 17, 95, 97, 511, 512, 513, 576, 577, 1025, 7680, 7681, 8193}) {
    for (const std::string& rows : length > 600 ? decode : all) {
      const std::string text =
          "b1 " + rows + " skv" + std::to_string(length) +
          " d17 dv12 bf16 causal diag=br lse sinks poison seed=" + std::to_string(length);
      EXPECT_EQ(units.run(parse_case(text).value(), {}), units.count()) << text;
    }
  }
}

// More rows than a few are split beyond 8,192 keys, in splits of 2,048 and as many as rows allow.
TEST(MoreDecodeRows, EdgesAreWithinTheTolerance) {
  test::AllUnits& units = test::AllUnits::instance();
  for (const char* rows :
       {"hq1 sq65 skv8192", "hq1 sq65 skv8193", "hq1 sq65 skv10300", "hq2 hkv1 sq50 skv8192",
        "hq2 hkv1 sq50 skv8193", "hq2 hkv1 sq50 skv10300", "hq1 sq1100 skv8193"}) {
    const std::string text =
        std::string("b1 ") + rows + " d7 dv9 bf16 causal diag=br lse sinks poison";
    EXPECT_EQ(units.run(parse_case(text).value(), {}), units.count()) << text;
  }
}

}  // namespace
}  // namespace regard
