#pragma once

#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// The executor that a backend is given: every slot of every executor (the own pool, an injected
/// one, a serial one) passes through it. A slot runs in the default floating-point environment, and
/// slots that the inner executor did not run are noticed.
class SlotExecutor final : public Executor {
 public:
  /// `name` says in an error whose executor it is.
  SlotExecutor(Executor& inner, const char* name) noexcept : inner_(inner), name_(name) {}

  void run(int slots, Task task, void* state) override;

  /// An error when some run() did not run each of its slots, which leaves outputs incomplete.
  Status status(const char* where) const;

 private:
  Executor& inner_;
  const char* name_;
  int expected_ = 0, ran_ = 0;  // slots of the first run that was incomplete
};

}  // namespace regard
