#pragma once

#include "regard/params.h"
#include "regard/request.h"
#include "regard/status.h"

namespace regard {

/// A tensor of GradBuffers by name.
struct GradTensor {
  const char* name;
  const TensorView& (*view)(const GradBuffers&);
  bool output;
};
inline constexpr GradTensor kGradTensors[] = {
    {"d_out", [](const GradBuffers& g) -> const TensorView& { return g.d_out; }, false},
    {"saved.stats", [](const GradBuffers& g) -> const TensorView& { return g.saved.stats; }, false},
    {"delta", [](const GradBuffers& g) -> const TensorView& { return g.delta; }, false},
    {"d_lse", [](const GradBuffers& g) -> const TensorView& { return g.d_lse; }, false},
    {"d_q", [](const GradBuffers& g) -> const TensorView& { return g.d_q; }, true},
    {"d_k", [](const GradBuffers& g) -> const TensorView& { return g.d_k; }, true},
    {"d_v", [](const GradBuffers& g) -> const TensorView& { return g.d_v; }, true},
    {"d_bias", [](const GradBuffers& g) -> const TensorView& { return g.d_bias; }, true},
    {"d_sinks", [](const GradBuffers& g) -> const TensorView& { return g.d_sinks; }, true},
};

/// Everything that can be said about a backward's own tensors without reading them. `params` are
/// describe_buffers(buffers, ...)'s. Messages name `where`. Allocates only to report an error.
Status check_gradients(const Buffers& buffers, const GradBuffers& gradients,
                       const AttentionParams& params, const char* where);

/// The forward's buffers as a backward reads them: without its other outputs than `out`.
Buffers backward_inputs(const Buffers& buffers) noexcept;

}  // namespace regard
