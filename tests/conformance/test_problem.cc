#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "conformance/layout.h"
#include "conformance/memory.h"
#include "conformance/problem.h"
#include "oracle/number.h"
#include "oracle/rules.h"

// A case made real: memory that notices, values that a seed repeats, poison where nobody looks.

namespace regard {
namespace {

using conformance::Block;
using conformance::Guard;
using conformance::make_problem;
using conformance::Problem;

Case case_of(const std::string& text) { return parse_case(text).value(); }

TEST(Block, NoticesAWriteOnEitherSide) {
  for (const std::ptrdiff_t at : {-1, -200, 33, 200}) {
    Block block(33, 0, Guard::kCanaries);
    EXPECT_TRUE(block.intact());
    block.data()[0] = block.data()[32] = 1;
    EXPECT_TRUE(block.intact());
    block.data()[at] = static_cast<unsigned char>(block.data()[at] + 1);
    EXPECT_FALSE(block.intact()) << at;
  }
}

TEST(Block, IsAlignedToWhatWasAskedAndToNoMore) {
  for (const int log2 : {0, 1, 2, 3, 4, 5, 6}) {
    const Block block(100, log2, Guard::kCanaries);
    const auto address = reinterpret_cast<std::uintptr_t>(block.data());
    EXPECT_EQ(address % (std::uintptr_t{1} << log2), 0u) << log2;
    EXPECT_TRUE(log2 == 6 || address % (std::uintptr_t{2} << log2) != 0) << log2;
    const Block guarded(100, log2, Guard::kUpperPage);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(guarded.data()) % (std::uintptr_t{1} << log2), 0u);
  }
}

using GuardDeathTest = testing::Test;

TEST(GuardDeathTest, PagesRefuseEvenReads) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Block upper(64, 4, Guard::kUpperPage), lower(64, 4, Guard::kLowerPage);
  const volatile unsigned char* above = upper.data();
  const volatile unsigned char* below = lower.data();
  EXPECT_EQ(above[0] + above[63] + below[0] + below[63], 4 * 0xff);
  EXPECT_DEATH({ [[maybe_unused]] const int byte = above[64]; }, "");
  EXPECT_DEATH({ [[maybe_unused]] const int byte = below[-1]; }, "");
}

TEST(Problem, NoticesWritesToInputsAndBetweenRows) {
  Problem problem = make_problem(case_of("b2 hq2 sq5 skv7 d8 f32 layout=strided mask lse seed=1"));
  EXPECT_EQ(problem.check_memory(), "");
  const AttentionRequest& r = problem.request();
  static_cast<float*>(r.out.data)[0] = 1.0f;
  static_cast<float*>(r.lse.data)[0] = 1.0f;
  EXPECT_EQ(problem.check_memory(), "");
  ASSERT_GT(r.out.strides[2], 8);
  static_cast<float*>(r.out.data)[8] = 1.0f;  // behind the first row's last element
  EXPECT_EQ(problem.check_memory(), "bytes between the rows of out were written");
  problem.reset_outputs();
  EXPECT_EQ(problem.check_memory(), "");
  static_cast<unsigned char*>(r.attn_mask.data)[0] ^= 1;
  EXPECT_EQ(problem.check_memory(), "bytes of the input attn_mask were written");
}

// One layout class or another: the same values at the same places.
TEST(Problem, ValuesDependOnPlacesAlone) {
  const Problem dense =
      make_problem(case_of("b2 hq2 sq3 skv5 d8 f32 seed=7"), {Guard::kCanaries, true});
  for (const char* layout : {"bshd", "strided"}) {
    const Problem other =
        make_problem(case_of(std::string("b2 hq2 sq3 skv5 d8 f32 seed=7 layout=") + layout));
    for (std::int64_t s = 0; s < 3; ++s) {
      EXPECT_EQ(oracle::element(dense.request().q, 1, 1, s, 3),
                oracle::element(other.request().q, 1, 1, s, 3));
    }
  }
}

// A repro line must repeat its numbers with every compiler: these are of splitmix64 in Python.
TEST(Problem, ValuesAreTheSeedsForEver) {
  const Problem problem = make_problem(case_of("b1 hq1 sq2 skv2 d2 f64 bias sinks seed=42"));
  const AttentionRequest& r = problem.request();
  EXPECT_EQ(oracle::element(r.q, 0, 0, 0, 0), -1.9200666987591388);
  EXPECT_EQ(oracle::element(r.q, 0, 0, 1, 1), -0.97060494854686);
  EXPECT_EQ(oracle::element(r.v, 0, 0, 1, 1), -0.28773250033572945);
  EXPECT_EQ(oracle::element(r.attn_bias, 0, 0, 0, 1), -0.15472856163978577);
  EXPECT_EQ(oracle::element(r.sinks, 0), 0.7691367268562317);
}

TEST(Problem, LayoutClassesAreRealAndPadded) {
  bool padded = false, expanded = false, packed = false, permuted_mask = false;
  for (int seed = 1; seed < 60; ++seed) {
    for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
      const Case c = case_of("b2 hq4 hkv2 sq5 skv5 d8 f32 mask seed=" + std::to_string(seed) +
                             " layout=" + to_string(layout));
      const Problem problem = make_problem(c);
      const AttentionRequest& r = problem.request();
      const AttentionParams seen = describe(r).value();
      EXPECT_EQ(seen.layout_q, layout);
      EXPECT_EQ(seen.layout_k, layout);
      EXPECT_EQ(seen.layout_v, layout);
      EXPECT_EQ(seen.layout_out, layout);
      padded = padded || conformance::footprint(r.q) > 2 * 4 * 5 * 8;
      expanded = expanded || r.k.strides[1] == 0;
      packed = packed || conformance::arrange(c).packed_qkv;
      permuted_mask = permuted_mask || r.attn_mask.strides[3] > r.attn_mask.strides[2];
    }
  }
  EXPECT_TRUE(padded && expanded && packed && permuted_mask);
}

