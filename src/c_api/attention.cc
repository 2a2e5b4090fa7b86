#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"
#include "c_api/text.h"
#include "regard/case.h"

namespace regard::c_api {
namespace {

// Describes a request and writes `text` of its params.
Status describe_as(const char* where, const regard_request* request, const TextOut& out,
                   std::string (*text)(const AttentionParams&)) {
  if (Status s = check_text_out(where, out); !s.ok()) return s;
  AttentionRequest read;
  if (Status s = read_request(where, request, &read); !s.ok()) return s;
  const Expected<AttentionParams> params = describe(read);
  return params ? write_text(where, text(*params), out) : params.status();
}

// On this machine, or on the one that the words describe.
Selection explain_words(Context& context, const Case& c, const Policy& policy) {
  if (c.env == EnvOverrides{}) return explain(context, c.params, policy);
  return explain(context, c.params, policy, apply_overrides(context.env(), c));
}

Status read_states(const char* where, const regard_state* given, std::size_t count,
                   std::vector<StateView>* states) {
  if (count != 0) {
    if (Status s = require(where, "states", given); !s.ok()) return s;
  }
  for (std::size_t n = 0; n < count; ++n) {
    const std::string name = "states[" + std::to_string(n) + "]";
    StateView& state = states->emplace_back();
    if (Status s = require(where, (name + ".out").c_str(), given[n].out); !s.ok()) return s;
    if (Status s = require(where, (name + ".lse").c_str(), given[n].lse); !s.ok()) return s;
    Status status = read_tensor(where, (name + ".out").c_str(), given[n].out, &state.out);
    if (!status.ok()) return status;
    status = read_tensor(where, (name + ".lse").c_str(), given[n].lse, &state.lse);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace
}  // namespace regard::c_api

using namespace regard;
using namespace regard::c_api;

regard_status regard_describe(const regard_request* request, char* buffer, size_t capacity,
                              size_t* needed) {
  return guarded(__func__, [&](const char* where) {
    return describe_as(where, request, {buffer, capacity, needed}, to_string);
  });
}

regard_status regard_describe_json(const regard_request* request, char* buffer, size_t capacity,
                                   size_t* needed) {
  return guarded(__func__, [&](const char* where) {
    return describe_as(where, request, {buffer, capacity, needed}, to_json);
  });
}

regard_status regard_explain(regard_context* context, const regard_request* request,
                             const regard_policy* policy, char* buffer, size_t capacity,
                             size_t* needed) {
  return guarded(__func__, [&](const char* where) -> Status {
    const TextOut out{buffer, capacity, needed};
    if (Status s = require(where, "context", context); !s.ok()) return s;
    if (Status s = check_text_out(where, out); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    const Expected<AttentionParams> params = describe(words.request);
    if (!params) return params.status();
    return write_text(where, to_json(explain(context->get(), *params, words.policy)), out);
  });
}

regard_status regard_explain_case(regard_context* context, const char* words,
                                  const regard_policy* policy, char* buffer, size_t capacity,
                                  size_t* needed) {
  return guarded(__func__, [&](const char* where) -> Status {
    const TextOut out{buffer, capacity, needed};
    if (Status s = require(where, "context", context); !s.ok()) return s;
    if (Status s = require(where, "words", words); !s.ok()) return s;
    if (Status s = check_text_out(where, out); !s.ok()) return s;
    Policy wanted;
    if (Status s = read_policy(where, policy, &wanted); !s.ok()) return s;
    const Expected<Case> c = parse_case(words);
    if (!c) return c.status();
    return write_text(where, to_json(explain_words(context->get(), *c, wanted)), out);
  });
}

regard_status regard_attention(regard_context* context, const regard_request* request,
                               const regard_policy* policy, const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    CallLaunch call;
    if (Status s = read_launch(where, launch, &call); !s.ok()) return s;
    return attention(context->get(), words.request, words.policy, call.launch);
  });
}

regard_status regard_merge_states(const regard_state* states, size_t count,
                                  const regard_tensor* out, const regard_tensor* lse) {
  return guarded(__func__, [&](const char* where) -> Status {
    std::vector<StateView> read;
    if (Status s = read_states(where, states, count, &read); !s.ok()) return s;
    if (Status s = require(where, "out", out); !s.ok()) return s;
    TensorView out_view, lse_view;
    if (Status s = read_tensor(where, "out", out, &out_view); !s.ok()) return s;
    if (Status s = read_tensor(where, "lse", lse, &lse_view); !s.ok()) return s;
    return merge_states(read, out_view, lse_view);
  });
}
