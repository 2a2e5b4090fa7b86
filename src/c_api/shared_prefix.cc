#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"
#include "c_api/text.h"

using namespace regard;
using namespace regard::c_api;

regard_status regard_attention_shared_prefix(regard_context* context, const regard_request* request,
                                             int64_t shared_prefix_kv, const regard_policy* policy,
                                             const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    CallLaunch call;
    if (Status s = read_launch(where, launch, &call); !s.ok()) return s;
    return attention_shared_prefix(context->get(), words.request, shared_prefix_kv, words.policy,
                                   call.launch);
  });
}

regard_status regard_explain_shared_prefix(regard_context* context, const regard_request* request,
                                           int64_t shared_prefix_kv, const regard_policy* policy,
                                           char* buffer, size_t capacity, size_t* needed) {
  return guarded(__func__, [&](const char* where) -> Status {
    const TextOut out{buffer, capacity, needed};
    if (Status s = require(where, "context", context); !s.ok()) return s;
    if (Status s = check_text_out(where, out); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    const Expected<AttentionParams> params = describe(words.request);
    if (!params) return params.status();
    const Expected<Selection> made =
        explain_shared_prefix(context->get(), *params, shared_prefix_kv, words.policy);
    if (!made) return made.status();
    return write_text(where, to_json(*made), out);
  });
}

regard_status regard_shared_prefix_plan_create(regard_context* context,
                                               const regard_request* request,
                                               int64_t shared_prefix_kv,
                                               const regard_policy* policy,
                                               regard_shared_prefix_plan** plan) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    *plan = nullptr;
    if (Status s = require(where, "context", context); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    const Expected<AttentionParams> params = describe(words.request);
    if (!params) return params.status();
    Expected<SharedPrefixPlan> made =
        plan_shared_prefix(context->get(), *params, shared_prefix_kv, words.policy);
    if (!made) return made.status();
    *plan = new regard_shared_prefix_plan{*std::move(made), context->shared};
    return {};
  });
}

void regard_shared_prefix_plan_destroy(regard_shared_prefix_plan* plan) {
  guarded(__func__, [&](const char*) -> Status {
    delete plan;
    return {};
  });
}

regard_status regard_shared_prefix_plan_workspace_bytes(const regard_shared_prefix_plan* plan,
                                                        size_t* bytes) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    if (Status s = require(where, "bytes", bytes); !s.ok()) return s;
    *bytes = static_cast<std::size_t>(plan->plan.workspace_bytes());
    return {};
  });
}

regard_status regard_execute_shared_prefix(const regard_shared_prefix_plan* plan,
                                           const regard_request* request,
                                           const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    AttentionRequest read;
    if (Status s = read_request(where, request, &read); !s.ok()) return s;
    CallLaunch call;
    if (Status s = read_launch(where, launch, &call); !s.ok()) return s;
    return execute_shared_prefix(plan->plan, read, call.launch);
  });
}
