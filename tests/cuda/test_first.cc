#include <gtest/gtest.h>
#include "conformance/generator.h"
#include "conformance/run.h"
#include "tests/cuda/host_backends.h"
namespace regard {
namespace {
TEST(First, Cases) {
  auto host = cuda_test::make_host_context();
  conformance::RunOptions o;
  o.twice = false;
  for (const char* t :
       {"b1 hq1 sq1 skv1 d1 f32 lse seed=1", "b2 hq3 sq65 skv65 d64 f32 lse seed=2",
        "b2 hq4 hkv2 sq65 skv130 d33 dv17 bf16 layout=bshd causal diag=br saved grad poison seed=3",
        "b2 hq3 sq63 skv65 d63 f32 saved grad seed=2"})
    for (auto ref : {host.math, host.efficient}) {
      auto r = conformance::run_case(*host.context, parse_case(t).value(), ref, o);
      EXPECT_TRUE(r.ok()) << r.text;
      EXPECT_EQ(r.outcome, conformance::Outcome::kPassed) << r.text;
      printf("%s %s out %g grad %g launches %ld blocks %ld barriers %ld\n", t,
             to_string(ref).c_str(), r.comparison.out_margin, r.gradients.margin,
             (long)cuda_test::schedule().counts.launches, (long)cuda_test::schedule().counts.blocks,
             (long)cuda_test::schedule().counts.barriers);
    }
}
TEST(First, Random) {
  auto host = cuda_test::make_host_context();
  conformance::RunOptions o;
  o.twice = false;
  int n0 = getenv("N") ? atoi(getenv("N")) : 20;
  for (int n = 0; n < n0; ++n)
    for (int g = 0; g < 2; ++g)
      for (auto ref : {host.math, host.efficient}) {
        auto c = g ? conformance::random_grad_case(31, n) : conformance::random_case(31, n);
        auto r = conformance::run_case(*host.context, c, ref, o);
        EXPECT_TRUE(r.ok()) << r.text;
      }
}
}  // namespace
}  // namespace regard
