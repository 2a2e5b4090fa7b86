#pragma once

#include <optional>

#include "c_api/handles.h"
#include "regard/padding.h"
#include "regard/policy.h"
#include "regard/regard.h"
#include "regard/request.h"
#include "regard/tensors.h"

// The structs of the C ABI in the library's own types. Allocates to report an error only, but for a
// policy's lists.

namespace regard::c_api {

/// `name` is what a message calls the tensor; null gives an absent view.
Status read_tensor(const char* where, const char* name, const regard_tensor* given,
                   TensorView* view);

/// The tensors that `given` holds, by the rows of the table; `buffers` are fresh ones.
Status read_tensors(const char* where, const regard_request& given, Buffers* buffers,
                    TensorSpecs specs = kTensors);
Status read_tensors(const char* where, const regard_gradients& given, GradBuffers* gradients,
                    TensorSpecs specs = kTensors);

/// `request` is a fresh one.
Status read_request(const char* where, const regard_request* given, AttentionRequest* request);

/// Null gives the default policy. `policy` is a fresh one.
Status read_policy(const char* where, const regard_policy* given, Policy* policy);

/// What a plan is made from.
struct CallWords {
  AttentionRequest request;
  Policy policy;
};

/// Both at once. `words` is a fresh one.
Status read_words(const char* where, const regard_request* request, const regard_policy* policy,
                  CallWords* words);

/// `sequences` are fresh ones.
Status read_sequences(const char* where, const regard_padded_sequences* given,
                      PaddedSequences* sequences);

/// `gradients` is a fresh one; its plan is a copy of the handle's, or empty.
Status read_gradients(const char* where, const regard_gradients* given, GradBuffers* gradients);

/// A launch, and the executor that it may point to.
struct CallLaunch {
  Launch launch;
  std::optional<CallbackExecutor> executor;
};

/// Null gives the default launch. `call` is a fresh one and stays where it is.
Status read_launch(const char* where, const regard_launch* given, CallLaunch* call);

}  // namespace regard::c_api
