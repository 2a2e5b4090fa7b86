#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"
#include "c_api/text.h"
#include "regard/case.h"

namespace regard::c_api {
namespace {

Status make_plan(regard_context* context, const AttentionParams& params, const Policy& policy,
                 regard_plan** handle) {
  Expected<Plan> made = plan(context->get(), params, policy);
  if (!made) return made.status();
  std::string backend = to_string(made->backend());
  *handle = new regard_plan{*std::move(made), std::move(backend), context->shared};
  return {};
}

// The arguments that both ways to make a plan share.
Status check_arguments(const char* where, regard_context* context, regard_plan** handle) {
  if (Status s = require(where, "plan", handle); !s.ok()) return s;
  *handle = nullptr;
  return require(where, "context", context);
}

// Stores what one of the two directions needs.
Status write_bytes(const char* where, const regard_plan* plan,
                   std::int64_t (Plan::*of)() const noexcept, std::size_t* bytes) {
  if (Status s = require(where, "plan", plan); !s.ok()) return s;
  if (Status s = require(where, "bytes", bytes); !s.ok()) return s;
  *bytes = static_cast<std::size_t>((plan->plan.*of)());
  return {};
}

}  // namespace
}  // namespace regard::c_api

using namespace regard;
using namespace regard::c_api;

regard_status regard_plan_create(regard_context* context, const regard_request* request,
                                 const regard_policy* policy, regard_plan** plan) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = check_arguments(where, context, plan); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    const Expected<AttentionParams> params = describe(words.request);
    if (!params) return params.status();
    return make_plan(context, *params, words.policy, plan);
  });
}

regard_status regard_plan_create_case(regard_context* context, const char* words,
                                      const regard_policy* policy, regard_plan** plan) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = check_arguments(where, context, plan); !s.ok()) return s;
    if (Status s = require(where, "words", words); !s.ok()) return s;
    Policy wanted;
    if (Status s = read_policy(where, policy, &wanted); !s.ok()) return s;
    const Expected<Case> c = parse_case(words);
    if (!c) return c.status();
    if (c->env != EnvOverrides{}) {
      return invalid(where, "words (\"" + to_string(*c) +
                                "\") must not name another machine: a plan is for this one");
    }
    return make_plan(context, c->params, wanted, plan);
  });
}

void regard_plan_destroy(regard_plan* plan) {
  guarded(__func__, [&](const char*) -> Status {
    delete plan;
    return {};
  });
}

const char* regard_plan_backend(const regard_plan* plan) {
  const regard_status status =
      guarded(__func__, [&](const char* where) { return require(where, "plan", plan); });
  return status == REGARD_STATUS_OK ? plan->backend.c_str() : nullptr;
}

regard_status regard_plan_workspace_bytes(const regard_plan* plan, size_t* bytes) {
  return guarded(__func__, [&](const char* where) {
    return write_bytes(where, plan, &Plan::workspace_bytes, bytes);
  });
}

regard_status regard_plan_backward_workspace_bytes(const regard_plan* plan, size_t* bytes) {
  return guarded(__func__, [&](const char* where) {
    return write_bytes(where, plan, &Plan::backward_workspace_bytes, bytes);
  });
}

regard_status regard_plan_text(const regard_plan* plan, char* buffer, size_t capacity,
                               size_t* needed) {
  return guarded(__func__, [&](const char* where) -> Status {
    const TextOut out{buffer, capacity, needed};
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    if (Status s = check_text_out(where, out); !s.ok()) return s;
    return write_text(where, plan->plan.to_string(), out);
  });
}

regard_status regard_plan_explain(const regard_plan* plan, char* buffer, size_t capacity,
                                  size_t* needed) {
  return guarded(__func__, [&](const char* where) -> Status {
    const TextOut out{buffer, capacity, needed};
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    if (Status s = check_text_out(where, out); !s.ok()) return s;
    return write_text(where, to_json(plan->plan.selection()), out);
  });
}

regard_status regard_prepare(const regard_plan* plan, const regard_request* request) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    AttentionRequest read;
    if (Status s = read_request(where, request, &read); !s.ok()) return s;
    return prepare(plan->plan, read);
  });
}

regard_status regard_execute(const regard_plan* plan, const regard_request* request,
                             const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    AttentionRequest read;
    if (Status s = read_request(where, request, &read); !s.ok()) return s;
    CallLaunch call;
    if (Status s = read_launch(where, launch, &call); !s.ok()) return s;
    return execute(plan->plan, read, call.launch);
  });
}
