#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "regard/params.h"
#include "regard/request.h"
#include "tools/gpu_check/device_memory.h"

// cuDNN without regard: what a call through regard is held to.

namespace regard::gpu_check {

/// A call of cuDNN that can be repeated.
struct DirectCall {
  std::function<std::string()>
      run;            // launches once; the text of an error, or "". Null with an error
  std::string error;  // why there is none
  std::int64_t workspace_bytes = 0;
};

/// A call of the case's node of attention over the request's tensors, built by cuDNN's frontend
/// with its own heuristics and whatever workspace it needs. Lengths, a bias and sinks are part of
/// it where the request has them.
DirectCall make_direct_cudnn(const AttentionParams& params, const AttentionGradRequest& request,
                             bool backward, DeviceMemory& memory);

}  // namespace regard::gpu_check
