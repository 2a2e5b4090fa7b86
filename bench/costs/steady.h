#pragma once

#include "conformance/problem.h"
#include "regard/context.h"

namespace regard::bench {

/// Whether the machine is as fast as it was at its best. A call on all threads is the reference:
/// other programs that take one of two processors double its time, and that of what is measured
/// beside it. It does not notice what neighbours do to the memory's bandwidth.
class SteadyMachine {
 public:
  explicit SteadyMachine(Context& context);

  /// Waits until the reference takes no longer than it may; false after all patience.
  bool wait();

  /// Whether it takes no longer now.
  bool is_steady();

 private:
  double reference_seconds();

  Context& context_;
  conformance::Problem problem_;
  double best_ = 1e9;
};

}  // namespace regard::bench
