#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/run.h"
#include "tests/support/backends.h"
#include "tests/support/fixed_cases.h"

// Gradients of every unit against the bar: chosen cases round blocks and edges, and random ones.
// The truth of a case serves all units.

namespace regard {
namespace {

using conformance::Outcome;
using test::Forced;

// Contexts of this machine, one for each unit.
class Units {
 public:
  Units() {
    for (const Forced& forced : test::forced_backends()) {
      units_.push_back({forced, test::make_context(forced.isa)});
    }
  }
  /// Runs the case on every unit that goes back; how many passed.
  int run(const Case& c, conformance::Guard guard) {
    Expected<conformance::PreparedCase> prepared = conformance::prepare(c, guard);
    EXPECT_TRUE(prepared.ok()) << prepared.status().to_string();
    int passed = 0;
    for (Unit& unit : units_) {
      const conformance::Report report =
          conformance::run_prepared(*unit.context, &*prepared, unit.forced.backend);
      EXPECT_TRUE(report.ok()) << report.text;
      EXPECT_EQ(test::check_unit(report, unit.forced), "");
      passed += report.outcome == Outcome::kPassed ? 1 : 0;
    }
    return passed;
  }
  int count() const { return static_cast<int>(units_.size()); }

 private:
  struct Unit {
    Forced forced;
    std::unique_ptr<Context> context;
  };
  std::vector<Unit> units_;
};

Units& units() {
  static Units all;
  return all;
}

class GradCases : public testing::TestWithParam<const char*> {};

TEST_P(GradCases, PassOnEveryUnit) {
  EXPECT_EQ(units().run(parse_case(GetParam()).value(), conformance::Guard::kUpperPage),
            units().count());
}

INSTANTIATE_TEST_SUITE_P(All, GradCases,
                         testing::ValuesIn(test::grad_cases().begin(), test::grad_cases().end()));

TEST(RandomGradCases, PassOnEveryUnit) {
  int passed = 0;
  for (std::uint64_t n = 0; n < 150; ++n) {
    const auto guard = n % 2 == 0 ? conformance::Guard::kCanaries : conformance::Guard::kLowerPage;
    passed += units().run(conformance::random_grad_case(31, n), guard);
    if (HasFailure()) return;
  }
  EXPECT_GT(passed, 200);
}

}  // namespace
}  // namespace regard
