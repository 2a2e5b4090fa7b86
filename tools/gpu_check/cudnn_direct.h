#pragma once

#include <functional>
#include <string>

#include "regard/params.h"
#include "regard/request.h"
#include "tools/gpu_check/device_memory.h"

// cuDNN without regard: what a call through regard is held to.

namespace regard::gpu_check {

/// Launches once; the text of an error, or "".
using DirectCall = std::function<std::string()>;

/// A call of the case's node of attention over the request's tensors, built by cuDNN's frontend
/// with its own heuristics and whatever workspace it needs. Null, and why, where there is none.
DirectCall make_direct_cudnn(const AttentionParams& params, const AttentionGradRequest& request,
                             bool backward, DeviceMemory& memory, std::string* error);

}  // namespace regard::gpu_check
