#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "conformance/generator.h"
#include "conformance/run.h"
#include "tests/support/backends.h"

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

const char* const kCases[] = {
    "b1 hq1 sq1 skv1 d1 f32 saved grad seed=1",
    "b2 hq3 sq63 skv65 d63 f32 saved grad seed=2",
    "b2 hq4 hkv2 sq65 skv130 d33 dv17 bf16 layout=bshd causal diag=br saved grad poison seed=3",
    "b1 hq2 sq64 skv64 d128 f16 causal lse grad seed=4",
    // More rows and keys than a block of the pass that keeps its sums.
    "b1 hq1 sq800 skv450 d16 f32 causal diag=br saved grad seed=5",
    "b1 hq4 hkv1 sq220 skv900 d24 bf16 window=200,40 diag=30 saved grad seed=6",
    "b1 hq2 hkv1 sq400 skv400 d8 f32 softcap=5 sinks dropout=0.3 causal saved grad seed=7",
    "b3 hq2 sq420 skv500 d8 f16 lens causal diag=br saved grad poison seed=8",
    // Wide heads.
    "b1 hq2 sq20 skv70 d192 f32 saved grad seed=9",
    "b1 hq2 hkv1 sq33 skv70 d256 bf16 causal diag=tl saved grad seed=10",
    "b1 hq1 sq9 skv65 d512 f32 saved grad seed=11",
    // Every edit.
    "b2 hq4 hkv2 sq33 skv70 d16 f32 mask bias=B,1,Sq,Skv saved grad poison seed=12",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 bias=1,H,1,Skv causal diag=tl saved grad seed=13",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 bias=B,1,Sq,1 softcap=2 saved grad seed=14",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 alibi diag=br sinks lse grad seed=15",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 segments lens saved grad poison seed=16",
    "b2 hq4 hkv2 sq33 skv70 d16 f32 dropout=0.5 bias=1,1,1,Skv saved grad seed=17",
    "b2 hq2 sq33 skv70 d16 f32 scale=-0.5 saved grad seed=18",
    "b2 hq2 sq33 skv70 d16 f32 scale=0 saved grad seed=19",
    "b2 hq2 sq17 skv70 d16 f32 data=large saved grad seed=20",
    "b2 hq2 sq17 skv70 d16 f32 bias data=finfo_min saved grad seed=21",
    "b4 hq2 sq33 skv65 d16 f32 causal diag=seq saved grad poison seed=22",
    "b2 hq2 sq70 skv33 d16 f32 causal diag=br sinks saved grad poison seed=23",
    // Empty sizes.
    "b0 hq2 sq3 skv5 d16 f32 saved grad seed=24",
    "b2 hq2 sq0 skv5 d16 f32 saved grad seed=25",
    "b2 hq2 sq5 skv0 d16 f32 sinks saved grad seed=26",
};

class GradCases : public testing::TestWithParam<const char*> {};

TEST_P(GradCases, PassOnEveryUnit) {
  EXPECT_EQ(units().run(parse_case(GetParam()).value(), conformance::Guard::kUpperPage),
            units().count());
}

INSTANTIATE_TEST_SUITE_P(All, GradCases, testing::ValuesIn(kCases));

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
