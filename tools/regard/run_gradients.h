#pragma once

#include "regard/context.h"
#include "tools/regard/owned_tensor.h"
#include "tools/regard/run_backend.h"
#include "tools/regard/run_input.h"

namespace regard::cli {

/// What `--grad` adds to a problem.
struct UpstreamGradients {
  OwnedTensor made;  // d_out where the file has none; otherwise without a shape
  TensorView d_out;  // logically [B,H,S,D]
  TensorView d_lse;  // the file's, or absent
  bool from_file = false;
};

/// d_out and d_lse of the file; d_out is made where there is none: uniform in [-1, 1), the same in
/// every run.
Expected<UpstreamGradients> load_upstream(const RunInput& input);

/// Gradients of one backend, each with the shape, the dtype and the order of the file's tensor that
/// it belongs to; without a shape where there is no such tensor.
struct GradOutputs {
  OwnedTensor d_q, d_k, d_v, d_bias, d_sinks;
};

/// What became of one backward on one backend.
struct GradRun : TimedRuns {
  KernelPlan kernel;
  std::int64_t workspace_bytes = 0;
  GradOutputs outputs;
};

/// Memory for every gradient of the problem.
Expected<GradOutputs> make_grad_outputs(const RunInput& input);

/// The request of a backward from what a forward wrote; `outputs` may be empty, which requests no
/// gradient.
AttentionGradRequest grad_request(const RunInput& input, const UpstreamGradients& upstream,
                                  const RunOutputs& forward, const GradOutputs& outputs);

/// The backward of `run`, with the plan of its forward: once to warm up, then timed, with a
/// workspace of exactly the bytes that the plan states.
Expected<GradRun> run_backward(Context& context, const RunInput& input,
                               const UpstreamGradients& upstream, const BackendRun& run,
                               const Policy& policy, const Timing& timing);

}  // namespace regard::cli
