#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"

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
