#pragma once

#include "core/describe/checked_call.h"
#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensors.h"

namespace regard {

// What of a call's tensors is checked by value. On another device than the CPU it is not read here
// (check_device_data).

/// Each of seqlens_q and seqlens_kv must lie in [0, the extent], and cu_seqlens within the packed
/// tensors, or rows past the tensors would be read.
Status check_lengths(const Buffers& buffers, const AttentionParams& params, const char* where);

/// The rules of the tensors' rows about their data: lengths, and that scales are finite and not
/// negative.
Status check_data(const Buffers& buffers, const AttentionParams& params, const char* where,
                  TensorSpecs specs = kTensors, const CheckWorkers& workers = {});

/// The same of a backward's own tensors.
Status check_gradient_data(const Buffers& buffers, const GradBuffers& gradients,
                           const AttentionParams& params, const char* where,
                           TensorSpecs specs = kTensors);

}  // namespace regard
