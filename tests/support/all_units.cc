#include "tests/support/all_units.h"

#include <gtest/gtest.h>

namespace regard::test {

AllUnits::AllUnits() {
  for (const Forced& forced : forced_backends()) {
    units_.push_back({forced, make_context(forced.isa)});
  }
}

AllUnits& AllUnits::instance() {
  static AllUnits all;
  return all;
}

int AllUnits::run(const Case& c, const conformance::RunOptions& options, const Check& check) {
  Expected<conformance::PreparedCase> prepared = conformance::prepare(c, options.guard);
  if (!prepared) {
    ADD_FAILURE() << to_string(c) << ": " << prepared.status().to_string();
    return 0;
  }
  int passed = 0;
  for (Unit& unit : units_) {
    const conformance::Report report =
        conformance::run_prepared(*unit.context, &*prepared, unit.forced.backend, options);
    EXPECT_TRUE(report.ok()) << name_of(unit.forced) << ": " << report.text;
    EXPECT_EQ(check_unit(report, unit.forced, c), "");
    if (report.outcome == conformance::Outcome::kRefused) {
      const Selection selection =
          explain(*unit.context, prepared->params, conformance::policy_for(c, unit.forced.backend));
      EXPECT_EQ(refusals_.check(*selection.find(unit.forced.backend)), "") << to_string(c);
    }
    if (check) check(unit.forced, report);
    passed += report.outcome == conformance::Outcome::kPassed ? 1 : 0;
  }
  return passed;
}

}  // namespace regard::test
