#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/expected_refusals.h"

namespace regard::test {

/// Every unit with a Context of its own; a case is prepared, and its truth computed, once for all.
class AllUnits {
 public:
  static AllUnits& instance();

  /// Runs the case on every unit: each report must be ok, what passed must be the forced unit's,
  /// and a refusal must be one of the expected ones. `check` sees each report, if it is given.
  /// Returns how many units passed.
  using Check = std::function<void(const Forced&, const conformance::Report&)>;
  int run(const Case& c, const conformance::RunOptions& options, const Check& check = {});
  int count() const { return static_cast<int>(units_.size()); }
  /// Of all cases so far.
  const ExpectedRefusals& refusals() const { return refusals_; }

 private:
  AllUnits();
  struct Unit {
    Forced forced;
    std::unique_ptr<Context> context;
  };
  std::vector<Unit> units_;
  ExpectedRefusals refusals_;
};

}  // namespace regard::test
