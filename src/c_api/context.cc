#include "regard/context.h"

#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"
#include "regard/version.h"

namespace regard::c_api {
namespace {

// Never destroyed, as default_context().
regard_context* make_default_context() {
  auto borrowed = std::shared_ptr<Context>(std::shared_ptr<Context>(), &default_context());
  return new regard_context{std::make_shared<SharedContext>(std::move(borrowed)), true};
}

regard_context* default_handle() {
  static regard_context* const handle = make_default_context();
  return handle;
}

}  // namespace

void SharedContext::set_executor(const regard_executor& callback) {
  const std::lock_guard lock(mutex_);
  for (CallbackExecutor& known : executors_) {
    if (known.calls(callback)) return context_->set_executor(&known);
  }
  context_->set_executor(&executors_.emplace_back(callback));
}

}  // namespace regard::c_api

using namespace regard;
using namespace regard::c_api;

int32_t regard_version_number(void) { return REGARD_VERSION_NUMBER; }
const char* regard_version(void) { return version(); }

const char* regard_status_name(regard_status status) {
  const bool known = status >= REGARD_STATUS_OK && status <= REGARD_STATUS_OUT_OF_MEMORY;
  return known ? to_string(static_cast<StatusCode>(status)) : "?";
}

regard_status regard_context_create(regard_context** context) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    *context = nullptr;
    auto shared = std::make_shared<SharedContext>(std::make_shared<Context>());
    *context = new regard_context{std::move(shared)};
    return {};
  });
}

void regard_context_destroy(regard_context* context) {
  if (context == nullptr || context->is_default) return;
  guarded(__func__, [&](const char*) -> Status {
    delete context;
    return {};
  });
}

regard_context* regard_default_context(void) {
  regard_context* context = nullptr;
  guarded(__func__, [&](const char*) -> Status {
    context = default_handle();
    return {};
  });
  return context;
}

regard_status regard_context_set_policy(regard_context* context, const regard_policy* policy) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    Policy read;
    if (Status s = read_policy(where, policy, &read); !s.ok()) return s;
    context->get().set_policy(std::move(read));
    return {};
  });
}

regard_status regard_context_set_executor(regard_context* context,
                                          const regard_executor* executor) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    if (executor == nullptr) {
      context->get().set_executor(nullptr);
      return {};
    }
    if (executor->run == nullptr) return invalid(where, "run of executor (null) must be given");
    context->shared->set_executor(*executor);
    return {};
  });
}

regard_status regard_context_set_concurrency(regard_context* context, int32_t concurrency) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    return context->get().set_concurrency(concurrency);
  });
}

regard_status regard_context_concurrency(regard_context* context, int32_t* concurrency) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    if (Status s = require(where, "concurrency", concurrency); !s.ok()) return s;
    *concurrency = context->get().concurrency();
    return {};
  });
}