TEST(Problem, LengthsFirstFullEveryFifthEmpty) {
  const Problem problem = make_problem(case_of("b11 hq1 sq9 skv30 d4 f32 lens seed=3"));
  const AttentionRequest& r = problem.request();
  EXPECT_EQ(oracle::element(r.seqlens_q, 0), 9.0);
  EXPECT_EQ(oracle::element(r.seqlens_kv, 0), 30.0);
  for (const std::int64_t b : {4, 9}) {
    EXPECT_EQ(oracle::element(r.seqlens_q, b), 0.0);
    EXPECT_EQ(oracle::element(r.seqlens_kv, b), 0.0);
  }
  for (const std::int64_t b : {1, 2, 3, 5, 10}) {
    EXPECT_GE(oracle::element(r.seqlens_q, b), 1.0);
    EXPECT_LE(oracle::element(r.seqlens_kv, b), 30.0);
  }
  const Problem literal = make_problem(case_of("b3 hq1 sq9 skv30 d4 f32 lens_kv=7,0,30"));
  EXPECT_EQ(oracle::element(literal.request().seqlens_kv, 0), 7.0);
  EXPECT_EQ(oracle::element(literal.request().seqlens_kv, 1), 0.0);
}

/// Elements of one row that are NaN or infinite.
int not_finite(const TensorView& view, std::int64_t b, std::int64_t h, std::int64_t s) {
  int count = 0;
  for (std::int64_t d = 0; d < view.shape[3]; ++d) {
    if (!std::isfinite(oracle::element(view, b, h, s, d))) ++count;
  }
  return count;
}

TEST(Problem, PoisonLiesOutsideOfWhatIsRead) {
  int partly_seen = 0;
  for (int seed = 1; seed < 30; ++seed) {
    const Problem problem =
        make_problem(case_of("b3 hq4 hkv2 sq9 skv33 d4 f32 causal diag=br lens_q=9,2,4 "
                             "lens_kv=33,20,0 mask=1,1,1,Skv poison seed=" +
                             std::to_string(seed)),
                     {Guard::kCanaries, true});
    const AttentionRequest& r = problem.request();
    const oracle::Rules rules(r, oracle::Fault::kNone);
    for (std::int64_t b = 0; b < 3; ++b) {
      for (std::int64_t kv = 0; kv < 2; ++kv) {
        for (std::int64_t j = 0; j < 33; ++j) {
          int viewers = 0;
          for (std::int64_t h = 2 * kv; h < 2 * kv + 2; ++h) {
            for (std::int64_t i = 0; i < 9; ++i) viewers += rules.visible({b, h, i, j}) ? 1 : 0;
          }
          const int bad_k = not_finite(r.k, b, kv, j), bad_v = not_finite(r.v, b, kv, j);
          if (viewers == 0) {
            EXPECT_EQ(bad_k + bad_v, 8) << b << " " << kv << " " << j;
          } else if (bad_k + bad_v > 0) {
            EXPECT_EQ(bad_k + bad_v, 1);
            EXPECT_LT(2 * viewers, 18);
            ++partly_seen;
          }
        }
      }
      for (std::int64_t i = rules.len_q(b); i < 9; ++i) EXPECT_EQ(not_finite(r.q, b, 0, i), 4);
    }
  }
  EXPECT_GT(partly_seen, 3);
}

TEST(Problem, DataKinds) {
  double largest = 0.0;
  const Problem large = make_problem(case_of("b2 hq2 sq65 skv65 d64 f32 scores=scaled data=large"));
  const oracle::Truth truth = oracle::compute(large.request()).value();
  for (const long double score : truth.scores) {
    largest = std::max(largest, std::fabs(static_cast<double>(score)));
  }
  EXPECT_GT(largest, 700.0);
  EXPECT_LT(largest, 3000.0);

  const Problem constant = make_problem(case_of("b1 hq1 sq5 skv7 d4 f32 data=constant"));
  const AttentionRequest& r = constant.request();
  EXPECT_EQ(oracle::element(r.k, 0, 0, 0, 1), oracle::element(r.k, 0, 0, 6, 1));
  EXPECT_EQ(oracle::element(r.q, 0, 0, 2, 0), oracle::element(r.q, 0, 0, 2, 3));
  EXPECT_NE(oracle::element(r.v, 0, 0, 0, 1), oracle::element(r.v, 0, 0, 6, 1));

  const Problem finfo =
      make_problem(case_of("b1 hq1 sq65 skv65 d4 f16 bias bias_dtype=f16 data=finfo_min"),
                   {Guard::kCanaries, true});
  int lowest = 0, masked = 0;
  for (std::int64_t i = 0; i < 65; ++i) {
    for (std::int64_t j = 0; j < 65; ++j) {
      const double bias = oracle::element(finfo.request().attn_bias, 0, 0, i, j);
      lowest += bias == -65504.0 ? 1 : 0;
      masked += bias == -HUGE_VAL ? 1 : 0;
    }
  }
  EXPECT_GT(lowest, 500);
  EXPECT_GT(masked, 100);
}

}  // namespace
}  // namespace regard
