#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "regard/context.h"
#include "regard/lengths.h"
#include "regard/regard.h"
#include "regard/shared_prefix.h"

// What the opaque handles hold.

namespace regard::c_api {

/// Threads of a C caller's.
class CallbackExecutor final : public Executor {
 public:
  explicit CallbackExecutor(const regard_executor& callback) noexcept : callback_(callback) {}
  void run(int workers, Task task, void* state) override {
    callback_.run(callback_.user, workers, task, state);
  }
  bool calls(const regard_executor& other) const noexcept {
    return callback_.run == other.run && callback_.user == other.user;
  }

 private:
  regard_executor callback_;
};

/// A Context with the executors that C callers gave it.
class SharedContext {
 public:
  explicit SharedContext(std::shared_ptr<Context> context) : context_(std::move(context)) {}
  Context& context() noexcept { return *context_; }
  void set_executor(const regard_executor& callback);

 private:
  std::shared_ptr<Context> context_;
  std::mutex mutex_;
  // Each that was ever set: a call on another thread may be running on an older one.
  std::list<CallbackExecutor> executors_;
};

}  // namespace regard::c_api

struct regard_context {
  std::shared_ptr<regard::c_api::SharedContext> shared;
  bool is_default = false;
  regard::Context& get() const noexcept { return shared->context(); }
};

struct regard_plan {
  regard::Plan plan;
  std::string backend;
  std::shared_ptr<regard::c_api::SharedContext> shared;  // its executors
};

struct regard_shared_prefix_plan {
  regard::SharedPrefixPlan plan;
  std::shared_ptr<regard::c_api::SharedContext> shared;  // its executors
};

struct regard_lengths {
  regard::Lengths lengths;
};
