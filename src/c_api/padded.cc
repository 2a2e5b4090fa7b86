#include "c_api/errors.h"
#include "c_api/handles.h"
#include "c_api/read.h"
#include "c_api/text.h"

using namespace regard;
using namespace regard::c_api;

regard_status regard_attention_padded(regard_context* context, const regard_request* request,
                                      const regard_padded_sequences* sequences,
                                      const regard_policy* policy, const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    PaddedSequences padded;
    if (Status s = read_sequences(where, sequences, &padded); !s.ok()) return s;
    CallLaunch call;
    if (Status s = read_launch(where, launch, &call); !s.ok()) return s;
    return attention_padded(context->get(), words.request, padded, words.policy, call.launch);
  });
}

regard_status regard_explain_padded(regard_context* context, const regard_request* request,
                                    const regard_padded_sequences* sequences,
                                    const regard_policy* policy, char* buffer, size_t capacity,
                                    size_t* needed) {
  return guarded(__func__, [&](const char* where) -> Status {
    const TextOut out{buffer, capacity, needed};
    if (Status s = require(where, "context", context); !s.ok()) return s;
    if (Status s = check_text_out(where, out); !s.ok()) return s;
    CallWords words;
    if (Status s = read_words(where, request, policy, &words); !s.ok()) return s;
    PaddedSequences padded;
    if (Status s = read_sequences(where, sequences, &padded); !s.ok()) return s;
    const Expected<Selection> selection =
        explain_padded(context->get(), words.request, padded, words.policy);
    return selection ? write_text(where, to_json(*selection), out) : selection.status();
  });
}

regard_status regard_attention_padded_backward(regard_context* context,
                                               const regard_request* request,
                                               const regard_gradients* gradients,
                                               const regard_padded_sequences* sequences,
                                               const regard_policy* policy,
                                               const regard_launch* launch) {
  return guarded(__func__, [&](const char* where) -> Status {
    if (Status s = require(where, "context", context); !s.ok()) return s;
    AttentionGradRequest read;
    if (Status s = read_request(where, request, &read); !s.ok()) return s;
    if (Status s = read_gradients(where, gradients, &read); !s.ok()) return s;
    PaddedSequences padded;
    if (Status s = read_sequences(where, sequences, &padded); !s.ok()) return s;
    Policy restricting;
    if (Status s = read_policy(where, policy, &restricting); !s.ok()) return s;
    CallLaunch call;
    if (Status s = read_launch(where, launch, &call); !s.ok()) return s;
    return attention_padded_backward(context->get(), read, padded, restricting, call.launch);
  });
}
