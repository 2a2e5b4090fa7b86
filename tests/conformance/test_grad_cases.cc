#include <gtest/gtest.h>

#include "conformance/generator.h"
#include "tests/support/all_units.h"
#include "tests/support/fixed_cases.h"

// Gradients of every unit against the tolerance: chosen cases round blocks and edges, and random
// ones. The truth of a case serves all units.

namespace regard {
namespace {

// Runs the case on every unit that has a backward; how many passed.
int run_grad(const Case& c, conformance::Guard guard) {
  conformance::RunOptions options;
  options.guard = guard;
  return test::AllUnits::instance().run(c, options);
}

class GradCases : public testing::TestWithParam<const char*> {};

TEST_P(GradCases, PassOnEveryUnit) {
  EXPECT_EQ(run_grad(parse_case(GetParam()).value(), conformance::Guard::kUpperPage),
            test::AllUnits::instance().count());
}

INSTANTIATE_TEST_SUITE_P(All, GradCases,
                         testing::ValuesIn(test::grad_cases().begin(), test::grad_cases().end()));
INSTANTIATE_TEST_SUITE_P(Blocks, GradCases,
                         testing::ValuesIn(test::block_cases().begin(), test::block_cases().end()));

TEST(RandomGradCases, PassOnEveryUnit) {
  int passed = 0;
  for (std::uint64_t n = 0; n < 80; ++n) {
    const auto guard = n % 2 == 0 ? conformance::Guard::kCanaries : conformance::Guard::kLowerPage;
    passed += run_grad(conformance::random_grad_case(31, n), guard);
    if (HasFailure()) return;
  }
  EXPECT_GT(passed, 110);
}

}  // namespace
}  // namespace regard
