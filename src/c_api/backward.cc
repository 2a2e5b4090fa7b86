#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"

namespace regard::c_api {
namespace {

// What both backward calls are given.
struct BackwardCall {
  AttentionGradRequest request;
  CallLaunch call;
};

Status read_backward(const char* where, const regard_request* request,
                     const regard_gradients* gradients, const regard_launch* launch,
                     BackwardCall* read) {
  if (Status s = read_request(where, request, &read->request); !s.ok()) return s;
  if (Status s = read_gradients(where, gradients, &read->request); !s.ok()) return s;
  return read_launch(where, launch, &read->call);
}

}  // namespace
}  // namespace regard::c_api

using namespace regard;
using namespace regard::c_api;

regard_status regard_prepare_backward(const regard_plan* plan, const regard_request* request,
                                      const regard_gradients* gradients) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    BackwardCall read;
    if (Status s = read_backward(where, request, gradients, nullptr, &read); !s.ok()) return s;
    return prepare_backward(plan->plan, read.request, read.request);
  });
}

regard_status regard_execute_backward(const regard_plan* plan, const regard_request* request,
                                      const regard_gradients* gradients,
                                      const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "plan", plan); !s.ok()) return s;
    BackwardCall read;
    if (Status s = read_backward(where, request, gradients, launch, &read); !s.ok()) return s;
    return execute_backward(plan->plan, read.request, read.request, read.call.launch);
  });
}

regard_status regard_attention_backward(regard_context* context, const regard_request* request,
                                        const regard_gradients* gradients,
                                        const regard_policy* policy, const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    BackwardCall read;
    if (Status s = read_backward(where, request, gradients, launch, &read); !s.ok()) return s;
    Policy restricting;
    if (Status s = read_policy(where, policy, &restricting); !s.ok()) return s;
    return attention_backward(context->get(), read.request, restricting, read.call.launch);
  });
}
