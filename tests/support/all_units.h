#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/support/backends.h"

namespace regard::test {

/// Every unit with a Context of its own; a case is prepared, and its truth computed, once for all.
class AllUnits {
 public:
  static AllUnits& instance();

  /// Runs the case on every unit: each report must be ok, and what passed must be the forced
  /// unit's. `check` sees each report, if it is given. Returns how many units passed.
  using Check = std::function<void(const Forced&, const conformance::Report&)>;
  int run(const Case& c, const conformance::RunOptions& options, const Check& check = {});
  int count() const { return static_cast<int>(units_.size()); }

 private:
  AllUnits();
  struct Unit {
    Forced forced;
    std::unique_ptr<Context> context;
  };
  std::vector<Unit> units_;
};

}  // namespace regard::test
