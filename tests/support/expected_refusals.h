#pragma once

#include <set>
#include <string>

#include "regard/selection.h"

namespace regard::test {

/// One of the refusals that conformance cases may meet: a backend's record, or its claims of a
/// direction, lack this. Any other refusal of a case is a failure.
struct ExpectedRefusal {
  BackendId backend;
  RefusalCode code;
  const char* actual;  // what the refusal's `actual` begins with
  bool in_backward;    // false: either direction
  bool is_drawn;       // random cases meet it
  const char* reason;
};

/// Which rows of the table the refusals of some cases were.
class ExpectedRefusals {
 public:
  /// Of a backend that is not usable: "" where each of its refusals is a row of the table, else the
  /// first that is none.
  std::string check(const Verdict& verdict);
  /// "" where each row that random cases meet was met, else the first that was not.
  std::string check_all_met() const;

 private:
  std::set<const ExpectedRefusal*> met_;
};

}  // namespace regard::test
