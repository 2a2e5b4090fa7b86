#include <gtest/gtest.h>

#include <string>

#include "mock_backend.h"

// What the cost model counts of a call: keys at the ends of masks, last vectors of head dims, and
// sequences of which a mean is known.

namespace regard::test {
namespace {

/// Arithmetic alone, on one thread.
CostModel arithmetic_model() {
  CostModel model;
  model.rates = default_rates(Isa::kAvx512, 1);
  for (const BackendId backend : {BackendId::kFlash, BackendId::kMath}) {
    for (int kind = 0; kind < kCostKindCount; ++kind) {
      const CostTerms terms{0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.2};
      model.entries.push_back({backend, static_cast<CostKind>(kind), CostTypes::kFloats, terms});
    }
  }
  return model;
}

double counted(const std::string& words, const BackendRef& backend = kFlash) {
  return predict_time(arithmetic_model(), backend, case_params(words.c_str()), false).seconds;
}

// A causal row of FLASH's computes half a vector of rows and half a block of keys beside its own.
TEST(CostCounts, RowsComputeMoreKeysThanTheySeeWhereAMaskEnds) {
  const std::string all = "b1 hq1 sq128 d64 f32", causal = all + " causal";
  const double rows = 128.0, seen = rows * (rows + 1) / 2;
  constexpr double kSampled = 5e-3;  // what is seen is the mean of 64 rows
  EXPECT_NEAR(counted(causal) / counted(all), (seen + 12 * rows) / (rows * rows), kSampled);
  EXPECT_NEAR(counted(causal, kMath) / counted(all, kMath), (seen + 32 * rows) / (rows * rows),
              kSampled);
}

TEST(CostCounts, HeadDimsThatFillNoVectorCostDecodeATimeForEachRow) {
  const auto beside = [](const std::string& heads) {  // what four more columns cost, less products
    const std::string rest = " sq1 skv4096 f32 d";
    return counted(heads + rest + "36") - 36.0 / 32.0 * counted(heads + rest + "32");
  };
  const double one = beside("b1 hq1 hkv1"), eight = beside("b1 hq8 hkv1");
  EXPECT_GT(one, 0.0);
  EXPECT_GT(eight, 2 * one);
  EXPECT_LT(eight, 8 * one);
  EXPECT_NEAR(counted("b1 hq4 sq128 d36 f32") / counted("b1 hq4 sq128 d32 f32"), 36.0 / 32.0, 1e-9);
}

// Lengths between 0 and twice the mean: their squares are 4/3 of the mean's, less for a few.
TEST(CostCounts, SequencesOfAMeanAndALongestSpreadEvenly) {
  const double equal = counted("b16 hq1 sq128 d64 f32");
  EXPECT_NEAR(counted("b16 hq1 sq256 d64 f32 lens tokens_q=2048 tokens_kv=2048") / equal,
              1.0 + (1.0 - 1.0 / 256) / 3, 1e-9);
  EXPECT_NEAR(counted("b1 hq1 sq256 d64 f32 lens tokens_q=128 tokens_kv=128") / equal, 1.0 / 16,
              1e-9);
}

}  // namespace
}  // namespace regard::test
