#pragma once

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"
#include "regard/tensors.h"

namespace regard {

/// Everything that can be checked of a backward's own tensors without reading them. `params` are
/// describe_buffers(buffers, ...)'s. Messages name `where`. Allocates only to report an error.
Status check_gradients(const Buffers& buffers, const GradBuffers& gradients,
                       const AttentionParams& params, const char* where,
                       TensorSpecs specs = kTensors);

/// The types of d_out, d_q, d_k and d_v that options leave open become those of the tensors.
void set_gradient_dtypes(const Buffers& buffers, const GradBuffers& gradients,
                         AttentionOptions* options) noexcept;

/// The forward's buffers as a backward reads them: without its other outputs than `out`.
Buffers backward_inputs(const Buffers& buffers) noexcept;

}  // namespace regard
