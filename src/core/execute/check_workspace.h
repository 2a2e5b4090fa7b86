#pragma once

#include <cstdint>

#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensors.h"

namespace regard {

/// The workspace of a call that needs `needed` bytes: large enough, aligned, and apart from every
/// tensor of the call, which kernels would overwrite. `gradients` are a backward's, else null.
Status check_workspace(const Workspace& workspace, std::int64_t needed, const Buffers& buffers,
                       const GradBuffers* gradients, const char* where,
                       TensorSpecs specs = kTensors);

}  // namespace regard
