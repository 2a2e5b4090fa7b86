#pragma once

#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// The executor that a backend is given: every worker of every executor (the own pool, an injected
/// one, a serial one) passes through it. A worker runs in the default floating-point environment,
/// and workers that the inner executor did not run are noticed.
class DefaultModeExecutor final : public Executor {
 public:
  /// `name` names the executor's owner in errors.
  DefaultModeExecutor(Executor& inner, const char* name) noexcept : inner_(inner), name_(name) {}

  void run(int workers, Task task, void* state) override;

  /// An error when some run() did not run each of its workers, which leaves outputs incomplete.
  Status status(const char* where) const;

 private:
  Executor& inner_;
  const char* name_;
  int expected_ = 0, ran_ = 0;  // workers of the first run that was incomplete
};

}  // namespace regard
